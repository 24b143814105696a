"""One page on a sweep: pictures, verdicts, tables and settings in a single HTML file.

What is to be shown besides is one more value for ``sweep.html``, and its place there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pncs_flower.plain_text import counted, first_of, in_ranges, listed

from ..choices import settings_with_comments
from ..folders import REPORT
from ..sweep.progress import BYTES, ROUNDS, TIME, UPLOAD
from ..sweep.results import SweepResults
from ..sweep.statistics import compare, judge, percent
from .csv_of_sweep import Download, write_numbers
from .page import write_page
from .pictures_of_sweep import BANDS_FROM, draw_choices, draw_curves, draw_similarities, looks_of
from .tables_of_sweep import (
    TO_REACH,
    after_rounds_table,
    converged_table,
    cost_table,
    highest_score,
    in_order_of_score,
    reached_table,
    served_table,
    tests_table,
    tuning_table,
    unreached,
)
from .words_of_sweep import SURE, competing, last_rounds, verdicts_of, what_was_compared

_VIEWS = {
    ROUNDS: ("rounds", "rounds"),
    TIME: ("simulated time", "time"),
    BYTES: ("bytes", "bytes"),
    UPLOAD: ("bytes sent by clients", "upload"),
}


def write_report(folder: Path, results: SweepResults) -> Path:
    """Write ``report.html``, which needs no other file, its pictures as PNG, its numbers as CSV."""
    runs, about, tests = results.runs, results.about, compare(results)
    looks, in_order = looks_of(results), in_order_of_score(results)
    downloads = write_numbers(folder, results, tests)
    curves = [
        (name, file, plots)
        for over, (name, file) in _VIEWS.items()
        if (plots := draw_curves(results, over, folder / f"{file}.png"))
    ]
    choices = draw_choices(results, folder / "choices.png")
    similarities = draw_similarities(results, folder / "similarities.png")
    downloads += [Download(f"{file}.png", f"the curves over {name}") for name, file, _ in curves]
    if choices:
        downloads.append(Download("choices.png", "who was chosen when"))
    if similarities:
        compared = similarities.compared
        downloads.append(Download("similarities.png", f"how alike the clients' {compared} are"))
    highest = highest_score(results)
    releases = _values([run.summary["versions"] for run in runs])
    settings = _values([run.cell["settings"] for run in runs])
    meaning = {key: words for keys, words in settings_with_comments() for key in keys}
    data = ", ".join(sorted({run.summary["data"] for run in runs}))
    return write_page(
        folder / REPORT,
        "sweep.html",
        results=results,
        last=last_rounds(results),
        compared=what_was_compared(results, data),
        seeds=max(len(own) for _, _, own in results.groups),
        several=len(competing(results)) > 1,
        told_apart=any(test.p_holm < SURE for test in tests),
        early=sum(len(run.trained) < len(run.rounds) for run in runs),
        notes=_notes(results, releases),
        bands_from=BANDS_FROM,
        looks=[(line, looks[line]) for line in in_order],
        curves=curves,
        verdicts=verdicts_of(results, tests),
        claims=[(claim.text, *judge(claim, results)) for claim in about.report.claims],
        end=converged_table(results, tests),
        after_rounds=after_rounds_table(results),
        reached=[reached_table(results, spent) for spent in TO_REACH],
        unreached=" or ".join(map(percent, unreached(results))),
        highest=f"{highest:.3f}" if np.isfinite(highest) else "",
        costs=cost_table(results),
        served=served_table(results),
        tests=tests_table(results, tests),
        choices=choices,
        similarities=similarities,
        tuning=tuning_table(results),
        releases=", ".join(f"{name} {' and '.join(those)}" for name, those in releases.items()),
        differing=[
            (key, _all_of(each), meaning.get(key, ""))
            for key, each in settings.items()
            if len(each) > 1
        ],
        shared=[
            (key, *each, meaning.get(key, "")) for key, each in settings.items() if len(each) == 1
        ],
        downloads=downloads,
    )


def _notes(results: SweepResults, releases: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a reader must know before comparing."""
    notes = sorted({note for run in results.runs for note in run.summary["notes"]})
    lost = [
        f"{results.row(panel, line)} ({n} of {counted(len(runs), 'run')})"
        for panel, line, runs in results.groups
        if (n := sum(not np.isfinite(run.scores).all() for run in runs))
    ]
    if lost:
        notes.append(
            f"not every round has a finite {results.score}: {first_of(lost, 8)}; where one has "
            'none, curves stop, for they are means of all seeds, and tables have "-"'
        )
    if any(len({len(runs) for runs in lines.values()}) > 1 for lines in results.panels.values()):
        notes.append("some means are over fewer seeds than others: compare by the paired tests")
    if any(len(those) > 1 for those in releases.values()):
        notes.append(
            "some runs were made with other releases than others (see the settings), which may "
            "have other results: delete the older files in cells and run again, to compare"
        )
    return notes


def _values(of_runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return all values that each key has in runs, "-" where it has none."""
    keys = dict.fromkeys(key for each in of_runs for key in each)
    return {key: list(dict.fromkeys(str(each.get(key, "-")) for each in of_runs)) for key in keys}


def _all_of(values: Sequence[str]) -> str:
    """Return values in one text, numbers in a row by their ends."""
    numbers = all(value.isdecimal() for value in values)
    return in_ranges(map(int, values)) if numbers else listed(values)
