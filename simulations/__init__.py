"""A Flower app that trains with diverse client selection: `flwr run simulations`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run.in_process import InProcessGrid

__all__ = ["InProcessGrid"]


def __getattr__(name: str) -> Any:
    """Import the grid when it is asked for: the command line answers without Flower until then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .run.in_process import InProcessGrid

    return InProcessGrid
