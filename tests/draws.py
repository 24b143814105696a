"""Draws in proportion to weight: the chances by other means, and all draws that there can be."""

from itertools import pairwise, permutations

import numpy as np

from pncs_flower.sampling import systematic_sample


class Fixed:
    """A generator of a given order and start."""

    def __init__(self, order, start: float) -> None:
        self._order, self._start = np.array(order), start

    def permutation(self, size: int) -> np.ndarray:
        assert size == len(self._order)
        return self._order

    def random(self) -> float:
        return self._start


def all_draws(chances: dict[str, float]) -> list[tuple[float, tuple[str, ...]]]:
    """Return, for each order and each interval of starts, how likely it is and who is drawn."""
    values, draws = np.array([*chances.values()]), []
    orders = [*permutations(range(len(values)))]
    for order in orders:
        ends = sorted({0.0, 1.0, *(-np.cumsum(values[[*order]]) % 1.0)})
        draws += [
            ((high - low) / len(orders), systematic_sample(chances, Fixed(order, (low + high) / 2)))
            for low, high in pairwise(ends)
        ]
    return draws


def chances_by_bisection(weights, available, count) -> dict[str, float]:
    """Return min(1, x w_k) for those available, of sum ``count`` or for all of them."""
    low, high = 0.0, count / min(weights.values())
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(min(1.0, middle * weights[c]) for c in available)
        low, high = (middle, high) if total < count else (low, middle)
    return {c: min(1.0, high * weights[c]) for c in available}
