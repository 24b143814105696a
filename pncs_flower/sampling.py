"""Sampling in proportion to weight (PPS): the chance of each, and the systematic draw."""

from collections.abc import Mapping

import numpy as np

__all__ = ["inclusion_chances", "systematic_sample"]

_LEAST = 1e-300  # weight: with nothing but zeros, all have the same chance


def inclusion_chances(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the chance of each to be drawn, in proportion to its weight, but at most 1.

    What those that are sure to be drawn leave over is for the others, in proportion to theirs, so
    that the sum is ``count``.

    Parameters
    ----------
    weights : mapping of str to float
        0 or more, and finite.
    count : int
        How many are drawn, fewer than there are.
    """
    values = np.maximum([*weights.values()], _LEAST)
    chances, free = np.zeros(len(values)), np.ones(len(values), dtype=bool)
    while (left := count - (~free).sum()) > 0:
        chances[free] = values[free] * (left / values[free].sum())
        if not (over := chances > 1.0).any():
            break
        chances[over], free[over] = 1.0, False
    return dict(zip(weights, chances.tolist(), strict=True))


def systematic_sample(chances: Mapping[str, float], draw: np.random.Generator) -> tuple[str, ...]:
    """Draw each with its chance, without replacement: as many as the chances add up to.

    These are steps of 1 from a random start through the chances, laid end to end in a random order
    (W. Madow, "On the theory of systematic sampling, II", 1949).

    Parameters
    ----------
    chances : mapping of str to float
        From 0 to 1, of a whole sum.
    draw : numpy.random.Generator
        Of the order and the start.
    """
    keys = [*chances]
    order, start = draw.permutation(len(keys)), draw.random()
    ends = np.floor(np.cumsum([chances[keys[place]] for place in order]) + start)
    steps = np.diff(ends, prepend=0.0)
    # Those with a step are first; by count, as a rounding error could put two steps into one.
    taken = order[np.argsort(-steps, kind="stable")[: round(sum(chances.values()))]]
    return tuple(keys[place] for place in sorted(taken))
