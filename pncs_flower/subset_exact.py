"""The best of all subsets, where there are few enough to look at every one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pncs_flower.objective import SubsetObjective

__all__ = ["best_of_all"]

_CHUNK = 1 << 20  # values at a time


@dataclass(frozen=True)
class _Parts:
    """All subsets of one size of one half of the clients, in lexicographic order."""

    members: np.ndarray  # shape (n, size)
    cost: np.ndarray  # of each subset
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.cost)


def best_of_all(objective: SubsetObjective) -> tuple[int, ...]:
    """Return the best subset, and of ties the one that the objective prefers."""
    # A subset is one of the first half of the clients and one of the second. Its cost is that of
    # either plus what crosses over, a matrix product: a few nanoseconds each.
    num_clients, wanted = len(objective.linear), objective.size
    left = _all_parts(objective, 0, num_clients // 2)
    right = _all_parts(objective, num_clients // 2, num_clients)
    groups = [
        (left[size], right[wanted - size])
        for size in range(wanted + 1)
        if size < len(left) and wanted - size < len(right)
    ]
    # All are looked at twice: for the least value, then for the first of its ties.
    minima = [min(values.min() for _, values in _chunks(objective, *group)) for group in groups]
    limit = min(minima) + objective.tolerance
    ties = [
        _first(objective, *group, limit)
        for group, least in zip(groups, minima, strict=True)
        if least <= limit
    ]
    return max(ties) if objective.complemented else min(ties)


def _first(
    objective: SubsetObjective, left: _Parts, right: _Parts, limit: float
) -> tuple[int, ...]:
    """Return a group's first tie, or its last if the objective prefers large ones."""
    # Both halves are in lexicographic order, so the group is.
    last = objective.complemented
    found = (0, 0)
    for start, values in _chunks(objective, left, right):
        near = np.flatnonzero(values <= limit)
        if len(near):
            row, column = divmod(int(near[-1 if last else 0]), values.shape[1])
            found = (start + row, column)
            if not last:
                break
    return (*left.members[found[0]].tolist(), *right.members[found[1]].tolist())


def _chunks(
    objective: SubsetObjective, left: _Parts, right: _Parts
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield values of left subsets in the rows and right subsets in the columns."""
    middle = len(objective.linear) // 2
    chosen = None
    if left.members.shape[1] and right.members.shape[1]:
        chosen = np.zeros((len(objective.linear) - middle, len(right)))
        chosen[right.members.T - middle, np.arange(len(right))] = 1.0
    step = max(1, _CHUNK // len(right))
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        values = left.cost[rows, None] + right.cost[None, :] + objective.offset
        if chosen is not None:
            crossing = np.zeros((len(values), len(chosen)))
            for member in left.members[rows].T:
                crossing += objective.pairs[member, middle:]
            values += crossing @ chosen
        if objective.weights is not None:
            weight = left.weight[rows, None] + right.weight[None, :]
            values /= (weight - objective.weight_offset) ** 2
        yield start, values


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
