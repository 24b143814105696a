"""Vectors whose mean is nearest to a target in another norm than L2, whose pairs do not tell."""

from itertools import combinations
from math import comb

import numpy as np

__all__ = ["nearest_mean_by_norm"]

_MAX_VALUES = 200_000_000  # of the sums of all subsets together: all are looked at up to here
_MAX_EXCHANGES = 1_000
_CHUNK = 1 << 20  # values at a time
_TIE = 1e-12  # of the scale: the order of a float sum must not decide


def nearest_mean_by_norm(
    offsets: np.ndarray, weights: np.ndarray, size: int, p: float
) -> tuple[tuple[int, ...], bool]:
    """Return the subset with the least |sum of offsets|_p / sum of weights, and whether proved.

    The p-norm of a sum is no sum over pairs unless p is 2, so every look at a subset costs a pass
    over the coordinates. Small problems are enumerated. Beyond, a greedy subset is improved by the
    best exchange of a member for an outsider until none improves it: a local optimum.

    Parameters
    ----------
    offsets : np.ndarray
        Shape (K, d), float64: weight times (vector - target), near 1 at the largest, since powers
        of it must not overflow.
    weights : np.ndarray
        Shape (K,), float64, positive.
    size : int
        Members of the subset, 1 to K.
    p : float
        Order of the norm, 1 or more.

    Returns
    -------
    tuple of tuple of int and bool
        Sorted rows; of ties, the lexicographically smallest that was met.
    """
    num_clients, num_values = offsets.shape
    relative = weights / weights.mean()
    if comb(num_clients, size) * num_values <= _MAX_VALUES:
        return _enumerate(offsets, relative, size, p), True
    return _exchange(offsets, relative, _greedy(offsets, relative, size, p), p), False


def _enumerate(offsets: np.ndarray, weights: np.ndarray, size: int, p: float) -> tuple[int, ...]:
    best, least = tuple(range(size)), np.inf
    for subset in combinations(range(len(offsets)), size):
        members = list(subset)
        value = np.linalg.norm(offsets[members].sum(axis=0), p) / weights[members].sum()
        if value < least - _TIE:
            best, least = subset, value
    return best


def _greedy(offsets: np.ndarray, weights: np.ndarray, size: int, p: float) -> list[int]:
    members: list[int] = []
    total, weight = np.zeros(offsets.shape[1]), 0.0
    for _ in range(size):
        client, _ = _cheapest(offsets, weights, total, weight, members, p)
        members.append(client)
        total = total + offsets[client]
        weight += weights[client]
    return members


def _exchange(
    offsets: np.ndarray, weights: np.ndarray, members: list[int], p: float
) -> tuple[int, ...]:
    members = sorted(members)
    least = np.linalg.norm(offsets[members].sum(axis=0), p) / weights[members].sum()
    for _ in range(_MAX_EXCHANGES):
        best, exchange = least, None
        for leaving in members if len(members) < len(offsets) else ():
            staying = [member for member in members if member != leaving]
            entering, value = _cheapest(
                offsets,
                weights,
                offsets[staying].sum(axis=0),
                float(weights[staying].sum()),
                members,
                p,
            )
            if value < best - _TIE:
                best, exchange = value, (leaving, entering)
        if exchange is None:
            break
        leaving, entering = exchange
        members = sorted([*(member for member in members if member != leaving), entering])
        least = best
    return tuple(members)


def _cheapest(
    offsets: np.ndarray,
    weights: np.ndarray,
    total: np.ndarray,
    weight: float,
    excluded: list[int],
    p: float,
) -> tuple[int, float]:
    """Return who makes the value least when added to a sum, and the value."""
    values = np.empty(len(offsets))
    step = max(1, _CHUNK // offsets.shape[1])
    for start in range(0, len(offsets), step):
        sums = total + offsets[start : start + step]
        values[start : start + step] = np.linalg.norm(sums, p, axis=1)
    values /= weight + weights
    values[excluded] = np.inf
    client = int(np.flatnonzero(values <= values.min() + _TIE)[0])
    return client, float(values[client])
