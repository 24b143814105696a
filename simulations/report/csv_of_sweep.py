"""The numbers of a sweep as CSV, for tables and plots of one's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..scores import score_of
from ..sweep.cell import Run
from ..sweep.progress import TIME, Spent, known, spent_until
from ..sweep.results import SweepResults
from ..sweep.statistics import Comparison
from .page import write_csv
from .tables_of_sweep import SERVED, TO_REACH


class Download(NamedTuple):
    """A file beside a page, and what is in it."""

    name: str
    words: str


def write_numbers(
    folder: Path, results: SweepResults, tests: Sequence[Comparison]
) -> list[Download]:
    """Write all numbers of a report, and return what is in each of the files."""
    runs: list[list[object]] = []
    rounds: list[list[object]] = []
    reached: list[list[object]] = []
    for run in results.runs:
        own = [run.cell[key] for key in ("panel", "line", "seed")]
        served = [run.summary.get(key) for key, _ in SERVED]  # None is written as nothing
        up, down = (
            [int(so_far) for so_far in each.tolist()] for each in (run.bytes_up, run.bytes_down)
        )
        seconds = [None] * len(up) if run.simulated is None else run.simulated.tolist()
        spent = [up[-1], down[-1], seconds[-1]]
        converged = run.converged if np.isfinite(run.converged) else None
        runs.append([*own, converged, *spent, *served, run.cell["command"]])
        for row, *so_far in zip(run.rounds, up, down, seconds, strict=True):
            values = [row["round"], score_of(row), row["loss"], *so_far]
            values.append(row.get("worst-tenth-accuracy"))
            rounds.append([*own, *values, " ".join(row["chosen"])])
        reached += [
            [*own, target, *(_until(run, each, target) for each in TO_REACH)]
            for target in results.about.report.targets
        ]
    compared = [
        [t.panel, results.reference, t.line, t.seeds, t.difference, t.p, t.p_holm] for t in tests
    ]
    served_headings = ",".join(key.replace("-", " ") for key, _ in SERVED)
    headings = (
        f"panel,rule,seed,converged {results.score},bytes sent,bytes received,simulated seconds,"
        f"{served_headings},command"
    )
    write_csv(folder / "runs.csv", headings, runs)
    headings = (
        f"panel,rule,seed,round,{results.score},loss,bytes,bytes received,simulated seconds,"
        "worst tenth accuracy,chosen"
    )
    write_csv(folder / "rounds.csv", headings, rounds)
    headings = "panel,rule,seed,target,rounds,simulated seconds,bytes both ways"
    write_csv(folder / "reached.csv", headings, reached)
    headings = "panel,reference,against,seeds,difference,p,p (Holm)"
    write_csv(folder / "tests.csv", headings, compared)
    found = [
        Download("rounds.csv", f"every round of every run: {results.score}, loss, bytes, chosen"),
        Download("runs.csv", "every run: how it ended, what it spent, its command"),
    ]
    if reached:
        found.append(Download("reached.csv", f"what each run took to reach each {results.score}"))
    if tests:
        found.append(Download("tests.csv", "the paired tests"))
    return found


def _until(run: Run, spent: Spent, target: float) -> float | None:
    """Return what a run had spent when it reached a score; None if it never did, or not known."""
    value = spent_until(run, spent, target) if known([run], spent) else np.inf
    if np.isinf(value):
        return None
    return value if spent == TIME else int(value)
