"""One page on a sweep: pictures, tables, tests and settings in a single HTML file.

What is to be shown besides is one more value for ``sweep.html``, and its place there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ..run.early_stopping import LAST
from ..scores import score_of
from ..sweep.cell import Run
from ..sweep.progress import (
    BYTES,
    ROUNDS,
    TIME,
    UPLOAD,
    Reached,
    Spent,
    known,
    spent_until,
    to_reach,
)
from ..sweep.results import SweepResults
from ..sweep.statistics import Comparison, compare, judge, mean_interval, percent
from .figures import draw_choices, draw_curves, draw_similarities
from .page import write_csv, write_page
from .units import BYTES as BYTE_UNITS
from .units import SECONDS, Unit, in_unit, unit_for

REPORT = "report.html"
"""Name of the page in a sweep's folder."""

# What a summary says of whom a run has served, and how to write it.
_SERVED = (
    ("never-chosen", ".1f"),
    ("longest-wait", ".1f"),
    ("gini", ".2f"),
    ("jain", ".2f"),
    ("mean-client-accuracy", ".3f"),
    ("worst-tenth-accuracy", ".3f"),
    ("client-accuracy-variance", ".4f"),
)

# What it takes to reach a score, and the captions that say so.
_SPENT = {
    ROUNDS: "Rounds",
    TIME: "Simulated time, in {}, up to the end of that round",
    BYTES: "Bytes to and from all clients, in {}",
}

Table = tuple[list[str], list[list[str]]]  # headings and rows


def write_report(folder: Path, results: SweepResults) -> Path:
    """Write ``report.html``, which needs no other file, its pictures as PNG, its numbers as CSV."""
    runs, about, tests = results.runs, results.about, compare(results)
    _write_csv(folder, results, tests)
    releases = _values([run.summary["versions"] for run in runs])
    settings = _values([run.cell["settings"] for run in runs])
    return write_page(
        folder / REPORT,
        "sweep.html",
        results=results,
        last=LAST,
        data=", ".join(sorted({run.summary["data"] for run in runs})),
        seeds=len({run.cell["seed"] for run in runs}),
        early=sum(len(run.trained) < len(run.rounds) for run in runs),
        notes=_notes(results, releases),
        claims=[(claim.text, *judge(claim, results)) for claim in about.report.claims],
        rounds=draw_curves(results, ROUNDS, folder / "rounds.png"),
        time=draw_curves(results, TIME, folder / "time.png"),
        bytes=draw_curves(results, BYTES, folder / "bytes.png"),
        upload=draw_curves(results, UPLOAD, folder / "upload.png"),
        costs=_costs(results),
        converged=_converged(results),
        after_rounds=_after_rounds(results),
        reached=[_reached(results, spent, words) for spent, words in _SPENT.items()],
        served=_served(results),
        tests=_tests(results, tests),
        choices=draw_choices(results, folder / "choices.png"),
        similarities=draw_similarities(results, folder / "similarities.png"),
        tuning=_tuning(results),
        releases=", ".join(f"{name} {' and '.join(those)}" for name, those in releases.items()),
        differing=[(key, ", ".join(each)) for key, each in settings.items() if len(each) > 1],
        shared=[(key, *each) for key, each in settings.items() if len(each) == 1],
    )


