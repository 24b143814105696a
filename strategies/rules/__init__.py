"""The rules that come with the library: each is one file here and one line below.

The file's name is the name in the settings: ``"round-robin"`` is in round_robin.py. It has two
classes, the rule (`RoundRobinRule`), to wrap or to extend, and its strategy (`RoundRobin`).
"""

from ..rule_strategy import RuleStrategy
from .active_fl import *
from .divfl import *
from .fedcor import *
from .gradient_memory import *
from .gradient_norm import *
from .oort import *
from .pncs import *
from .power_of_choice import *
from .proportional import *
from .round_robin import *
from .sketched_mean import *
from .uniform import *

STRATEGIES: dict[str, type[RuleStrategy]] = {
    kind.__module__.rpartition(".")[2].replace("_", "-"): kind
    for kind in RuleStrategy.__subclasses__()
}
"""The strategies by their names in the settings."""
