"""The server side: a two-phase round around any Flower strategy, and one file for each rule."""

from .errors import NoSummariesError, SelectionError, TooFewClientsError
from .gradient_memory import GradientMemory
from .history import RoundRecord
from .pncs import PNCS
from .round_robin import RoundRobin
from .rule import Choice, Round, SelectionRule
from .selection import SelectionStrategy
from .uniform import UniformSelection

__all__ = [
    "PNCS",
    "Choice",
    "GradientMemory",
    "NoSummariesError",
    "Round",
    "RoundRecord",
    "RoundRobin",
    "SelectionError",
    "SelectionRule",
    "SelectionStrategy",
    "TooFewClientsError",
    "UniformSelection",
]
