"""The best of all subsets, where there are few enough to look at every one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pncs_flower.objective import SubsetObjective

__all__ = ["best_of_all"]

_CHUNK = 1 << 20  # values at a time


@dataclass(frozen=True)
class _Parts:
    """All subsets of one size of one half of the clients, in lexicographic order.

    ``members`` has the shape (n, size); ``cost`` and ``weight`` are sums over each subset.
    """

    members: np.ndarray
    cost: np.ndarray
    weight: np.ndarray


def best_of_all(objective: SubsetObjective) -> tuple[int, ...]:
    """Return the best subset, and of ties the one that the objective prefers."""
    return _HalvesSearch(objective).best()


class _HalvesSearch:
    def __init__(self, objective: SubsetObjective) -> None:
        self.objective = objective
        self.middle = len(objective.linear) // 2
        self.left = self._all_parts(0, self.middle)
        self.right = self._all_parts(self.middle, len(objective.linear))

    def best(self) -> tuple[int, ...]:
        """Look at all subsets twice: for the least value, then for the first of its ties."""
        wanted = self.objective.size
        groups = [
            (self.left[size], self.right[wanted - size])
            for size in range(wanted + 1)
            if size < len(self.left) and wanted - size < len(self.right)
        ]
        minima = [[values.min() for _, values in self._chunks(*group)] for group in groups]
        limit = min(min(group) for group in minima) + self.objective.tolerance
        ties = [
            self._first(group, limit)
            for group, group_minima in zip(groups, minima, strict=True)
            if min(group_minima) <= limit
        ]
        return max(ties) if self.objective.complemented else min(ties)

    def _first(self, group: tuple[_Parts, _Parts], limit: float) -> tuple[int, ...]:
        """Return a group's first tie, or its last if the objective prefers large ones.

        Both halves are in lexicographic order, so the group is.
        """
        left, right = group
        last = self.objective.complemented
        found = (0, 0)
        for start, values in self._chunks(left, right):
            near = np.flatnonzero(values <= limit)
            if len(near):
                row, column = divmod(int(near[-1 if last else 0]), values.shape[1])
                found = (start + row, column)
                if not last:
                    break
        return (*left.members[found[0]].tolist(), *right.members[found[1]].tolist())

    def _chunks(self, left: _Parts, right: _Parts) -> Iterator[tuple[int, np.ndarray]]:
        """Yield values of left subsets in the rows and right subsets in the columns."""
        chosen = None
        if left.members.shape[1] and right.members.shape[1]:
            chosen = np.zeros((len(self.objective.linear) - self.middle, len(right.cost)))
            chosen[right.members.T - self.middle, np.arange(len(right.cost))] = 1.0
        step = max(1, _CHUNK // len(right.cost))
        for start in range(0, len(left.cost), step):
            rows = slice(start, start + step)
            values = left.cost[rows, None] + right.cost[None, :] + self.objective.offset
            if chosen is not None:
                crossing = np.zeros((len(values), len(chosen)))
                for member in left.members[rows].T:
                    crossing += self.objective.pairs[member, self.middle :]
                values += crossing @ chosen
            if self.objective.weights is not None:
                weight = left.weight[rows, None] + right.weight[None, :]
                values /= (weight - self.objective.weight_offset) ** 2
            yield start, values

    def _all_parts(self, begin: int, end: int) -> list[_Parts]:
        """Return the subsets of clients begin to end - 1 by size, from none to all wanted."""
        parts = [_Parts(np.zeros((1, 0), dtype=np.int64), np.zeros(1), np.zeros(1))]
        last = np.array([begin - 1])
        for _ in range(min(self.objective.size, end - begin)):
            old = parts[-1]
            # Each subset of the size before is followed by every client after its last.
            counts = end - 1 - last
            source = np.repeat(np.arange(len(last)), counts)
            before = np.repeat(np.cumsum(counts) - counts, counts)
            last = last[source] + 1 + np.arange(len(source)) - before
            cost = old.cost[source] + self.objective.linear[last]
            for member in old.members.T:
                cost += self.objective.pairs[member[source], last]
            weight = old.weight[source]
            if self.objective.weights is not None:
                weight = weight + self.objective.weights[last]
            parts.append(_Parts(np.column_stack([old.members[source], last]), cost, weight))
        return parts
