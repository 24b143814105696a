"""A finished run, and the statistics of runs over their seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..run.early_stopping import LAST

__all__ = ["LAST", "Comparison", "Run", "compare", "mean_interval", "percent", "rounds_to_reach"]

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A finished cell: what it is, its rounds and its summary, as its file has them."""

    cell: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    @cached_property
    def accuracy(self) -> Vector:
        """Test accuracy after each round, shape (rounds,)."""
        return np.array([row["accuracy"] for row in self.rounds], dtype=np.float64)

    @cached_property
    def bytes_up(self) -> Vector:
        """Bytes that all clients have sent up to each round, shape (rounds,)."""
        return np.cumsum([float(sum(row["bytes_up"].values())) for row in self.rounds])

    @property
    def trained(self) -> Sequence[Mapping[str, Any]]:
        """The rounds up to that after which it was stopped early, if it was."""
        return self.rounds[: self.summary.get("stopped-after-round")]

    @property
    def converged(self) -> float:
        """Mean accuracy of the last rounds."""
        return float(self.accuracy[-LAST:].mean())


class Comparison(NamedTuple):
    """The reference's converged accuracy minus another line's, over the seeds that both have."""

    line: str
    seeds: int
    difference: float
    p: float  # of Wilcoxon's signed-rank test, two-sided
    p_holm: float  # after Holm's correction for all lines of the panel
    least_p: float  # the smallest that so many pairs can give


def mean_interval(values: Vector) -> tuple[Vector, Vector]:
    """Return the mean of (seeds, ...) and half of its 95% interval by Student's t, NaN for one."""
    n = len(values)
    mean = values.mean(axis=0)
    if n == 1:
        return mean, np.full_like(mean, np.nan)
    from scipy import stats  # takes a second, and a wrong file is to be told at once

    error = values.std(axis=0, ddof=1) / n**0.5
    return mean, error * float(stats.t.ppf(0.975, n - 1))


def percent(share: float) -> str:
    """Return a share in percent, with as many digits as it has."""
    return f"{100 * share:g}%"


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction for all of them."""
    order = np.argsort(p)
    steps = np.sort(p) * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted.tolist()


def compare(lines: Mapping[str, Sequence[Run]], reference: str) -> list[Comparison]:
    """Test the converged accuracy of a panel's reference against every other line's."""
    own = {run.cell["seed"]: run.converged for run in lines.get(reference, ())}
    found: dict[str, Vector] = {}
    for line, runs in lines.items():
        pairs = [own[r.cell["seed"]] - r.converged for r in runs if r.cell["seed"] in own]
        if line != reference and pairs:
            found[line] = np.array(pairs)
    p = [_wilcoxon(differences) for differences in found.values()]
    return [
        Comparison(line, len(d), float(d.mean()), own_p, corrected, min(1.0, 2.0 ** (1 - len(d))))
        for (line, d), own_p, corrected in zip(found.items(), p, holm(p), strict=True)
    ]


def rounds_to_reach(runs: Sequence[Run], target: float) -> tuple[float | None, int]:
    """Return the median round that reaches an accuracy, and how many runs reach it.

    A run that never does counts as later than all rounds; None if that is so of the median.
    """
    reached = []
    for run in runs:
        there = np.flatnonzero(run.accuracy >= target)
        reached.append(there[0] + 1 if there.size else np.inf)
    median = float(np.median(reached))
    return (median if np.isfinite(median) else None), int(np.isfinite(reached).sum())


def _wilcoxon(differences: Vector) -> float:
    if len(differences) < 2 or not differences.any():
        return 1.0
    from scipy import stats

    # All signs are tried up to 13 pairs: exact, also with ties.
    method = stats.PermutationMethod(n_resamples=9999, rng=np.random.default_rng(0))
    return float(stats.wilcoxon(differences, method=method).pvalue)
