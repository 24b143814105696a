"""All selection rules, for those who wrap or extend one: a strategy is a rule around a base."""

from ..rule import SelectionRule
from .active_fl import ActiveFLRule
from .divfl import DivFLRule
from .fedcor import FedCorRule
from .gradient_memory import GradientMemoryRule
from .gradient_norm import GradientNormRule
from .oort import OortRule
from .pncs import PNCSRule
from .power_of_choice import PowerOfChoiceRule
from .round_robin import RoundRobinRule
from .uniform import UniformRule

__all__ = [
    "ActiveFLRule",
    "DivFLRule",
    "FedCorRule",
    "GradientMemoryRule",
    "GradientNormRule",
    "OortRule",
    "PNCSRule",
    "PowerOfChoiceRule",
    "RoundRobinRule",
    "SelectionRule",
    "UniformRule",
]
