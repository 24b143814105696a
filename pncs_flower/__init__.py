"""Diverse client selection for Flower by power-norm cosine similarity (PNCS)."""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pncs_flower.queue import AgeOfUpdateQueue
    from pncs_flower.similarity import cosine, pairwise_cosine
    from pncs_flower.subset.least_aligned import Subset, least_aligned_subset

__all__ = ["AgeOfUpdateQueue", "Subset", "cosine", "least_aligned_subset", "pairwise_cosine"]

# In a source tree (checkout, editable install, Flower App Bundle) the sub-packages lie beside this
# folder; in a wheel they lie inside it. Both read `pncs_flower.strategies`.
_root = _Path(__file__).resolve().parent.parent
if (_root / "strategies" / "selection.py").is_file() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))

_MODULES = {
    "AgeOfUpdateQueue": "queue",
    "Subset": "subset.least_aligned",
    "cosine": "similarity",
    "least_aligned_subset": "subset.least_aligned",
    "pairwise_cosine": "similarity",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: `pncs --help` answers before NumPy could be imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # is found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
