"""Diverse client selection for Flower by power-norm cosine similarity (PNCS)."""

from pathlib import Path as _Path

from pncs_flower.queue import AgeOfUpdateQueue
from pncs_flower.similarity import cosine, pairwise_cosine
from pncs_flower.subset.least_aligned import Subset, least_aligned_subset

__all__ = ["AgeOfUpdateQueue", "Subset", "cosine", "least_aligned_subset", "pairwise_cosine"]

# In a source tree (checkout, editable install, Flower App Bundle) the sub-packages lie beside this
# folder; in a wheel they lie inside it. Both read `pncs_flower.strategies`.
_root = _Path(__file__).resolve().parent.parent
if (_root / "strategies" / "selection.py").is_file() and (_root / "pyproject.toml").is_file():
    __path__.append(str(_root))
