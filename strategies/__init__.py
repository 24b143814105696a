"""The server side: a two-phase round around any Flower strategy, and one file for each rule."""

from .active_fl import ActiveFL
from .divfl import DivFL
from .errors import (
    DeadWorkerError,
    EmptyRoundsError,
    NoSummariesError,
    SelectionError,
    TooFewClientsError,
    UnsavableError,
)
from .fedcor import FedCor
from .gradient_memory import GradientMemory
from .gradient_norm import GradientNorm
from .history import RoundRecord
from .oort import Oort
from .options import SelectionOptions
from .pncs import PNCS
from .power_of_choice import PowerOfChoice
from .round_robin import RoundRobin
from .rule import Choice, Round, SelectionRule
from .selection import SelectionStrategy
from .uniform import UniformSelection

__all__ = [
    "PNCS",
    "ActiveFL",
    "Choice",
    "DeadWorkerError",
    "DivFL",
    "EmptyRoundsError",
    "FedCor",
    "GradientMemory",
    "GradientNorm",
    "NoSummariesError",
    "Oort",
    "PowerOfChoice",
    "Round",
    "RoundRecord",
    "RoundRobin",
    "SelectionError",
    "SelectionOptions",
    "SelectionRule",
    "SelectionStrategy",
    "TooFewClientsError",
    "UniformSelection",
    "UnsavableError",
]
