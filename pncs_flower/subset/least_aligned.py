"""Which clients to choose: the subset that is least alike, or whose mean is nearest to a target."""

from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb

import numpy as np

from pncs_flower.subset.exact import best_of_all
from pncs_flower.subset.objective import SubsetObjective
from pncs_flower.subset.search import search_subset

_LARGEST = 1e290  # of a similarity, so that sums of them stay finite
_MAX_SUBSETS = 5_000_000  # all of them are looked at up to here
_STEPS_PER_CLIENT = 40  # of the search, beyond
_MAX_STEPS = 40_000
_MAX_PRICES = 80_000_000  # steps times clients, each of which a step looks at
_TILE = 512  # rows and columns compared at a time: two tiles fit a core's cache


@dataclass(frozen=True)
class Subset:
    """A subset of clients that are little alike.

    Attributes
    ----------
    indices : tuple of int
        Rows of the similarity matrix, sorted.
    mean_similarity : float
        Mean over the pairs of the subset; of a single client, to all others (0 if there are none).
    optimal : bool
        Whether no other subset is better, as all were looked at.
    """

    indices: tuple[int, ...]
    mean_similarity: float
    optimal: bool


def least_aligned_subset(
    similarity: np.ndarray, size: int, seed: int = 0, *, budget_seconds: float | None = None
) -> Subset:
    """Return the subset with the least mean similarity over its pairs (PNCS, arXiv:2506.15923).

    Up to 5 million subsets, all are looked at. Beyond, a tabu search takes a number of steps that
    depends on the number of clients only.

    Ties, sums that differ by less than 1e-12 of the largest similarity per pair, go to the
    lexicographically smallest tuple of indices: with the rows in the order of who has waited
    longest, to those. A search applies the rule to the subsets that it meets.

    Parameters
    ----------
    similarity : np.ndarray
        Shape (K, K), finite, symmetric. The diagonal is not read.
    size : int
        Number of clients to choose (S), 1 to K. A single one is the least like the others.
    seed : int (default: 0)
        Of the search.
    budget_seconds : float, optional (default: None)
        Search for so long rather than for a number of steps: the result depends on the machine.

    Returns
    -------
    Subset
        The rows chosen and how alike they are.

    Raises
    ------
    ValueError
        If the matrix is not square, finite and symmetric, or ``size`` is out of range.
    """
    pairs = _checked_similarity(similarity)
    num_clients = len(pairs)
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
        raise ValueError(f"size is {size!r}, want a whole number of clients")
    if not 1 <= size <= num_clients:
        raise ValueError(f"size is {size}, want 1 to the {num_clients} clients there are")
    if size == 1:
        to_others = pairs.sum(axis=1) / max(1, num_clients - 1)
        indices = best_of_all(SubsetObjective(np.zeros_like(pairs), to_others, 1))
        return Subset(indices, float(to_others[indices[0]]), optimal=True)
    objective = SubsetObjective(pairs, np.zeros(num_clients), size)
    indices, optimal = _minimise(objective, seed, budget_seconds)
    return Subset(indices, objective.value(np.array(indices)) / comb(size, 2), optimal)


def nearest_mean_subset(
    vectors: np.ndarray,
    target: np.ndarray,
    size: int,
    weights: np.ndarray | None = None,
    seed: int = 0,
) -> tuple[tuple[int, ...], bool]:
    """Return those of K vectors whose mean is nearest to a target, and whether that is sure."""
    offsets = np.asarray(vectors, dtype=np.float64) - target
    if weights is not None:
        offsets = offsets * weights[:, None]
    # By a power of two, which rounds nothing: squares must not overflow.
    offsets = np.ldexp(offsets, -np.frexp(np.max(np.abs(offsets), initial=0.0))[1])
    # |sum of a_i (v_i - t)|^2 / (sum of a_i)^2, spelled out over members and pairs.
    products = offsets @ offsets.T
    squares = np.diagonal(products).copy()
    pairs = 2 * products
    np.fill_diagonal(pairs, 0.0)
    objective = SubsetObjective(pairs, squares, size, weights)
    return _minimise(objective, seed)


def _minimise(
    objective: SubsetObjective, seed: int, budget_seconds: float | None = None
) -> tuple[tuple[int, ...], bool]:
    num_clients = len(objective.linear)
    if 2 * objective.size > num_clients:  # fewer to look at
        left_out, optimal = _minimise(objective.complement(), seed, budget_seconds)
        return tuple(sorted(set(range(num_clients)) - set(left_out))), optimal
    if comb(num_clients, objective.size) <= _MAX_SUBSETS:
        return best_of_all(objective), True
    steps = min(_STEPS_PER_CLIENT * num_clients, _MAX_STEPS, _MAX_PRICES // num_clients)
    return search_subset(objective, seed, steps, budget_seconds), False


def _checked_similarity(similarity: np.ndarray) -> np.ndarray:
    """Return a copy in float64 with a zero diagonal."""
    if np.iscomplexobj(similarity):
        raise ValueError("similarity is complex, want real numbers")
    pairs = np.array(similarity, dtype=np.float64)
    if pairs.ndim != 2 or pairs.shape[0] != pairs.shape[1]:
        raise ValueError(f"similarity of shape {pairs.shape}, want a square matrix (K, K)")
    np.fill_diagonal(pairs, 0.0)
    starts = range(0, len(pairs), _TILE)
    for top, left in combinations_with_replacement(starts, 2):
        tile = pairs[top : top + _TILE, left : left + _TILE]
        mirrored = pairs[left : left + _TILE, top : top + _TILE].T
        largest = np.abs(tile).max()
        if not largest < _LARGEST:
            row, column = np.argwhere(~(np.abs(tile) < _LARGEST))[0].tolist()
            raise ValueError(
                f"similarity of clients {top + row} and {left + column} is {tile[row, column]}: "
                f"want a number below {_LARGEST:g}; leave out clients of such gradients"
            )
        if not np.abs(tile - mirrored).max() <= 1e-9 * largest:
            raise ValueError("similarity is not symmetric: use (similarity + similarity.T) / 2")
    return pairs
