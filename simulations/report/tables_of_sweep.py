"""The tables of a report on a sweep: headings, and rows that begin with what they are about."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from ..sweep.progress import BYTES, ROUNDS, TIME, Reached, Spent, known, to_reach
from ..sweep.results import SweepResults
from ..sweep.statistics import Comparison, mean_interval, percent, sortable
from .units import BYTES as BYTE_UNITS
from .units import SECONDS, Unit, in_unit, unit_for
from .words_of_sweep import SURE, competing, least_and_most

COUNT = ".1f"
"""How to write a mean of counts."""

SERVED = (
    ("never-chosen", COUNT),
    ("longest-wait", COUNT),
    ("gini", ".2f"),
    ("jain", ".2f"),
    ("mean-client-accuracy", ".3f"),
    ("worst-tenth-accuracy", ".3f"),
    ("client-accuracy-variance", ".4f"),
)
"""What a summary says of whom a run has served, and how to write it."""

TO_REACH: Mapping[Spent, str] = {
    ROUNDS: "Rounds",
    TIME: "Simulated time, in {}, up to the end of that round",
    BYTES: "Bytes to and from all clients, in {}",
}
"""What it takes to reach a score, and the captions that say so."""

Cell = str | Markup


class Table(NamedTuple):
    """A table, and what it says in a sentence or two."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: str = ""


def converged_table(results: SweepResults, tests: Sequence[Comparison]) -> Table:
    """Return converged scores, the best first, with what the tests say of each."""
    columns = {
        results.label(panel) or results.score: {
            line: mean_interval(np.array([run.converged for run in runs]))
            for line, runs in by_line.items()
        }
        for panel, by_line in results.panels.items()
    }
    marks = {(test.panel, test.line): _mark(test, results.reference) for test in tests}
    found = [
        {line: mark for (panel, line), mark in marks.items() if panel == each}
        for each in results.panels
    ]
    return _best_in_bold(results, columns, found)


def after_rounds_table(results: SweepResults) -> Table:
    """Return scores after some rounds, of lines that have a result in every panel."""
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


def in_order_of_score(results: SweepResults) -> list[str]:
    """Return the lines, by the mean of their converged scores; those missing in a panel last."""

    def key(line: str) -> tuple[bool, float]:
        runs = [by_line[line] for by_line in results.panels.values() if line in by_line]
        mean = np.mean([np.mean([run.converged for run in each]) for each in runs])
        return len(runs) < len(results.panels), -sortable(float(mean))

    return sorted(results.lines, key=key)


def highest_score(results: SweepResults) -> float:
    """Return the highest score of any round of any run."""
    return max(float(np.nanmax(run.scores, initial=-np.inf)) for run in results.runs)


def unreached(results: SweepResults) -> list[float]:
    """Return the targets that no run reaches."""
    best = highest_score(results)
    return [target for target in results.about.report.targets if target > best]


def reached_table(results: SweepResults, spent: Spent) -> tuple[str, Table]:
    """Return what it took to reach each target that a run reaches, and a caption.

    There are no rows where that is not known.
    """
    beyond = unreached(results)
    targets = [each for each in results.about.report.targets if each not in beyond]
    found = {
        (panel, line): [to_reach(runs, spent, target) for target in targets]
        for panel, line, runs in results.groups
        if targets and known(runs, spent)
    }
    medians = [each.median for row in found.values() for each in row]
    largest = max(filter(np.isfinite, medians), default=0.0)
    units = {TIME: SECONDS, BYTES: BYTE_UNITS}.get(spent, (Unit("", 1),))
    unit = unit_for(largest, units)
    best: dict[tuple[str, int], float] = {}
    for (panel, line), row in found.items():
        if line not in results.ceilings:
            for place, each in enumerate(row):
                best[panel, place] = min(best.get((panel, place), np.inf), each.median)
    rows = [
        [
            results.row(panel, line),
            *(
                _bold(
                    _when(each, unit),
                    len(competing(results)) > 1
                    and np.isfinite(each.median)
                    and line not in results.ceilings
                    and each.median == best[panel, place],
                )
                for place, each in enumerate(row)
            ),
        ]
        for (panel, line), row in found.items()
    ]
    return TO_REACH[spent].format(unit.name), Table(["rule", *map(percent, targets)], rows)


def cost_table(results: SweepResults) -> Table:
    """Return what a round of each line sends, and what a run takes."""
    totals = [float(run.bytes_up[-1] + run.bytes_down[-1]) for run in results.runs]
    unit = unit_for(max(totals), BYTE_UNITS)
    times = [run.simulated[-1] for run in results.runs if run.simulated is not None]
    clock = unit_for(max(times, default=0.0), SECONDS)
    rows: list[list[Cell]] = []
    sent, taken = {}, {}
    for panel, line, runs in results.groups:
        name = results.row(panel, line)
        trained = [row for run in runs for row in run.trained]
        up = sum(sum(row["bytes_up"].values()) for row in trained)
        updates = sum(row["bytes_up"].get("training", 0) for row in trained)
        down = sum(sum(row["bytes_down"].values()) for row in trained)
        shown = [f"{n / len(trained) / 1e3:,.1f}" for n in (up - updates, updates, up, down)]
        shown.append(in_unit((up + down) / len(runs), unit))
        sent[name] = up / len(trained) / 1e3
        if times:
            own = [float(run.simulated[-1]) for run in runs if run.simulated is not None]
            shown.append(in_unit(float(np.mean(own)), clock) if own else "-")
            if own:
                taken[name] = float(np.mean(own)) / clock.size
        rows.append([name, *shown])
    headings = ["rule", "before the choice, kB", "updates, kB", "sent by clients, kB"]
    headings += ["sent to clients, kB", f"a whole run, both ways, {unit.name}"]
    least, most = "In a round clients send the least with", "The most with"
    words = least_and_most(sent, ",.1f", least, most, "In a round clients send", " kB")
    if times:
        headings.append(f"simulated time of a run, {clock.name}")
        alike = "Of simulated time a run takes"
        words += " " + least_and_most(
            taken, ",.3g", f"{alike} the least with", most, alike, f" {clock.name}"
        )
    return Table(headings, rows, words)


