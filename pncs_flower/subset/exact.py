"""The best of all subsets, where there are few enough to look at every one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pncs_flower.subset.objective import SubsetObjective

_CHUNK = 1 << 20  # values at a time


@dataclass(frozen=True)
class _Parts:
    """Subsets of one size of one half of the clients, in lexicographic order."""

    members: np.ndarray  # shape (n, size)
    cost: np.ndarray  # of each subset
    weight: np.ndarray


def best_of_all(objective: SubsetObjective) -> tuple[int, ...]:
    """Return the best subset, and of ties the one that the objective prefers."""
    # A subset is one of the first half of the clients and one of the second. Its cost is that of
    # either plus what crosses over, a matrix product: a few nanoseconds each.
    num_clients, wanted = len(objective.linear), objective.size
    left = _all_parts(objective, 0, num_clients // 2)
    right = _all_parts(objective, num_clients // 2, num_clients)
    chunks = [
        (part, right[wanted - size])
        for size in range(wanted + 1)
        if size < len(left) and wanted - size < len(right)
        for part in _split(left[size], _CHUNK // len(right[wanted - size].cost))
    ]
    # All are looked at once for the least value, and those with ties of it once more.
    minima = [_values(objective, *chunk).min() for chunk in chunks]
    limit = min(minima) + objective.tolerance
    ties = [
        _tie(objective, *chunk, limit)
        for chunk, least in zip(chunks, minima, strict=True)
        if least <= limit
    ]
    return max(ties) if objective.complemented else min(ties)


def _split(parts: _Parts, step: int) -> Iterator[_Parts]:
    for start in range(0, len(parts.cost), max(1, step)):
        some = slice(start, start + max(1, step))
        yield _Parts(parts.members[some], parts.cost[some], parts.weight[some])


def _values(objective: SubsetObjective, left: _Parts, right: _Parts) -> np.ndarray:
    """Return the values of left subsets in the rows and right subsets in the columns."""
    values: np.ndarray = left.cost[:, None] + right.cost + objective.offset
    if left.members.shape[1] and right.members.shape[1]:
        middle = len(objective.linear) // 2
        chosen = np.zeros((len(objective.linear) - middle, len(right.cost)))
        chosen[right.members.T - middle, np.arange(len(right.cost))] = 1.0
        values += objective.pairs[left.members, middle:].sum(axis=1) @ chosen
    if objective.weights is not None:
        values /= (left.weight[:, None] + right.weight - objective.weight_offset) ** 2
    return values


def _tie(objective: SubsetObjective, left: _Parts, right: _Parts, limit: float) -> tuple[int, ...]:
    """Return the first subset within the limit, or the last if the objective prefers that."""
    # Both halves are in lexicographic order, so the chunk is.
    values = _values(objective, left, right)
    near = np.flatnonzero(values <= limit)
    row, column = divmod(int(near[-1 if objective.complemented else 0]), values.shape[1])
    return (*left.members[row].tolist(), *right.members[column].tolist())


def _all_parts(objective: SubsetObjective, begin: int, end: int) -> list[_Parts]:
    """Return the subsets of clients begin to end - 1 by size, from none to all wanted."""
    parts = [_Parts(np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1))]
    last = np.array([begin - 1])
    for _ in range(min(objective.size, end - begin)):
        old = parts[-1]
        # Each subset of the size before is followed by every client after its last.
        counts = end - 1 - last
        source = np.repeat(np.arange(len(last)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        last = last[source] + 1 + np.arange(len(source)) - before
        cost = old.cost[source] + objective.linear[last]
        for member in old.members.T:
            cost += objective.pairs[member[source], last]
        weight = old.weight[source]
        if objective.weights is not None:
            weight = weight + objective.weights[last]
        parts.append(_Parts(np.column_stack([old.members[source], last]), cost, weight))
    return parts