def _notes(results: SweepResults, releases: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a reader must know before comparing."""
    notes = sorted({note for run in results.runs for note in run.summary["notes"]})
    if any(len({len(runs) for runs in lines.values()}) > 1 for lines in results.panels.values()):
        notes.append("some means are over fewer seeds than others: compare by the paired tests")
    if any(len(those) > 1 for those in releases.values()):
        notes.append(
            "some runs were made with other releases than others (see the settings), which may "
            "have other results: delete the older files in cells and run again, to compare"
        )
    return notes


def _costs(results: SweepResults) -> list[list[str]]:
    rows = []
    for panel, line, runs in results.groups:
        trained = [row for run in runs for row in run.trained]
        up = sum(sum(row["bytes_up"].values()) for row in trained)
        updates = sum(row["bytes_up"].get("training", 0) for row in trained)
        down = sum(sum(row["bytes_down"].values()) for row in trained)
        shown = [f"{n / len(trained) / 1e3:,.1f}" for n in (up - updates, updates, up, down)]
        rows.append([results.row(panel, line), *shown])
    return rows


def _converged(results: SweepResults) -> Table:
    columns = {
        results.label(panel) or results.score: {
            line: mean_interval(np.array([run.converged for run in runs]))
            for line, runs in by_line.items()
        }
        for panel, by_line in results.panels.items()
    }
    return _best_in_bold(results, columns)


def _after_rounds(results: SweepResults) -> Table:
    most = min(len(run.rounds) for run in results.runs)
    plots = results.panels.values()
    # A mean over other plots than those of the others would not compare with theirs.
    everywhere = [line for line in results.lines if all(line in by_line for by_line in plots)]
    means = {
        line: np.mean([np.mean([r.scores[:most] for r in p[line]], axis=0) for p in plots], axis=0)
        for line in everywhere
    }
    columns = {
        f"round {n}": {line: (mean[n - 1], np.nan) for line, mean in means.items()}
        for n in results.about.report.rounds
        if n <= most
    }
    return _best_in_bold(results, columns)


def _best_in_bold(
    results: SweepResults, columns: Mapping[str, Mapping[str, tuple[Any, Any]]]
) -> Table:
    """Return a table of means of lines and half their intervals, the largest mean in bold."""
    rows = {line: [line] for line in results.lines if columns}
    for column in columns.values():
        competing = [line for line in column if line not in results.ceilings]
        best = max(competing, key=lambda line: column[line][0], default=None)
        for line, cells in rows.items():
            mean, half = column.get(line, (np.nan, np.nan))
            interval = f" ± {half:.3f}" if np.isfinite(half) else ""
            cells.append(_bold(f"{mean:.3f}{interval}", line == best) if line in column else "-")
    return ["rule", *columns], list(rows.values())


def _reached(results: SweepResults, spent: Spent, words: str) -> tuple[str, Table]:
    """Return what it took to reach each target, and its caption; no rows where it is not known."""
    targets = results.about.report.targets
    found = {
        results.row(panel, line): [to_reach(runs, spent, target) for target in targets]
        for panel, line, runs in results.groups
        if known(runs, spent)
    }
    medians = [each.median for row in found.values() for each in row]
    largest = max(filter(np.isfinite, medians), default=0.0)
    units = {TIME: SECONDS, BYTES: BYTE_UNITS}.get(spent, (Unit("", 1),))
    unit = unit_for(largest, units)
    rows = [[row, *(_when(each, unit) for each in those)] for row, those in found.items()]
    return words.format(unit.name), (["rule", *map(percent, targets)], rows)


def _when(reached: Reached, unit: Unit) -> str:
    median, low, high = (
        in_unit(value, unit) if np.isfinite(value) else "never"
        for value in (reached.median, reached.low, reached.high)
    )
    interval = f" ({low} to {high})" if reached.seeds > 1 and low != high else ""
    return f"{median}{interval}; {reached.there} of {reached.seeds}"


def _served(results: SweepResults) -> list[list[str]]:
    """Return whom each line has served; nothing of runs of a release that did not note it."""
    rows = []
    for panel, line, runs in results.groups:
        if all("gini" in run.summary for run in runs):
            cells = [_mean([run.summary[key] for run in runs], form) for key, form in _SERVED]
            rows.append([results.row(panel, line), *cells])
    return rows


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, half = mean_interval(np.array(known, dtype=np.float64))
    return f"{mean:{form}}" + (f" ± {half:{form}}" if np.isfinite(half) else "")


def _tests(results: SweepResults, tests: Sequence[Comparison]) -> list[list[str]]:
    return [
        [
            results.row(test.panel, test.line),
            f"{test.difference:+.3f}",
            str(test.seeds),
            f"{test.p:.3f}",
            _bold(f"{test.p_holm:.3f}", test.p_holm < 0.05),
            f"{test.least_p:.3f}",
        ]
        for test in tests
    ]


def _tuning(results: SweepResults) -> Table:
    tuned = results.about.tuned
    rates = list(dict.fromkeys(rate for each in tuned for rate in each.accuracies))
    rows = []
    for each in tuned:
        shown = (_bold(f"{each.accuracies[r]:.3f}", float(r) == each.lr) for r in rates)
        rows.append([results.row(each.panel, each.line), *shown])
    return ["rule", *(f"lr {rate}" for rate in rates)], rows


def _values(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return all values that each key has in runs, "-" where it has none."""
    keys = dict.fromkeys(key for each in of_runs for key in each)
    return {key: list(dict.fromkeys(str(each.get(key, "-")) for each in of_runs)) for key in keys}


def _bold(text: str, wanted: bool) -> str:
    return Markup("<strong>{}</strong>").format(text) if wanted else text


def _write_csv(folder: Path, results: SweepResults, tests: Sequence[Comparison]) -> None:
    runs: list[list[object]] = []
    rounds: list[list[object]] = []
    reached: list[list[object]] = []
    for run in results.runs:
        own = [run.cell[key] for key in ("panel", "line", "seed")]
        served = [run.summary.get(key) for key, _ in _SERVED]  # None is written as nothing
        up, down = (
            [int(so_far) for so_far in each.tolist()] for each in (run.bytes_up, run.bytes_down)
        )
        seconds = [None] * len(up) if run.simulated is None else run.simulated.tolist()
        spent = [up[-1], down[-1], seconds[-1]]
        runs.append([*own, run.converged, *spent, *served, run.cell["command"]])
        for row, *so_far in zip(run.rounds, up, down, seconds, strict=True):
            values = [row["round"], score_of(row), row["loss"], *so_far]
            values.append(row.get("worst-tenth-accuracy"))
            rounds.append([*own, *values, " ".join(row["chosen"])])
        reached += [
            [*own, target, *(_until(run, each, target) for each in _SPENT)]
            for target in results.about.report.targets
        ]
    compared = [
        [t.panel, results.reference, t.line, t.seeds, t.difference, t.p, t.p_holm] for t in tests
    ]
    served_headings = ",".join(key.replace("-", " ") for key, _ in _SERVED)
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


def _until(run: Run, spent: Spent, target: float) -> float | None:
    """Return what a run had spent when it reached a score; None if it never did, or not known."""
    value = spent_until(run, spent, target) if known([run], spent) else np.inf
    if np.isinf(value):
        return None
    return value if spent == TIME else int(value)