def served_table(results: SweepResults) -> Table:
    """Return whom each line has served; nothing of runs of a release that did not note it."""
    rows = []
    never, worst = {}, {}
    seeds = max(len(runs) for _, _, runs in results.groups)
    # A number of clients or rounds; only its mean over seeds has decimals.
    forms = {key: ".0f" if seeds == 1 and form == COUNT else form for key, form in SERVED}
    for panel, line, runs in results.groups:
        if all("gini" in run.summary for run in runs):
            name = results.row(panel, line)
            cells = [_mean([run.summary[k] for run in runs], form) for k, form in forms.items()]
            rows.append([name, *cells])
            never[name] = float(np.mean([run.summary["never-chosen"] for run in runs]))
            own = [run.summary["worst-tenth-accuracy"] for run in runs]
            if all(value is not None for value in own):
                worst[name] = float(np.mean(own))
    headings = ["rule", "never chosen", "longest wait", "Gini's coefficient"]
    headings += ["Jain's fairness index", "clients' mean", "worst tenth", "variance over clients"]
    words = []
    if never:
        alike = "Clients never chosen:"
        least, most = f"{alike} the fewest with", "The most with"
        words.append(least_and_most(never, forms["never-chosen"], least, most, alike))
    if worst:
        least, most = "Accuracy of the worst-served tenth: the lowest with", "The highest with"
        alike = "Accuracy of the worst-served tenth:"
        words.append(least_and_most(worst, ".3f", least, most, alike))
    return Table(headings, rows, " ".join(words))


def tests_table(results: SweepResults, tests: Sequence[Comparison]) -> Table:
    """Return the paired tests of the reference against each other line."""
    rows = [
        [
            results.row(test.panel, test.line),
            f"{test.difference:+.3f}",
            str(test.seeds),
            f"{test.p:.3f}",
            _bold(f"{test.p_holm:.3f}", test.p_holm < SURE),
            f"{test.least_p:.3f}",
        ]
        for test in tests
    ]
    return Table(["against", "difference", "seeds", "p", "p (Holm)", "least p"], rows)


def tuning_table(results: SweepResults) -> Table:
    """Return the scores by which learning rates were chosen."""
    tuned = results.about.tuned
    rates = list(dict.fromkeys(rate for each in tuned for rate in each.accuracies))
    rows = []
    for each in tuned:
        shown = (_bold(f"{each.accuracies[r]:.3f}", float(r) == each.lr) for r in rates)
        rows.append([results.row(each.panel, each.line), *shown])
    return Table(["rule", *(f"lr {rate}" for rate in rates)], rows)


def _best_in_bold(
    results: SweepResults,
    columns: Mapping[str, Mapping[str, tuple[Any, Any]]],
    marks: Sequence[Mapping[str, Markup | None]] = (),
) -> Table:
    """Return a table of means of lines and half their intervals, the largest mean in bold."""
    rows: dict[str, list[Cell]] = {line: [line] for line in in_order_of_score(results) if columns}
    several = len(competing(results)) > 1
    for number, column in enumerate(columns.values()):
        there = [line for line in column if line not in results.ceilings]
        best = max(there, key=lambda line: sortable(column[line][0]), default="") if several else ""
        for line, cells in rows.items():
            mean, half = column.get(line, (np.nan, np.nan))
            interval = f" ± {half:.3f}" if np.isfinite(half) else ""
            text = _bold(f"{mean:.3f}{interval}", line == best) if np.isfinite(mean) else "-"
            mark = marks[number].get(line) if marks else None
            cells.append(Markup("{} {}").format(text, mark) if mark else text)
    return Table(["rule", *columns], list(rows.values()))


def _mark(test: Comparison, reference: str) -> Markup | None:
    """Return a sign for a line that differs from the reference by more than chance."""
    if test.p_holm >= SURE:
        return None
    sign, word = ("▼", "below") if test.difference > 0 else ("▲", "above")
    return Markup('<span class="{}" title="{} {}"><span aria-hidden="true">{}</span>').format(
        word, word, reference, sign
    ) + Markup('<span class="unseen">{} {}</span></span>').format(word, reference)


def _when(reached: Reached, unit: Unit) -> str:
    median, low, high = (
        in_unit(value, unit) if np.isfinite(value) else "never"
        for value in (reached.median, reached.low, reached.high)
    )
    if reached.seeds == 1:
        return median
    interval = f" ({low} to {high})" if low != high else ""
    return f"{median}{interval}; {reached.there} of {reached.seeds}"


def _mean(values: Sequence[float | None], form: str) -> str:
    known_values = [value for value in values if value is not None]
    if not known_values:
        return "-"
    mean, half = mean_interval(np.array(known_values, dtype=np.float64))
    return f"{mean:{form}}" + (f" ± {half:{form}}" if np.isfinite(half) else "")


def _bold(text: str, wanted: bool) -> Cell:
    return Markup("<strong>{}</strong>").format(text) if wanted else text
