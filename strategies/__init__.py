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
from .rules import *
from .rules import STRATEGIES
from .selection import SelectionStrategy

__all__ = [
    "Choice",
    "DeadWorkerError",
    "EmptyRoundsError",
    "NoSummariesError",
    "Round",
    "RoundRecord",
    "SelectionError",
    "SelectionOptions",
    "SelectionRule",
    "SelectionStrategy",
    "TooFewClientsError",
    "UnsavableError",
]
__all__ += [kind.__name__ for kind in STRATEGIES.values()]
