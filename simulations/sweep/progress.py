"""How far runs have come for what they spent: rounds, simulated time or bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cell import Run

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Spent:
    """Something that a run spends: what it is called, and how much it was after each round."""

    name: str
    of: Callable[[Run], Vector | None]  # shape (rounds,); None where it is not known


ROUNDS = Spent("rounds", lambda run: np.arange(1.0, len(run.rounds) + 1))
TIME = Spent("time", lambda run: run.simulated)  # seconds
BYTES = Spent("bytes", lambda run: run.bytes_up + run.bytes_down)
UPLOAD = Spent("upload", lambda run: run.bytes_up)  # bytes, too


class Reached(NamedTuple):
    """What runs had spent when they reached a score; infinite is never."""

    median: float
    low: float  # the median's interval
    high: float
    there: int  # runs that reached it
    seeds: int


def known(runs: Sequence[Run], spent: Spent) -> bool:
    """Tell whether it is known of all runs how much they spent."""
    return all(spent.of(run) is not None for run in runs)


def steps(runs: Sequence[Run], spent: Spent) -> tuple[Vector, Vector]:
    """Return amounts spent, shape (n,), and the scores that runs had by then, shape (runs, n).

    A score holds from the end of its round to that of the next, and that before training from
    nothing on, if it is known. It is compared up to where the first run ends; one that was stopped
    early stays as it ended.
    """
    of_runs = [_amounts(run, spent) for run in runs]
    x = np.unique(np.concatenate([amounts for amounts, _ in of_runs]))
    ends = [
        amounts[-1]
        for run, (amounts, _) in zip(runs, of_runs, strict=True)
        if len(run.trained) == len(run.rounds)
    ]
    start, end = max(amounts[0] for amounts, _ in of_runs), min(ends, default=x[-1])
    x = x[(x >= start) & (x <= end)]
    found = [scores[np.searchsorted(amounts, x, side="right") - 1] for amounts, scores in of_runs]
    return x, np.stack(found)


def spent_until(run: Run, spent: Spent, target: float) -> float:
    """Return how much a run had spent after the first round with a score; infinite if it never."""
    amounts = spent.of(run)
    assert amounts is not None
    there = np.flatnonzero(run.scores >= target)
    return float(amounts[there[0]]) if there.size else np.inf


def to_reach(runs: Sequence[Run], spent: Spent, target: float) -> Reached:
    """Return what it took to reach a score: the median of runs, and its interval.

    A run that never does counts as infinite: later, and dearer, than all that do.
    """
    values = np.sort([spent_until(run, spent, target) for run in runs])
    n = len(values)
    low, high = values[_rank(n)], values[n - 1 - _rank(n)]
    return Reached(
        float(np.median(values)), float(low), float(high), int(np.isfinite(values).sum()), n
    )


def _rank(n: int) -> int:
    """Return which of n sorted values begins the 95% interval of their median, counting from 0."""
    # That of the sign test, which needs no shape of a distribution and holds with infinite values:
    # the median lies below the k + 1 smallest with the probability of at most k heads in n throws.
    # Below six values even the smallest is too likely to be above it, and is taken all the same.
    below, rank = 0, 0
    for k in range(n // 2):
        below += comb(n, k)
        if 2 * below > 0.05 * 2**n:
            break
        rank = k
    return rank


def _amounts(run: Run, spent: Spent) -> tuple[Vector, Vector]:
    """Return what a run had spent at its start, if the score is known, and after each round."""
    amounts, scores = spent.of(run), run.scores
    assert amounts is not None
    if run.initial is None:
        return amounts, scores
    return np.concatenate([[0.0], amounts]), np.concatenate([[run.initial], scores])
