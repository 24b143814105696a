"""Read what a sweep left on disk, and the statistics that a report needs of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .cell_file import read_cell, read_lines
from .plan import Report
from .run import CELLS, SWEEP
from .sweep import ALL_CLIENTS, tupled

__all__ = [
    "Comparison",
    "Run",
    "SweepResults",
    "compare",
    "holm",
    "mean_interval",
    "percent",
    "read_results",
    "rounds_to_reach",
]

LAST = 5
"""The converged accuracy is the mean over so many last rounds."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A finished cell.

    Attributes
    ----------
    cell : mapping
        What it is: panel, line, rule, seed, clients, settings, command.
    rounds : sequence of mapping
        Its rounds, as in ``rounds.jsonl``.
    summary : mapping
        As in ``summary.json``.
    """

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


@dataclass(frozen=True)
class SweepResults:
    """All finished cells of a sweep.

    Attributes
    ----------
    sweep : mapping
        The sweep, as `sweep.Sweep` has it.
    panels : mapping of str to mapping of str to list of Run
        Runs by panel and line, each list sorted by seed.
    missing : tuple of str
        Cells without a result.
    """

    sweep: Mapping[str, Any]
    panels: Mapping[str, Mapping[str, Sequence[Run]]]
    missing: tuple[str, ...]

    @property
    def reference(self) -> str:
        """The line that every other is tested against; it may have no result."""
        return str(self.sweep["report"]["reference"])

    @property
    def lines(self) -> list[str]:
        """The lines that have a result in any panel."""
        return list(dict.fromkeys(line for lines in self.panels.values() for line in lines))

    @property
    def lost(self) -> list[str]:
        """The panels without any result."""
        # Files of 0.1.0 do not name the panels.
        return [panel for panel in self.sweep.get("panels", ()) if panel not in self.panels]

    @property
    def without_reference(self) -> list[str]:
        """The panels in which the reference has no result."""
        return [panel for panel, lines in self.panels.items() if self.reference not in lines]

    @cached_property
    def ceilings(self) -> frozenset[str]:
        """The lines of which every client sends its update: they do not compete."""
        return frozenset(run.cell["line"] for run in self.runs if run.cell["rule"] == ALL_CLIENTS)

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for lines in self.panels.values() for runs in lines.values() for run in runs]

    @property
    def shared(self) -> str:
        """What all panels have in common, such as ``"layers 1, selected 2"``."""
        first, *others = (panel.split(", ") for panel in self.panels)
        return ", ".join(part for part in first if all(part in other for other in others))

    def label(self, panel: str) -> str:
        """Return what sets a panel apart from the others; empty where there is but one."""
        shared = self.shared.split(", ")
        return ", ".join(part for part in panel.split(", ") if part not in shared)

    def row(self, panel: str, line: str) -> str:
        """Return what tells a line of a panel from all others."""
        return ": ".join(filter(None, (self.label(panel), line)))


@dataclass(frozen=True)
class Comparison:
    """One line against the reference, over the seeds that both have.

    Attributes
    ----------
    line : str
        The other line.
    seeds : int
        How many pairs.
    difference : float
        Mean of the reference's converged accuracy minus the other's.
    p, p_holm : float
        Of Wilcoxon's signed-rank test, two-sided; and after Holm's correction for all comparisons
        of the panel.
    least_p : float
        The smallest p that so many pairs can give at all.
    """

    line: str
    seeds: int
    difference: float
    p: float
    p_holm: float
    least_p: float


def read_results(folder: Path) -> SweepResults:
    """Read a sweep's folder.

    Raises
    ------
    FileNotFoundError
        If it holds no sweep.
    ValueError
        If no cell is finished, or if a file is damaged; names it.
    """
    if not (folder / SWEEP).is_file():
        raise FileNotFoundError(
            f"{folder} has no {SWEEP}: give the folder that pncs sweep or pncs reproduce wrote "
            "(for table1, give pncs reproduce table1 again, which runs only what is missing)"
        )
    sweep = _read_description(folder / SWEEP)
    panels: dict[str, dict[str, list[Run]]] = {}
    missing = []
    for name in sweep["cells"]:
        path = folder / CELLS / name
        if not path.exists():
            missing.append(path.stem)
            continue
        cell, rounds, summary = read_cell(path)
        runs = panels.setdefault(cell["panel"], {}).setdefault(cell["line"], [])
        runs.append(Run(cell, rounds, summary))
    if not panels:
        raise ValueError(f"{folder} has no finished run, so there is nothing to report")
    for lines in panels.values():
        for runs in lines.values():
            runs.sort(key=lambda run: int(run.cell["seed"]))
    return SweepResults(sweep, panels, tuple(missing))


def _read_description(path: Path) -> Mapping[str, Any]:
    try:
        sweep: Mapping[str, Any] = read_lines(path)[0]
        names, report = sweep["cells"], sweep["report"]
        if not all(isinstance(panel, str) for panel in sweep.get("panels", ())):
            raise ValueError
        if not sweep["title"].isprintable() or len(set(names)) < len(names):
            raise ValueError
        if any(Path(name).name != name or not name.endswith(".jsonl") for name in names):
            raise ValueError
        Report(**{key: tupled(value) for key, value in report.items()})
        if not report["reference"]:  # as 0.1.0 left it where the sweep's file names none
            rule, queue = sweep["rules"][0], sweep["queue"]
            report["reference"] = rule if len(queue) == 1 else f"{rule} L={queue[0]}"
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path} is damaged: give the command again that ran the sweep, which writes it anew"
        ) from None
    return sweep


def mean_interval(values: Vector) -> tuple[Vector, Vector]:
    """Return the mean over seeds and half of its 95% interval, by Student's t.

    Parameters
    ----------
    values : np.ndarray
        Shape (seeds, ...). With one seed the interval is NaN.
    """
    n = len(values)
    mean = values.mean(axis=0)
    if n == 1:
        return mean, np.full_like(mean, np.nan)
    error = values.std(axis=0, ddof=1) / n**0.5
    return mean, error * float(stats.t.ppf(0.975, n - 1))


def percent(share: float) -> str:
    """Return a share in percent, with as many digits as it has."""
    return f"{100 * share:g}%"


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down correction for all of them."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted = [0.0] * len(p)
    largest = 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = largest
    return adjusted


def compare(lines: Mapping[str, Sequence[Run]], reference: str) -> list[Comparison]:
    """Test the converged accuracy of a panel's reference against every other line's."""
    if reference not in lines:
        return []
    own = {run.cell["seed"]: run.converged for run in lines[reference]}
    found: list[tuple[str, Vector, float]] = []
    for line, runs in lines.items():
        pairs = [own[r.cell["seed"]] - r.converged for r in runs if r.cell["seed"] in own]
        if line != reference and pairs:
            differences = np.array(pairs)
            found.append((line, differences, _wilcoxon(differences)))
    adjusted = holm([p for _, _, p in found])
    return [
        Comparison(line, len(d), float(d.mean()), p, corrected, min(1.0, 2.0 ** (1 - len(d))))
        for (line, d, p), corrected in zip(found, adjusted, strict=True)
    ]


def rounds_to_reach(runs: Sequence[Run], target: float) -> tuple[float | None, int]:
    """Return the median round that reaches an accuracy, and how many runs reach it.

    A run that never does counts as later than all rounds; None if that is so of the median.
    """
    reached = [
        float(np.argmax(run.accuracy >= target)) + 1 if (run.accuracy >= target).any() else np.inf
        for run in runs
    ]
    median = float(np.median(reached))
    return (median if np.isfinite(median) else None), int(np.isfinite(reached).sum())


def _wilcoxon(differences: Vector) -> float:
    if len(differences) < 2 or not differences.any():
        return 1.0
    # All signs are tried up to 13 pairs: exact, also with ties.
    method = stats.PermutationMethod(n_resamples=9999, rng=np.random.default_rng(0))
    return float(stats.wilcoxon(differences, method=method).pvalue)
