"""The server side: a two-phase round around any Flower strategy, and one file for each rule."""

from .errors import (
    DeadWorkerError,
    EmptyRoundsError,
    NoSummariesError,
    SelectionError,
    TooFewClientsError,
    UnsavableError,
)
from .options import SelectionOptions
from .record import RoundRecord
from .rule import Choice, Round, SelectionRule
from .rules.active_fl import ActiveFL
from .rules.divfl import DivFL
from .rules.fedcor import FedCor
from .rules.gradient_memory import GradientMemory
from .rules.gradient_norm import GradientNorm
from .rules.oort import Oort
from .rules.pncs import PNCS
from .rules.power_of_choice import PowerOfChoice
from .rules.round_robin import RoundRobin
from .rules.uniform import UniformSelection
from .selection import SelectionStrategy

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
