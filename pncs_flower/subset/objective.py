"""What a subset costs, apart from how the best one is found."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class SubsetObjective:
    """A sum over a subset's pairs and members, perhaps weighted, to be minimised."""

    pairs: np.ndarray
    linear: np.ndarray
    size: int
    weights: np.ndarray | None = None
    offset: float = 0.0
    weight_offset: float = 0.0
    complemented: bool = False  # whether the members stand for those that are left out

    @cached_property
    def tolerance(self) -> float:
        """Values closer than this are ties: the order of a float sum must not decide."""
        largest_pair = max(np.max(self.pairs, initial=0.0), -np.min(self.pairs, initial=0.0))
        largest_linear = np.max(np.abs(self.linear), initial=0.0)
        scale = abs(self.offset) + self.size * largest_linear + self.size**2 * largest_pair
        if self.weights is not None:
            chosen = len(self.linear) - self.size if self.complemented else self.size
            scale /= self.weights.mean() ** 2 * chosen**2
        return float(1e-12 * scale)

    def complement(self) -> "SubsetObjective":
        """Return the objective of the members left out, with the value of those left in."""
        # All pairs less those that touch a member; a pair of two members was then taken twice.
        row_sums = self.pairs.sum(axis=1)
        return SubsetObjective(
            self.pairs,
            -self.linear - row_sums,
            len(self.linear) - self.size,
            self.weights,
            float(self.linear.sum() + row_sums.sum() / 2),
            0.0 if self.weights is None else float(self.weights.sum()),
            complemented=True,
        )

    def value(self, members: np.ndarray) -> float:
        """Return the value of the subset whose indices are given."""
        members = np.sort(members)  # the sum is taken in one order, however the subset was found
        within = self.pairs[np.ix_(members, members)].sum() / 2
        total = self.offset + self.linear[members].sum() + within
        if self.weights is not None:
            total /= (self.weights[members].sum() - self.weight_offset) ** 2
        return float(total)

    def prefers(self, subset: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Tell whether, of two subsets with equal values, the first is to be taken."""
        # Ties go to the smallest tuple, and so those between complements to the largest.
        return subset > other if self.complemented else subset < other
