"""One page on a board, and its twin in Markdown: which rule where, in what was measured."""

# Names of rules and settings may have commas, so lists of them have semicolons.

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pncs_flower.files import write_whole
from pncs_flower.plain_text import counted

from ..board.results import TRAININGS, BoardResults
from ..run.early_stopping import LAST
from ..sweep.progress import BYTES, ROUNDS, TIME
from .advice_of_board import advice
from .document import Command, Drawing, Items, Part, Section, Words, write_both
from .page import write_csv
from .picture_of_board import draw_board
from .ranks_of_board import ranks
from .reference_of_board import reference
from .rules_of_board import entries, rules
from .settings_of_board import how_to_read, settings

PAGE, TWIN, PICTURE = "report.html", "leaderboard.md", "leaderboard.svg"
"""Names of the page, of its twin in Markdown and of the picture, in a board's folder."""

NUMBERS = "leaderboard.csv"
"""Name of the file with the numbers."""


def write_board(folder: Path, results: BoardResults) -> Path:
    """Write the page, its twin, the picture and the numbers of a board."""
    picture = draw_board(results)
    write_whole(folder / PICTURE, picture.file)
    _write_numbers(folder / NUMBERS, results)
    drawn: list[Part] = [Drawing(picture.on_page, picture.words, PICTURE), Words(picture.caption)]
    sections = [
        Section("picture", "All rules in all settings", "Picture", drawn),
        advice(results),
        ranks(results),
        *reference(results),
        rules(results),
        how_to_read(),
        *settings(results),
        _made(results),
    ]
    return write_both(folder / PAGE, results.about.title, _lead(results), sections, twin=TWIN)


def _lead(results: BoardResults) -> str:
    there = [*results.settings.values()]
    runs = sum(len(each.results.runs) for each in there)
    lead = (
        f"{entries(results)} in {counted(len(there), 'setting')}, "
        f"{counted(runs, 'run')}. {results.about.about}"
    ).strip()
    lacking = [
        f"{each.name} {counted(len(each.results.missing), 'run')}"
        for each in there
        if each.results.missing
    ]
    lacking += [f"{name} all runs" for name in results.missing]
    return f"{lead} **Not there yet: {'; '.join(lacking)}.**" if lacking else lead


def _made(results: BoardResults) -> Section:
    there = [*results.settings.values()]
    seeds = sorted({len(runs) for each in there for runs in each.runs.values()})
    releases = {
        f"{name} {version}"
        for each in there
        for run in each.results.runs
        for name, version in run.summary["versions"].items()
    }
    texts = [
        f"**Seeds:** {' or '.join(map(str, seeds))} for each rule; each has its own partition, "
        "initial weights and draws, the same for all rules.",
        "**Learning rates:** every rule of a setting had the same treatment, which its section "
        "names. One rate for all favours none on purpose, but need not be any rule's best.",
        '**Accuracy** is that of the test examples; "at the end" the mean of the last '
        f"{LAST} rounds. **Bytes** are those of record contents, before the choice and after, "
        "without framing. **Time** is simulated, and nothing that the simulation itself took.",
        f"**Made with** {', '.join(sorted(releases))}.",
    ]
    parts: list[Part] = [Items(texts)]
    if results.about.command:
        again = "The same command makes it again, and goes on where it stopped:"
        parts += [Words(again), Command(results.about.command)]
    parts.append(
        Words(
            "`pncs report FOLDER/SETTING` writes a page on one setting, with curves and paired "
            f"tests; `{NUMBERS}` has the numbers of this one."
        )
    )
    return Section("made", "How it was made", "How it was made", parts)


def _write_numbers(path: Path, results: BoardResults) -> None:
    rows: list[Sequence[object]] = []
    for key, each in results.settings.items():
        for line, runs in each.runs.items():
            reached = [each.to_target(line, spent) for spent in (ROUNDS, TIME, BYTES, TRAININGS)]
            took = [r.median if r and np.isfinite(r.median) else None for r in reached]
            own = [each.ends[line], each.half(line), each.behind(line), each.place(line)]
            rows.append([key, line, len(runs), *own, each.target, *took, each.training(line)])
    headings = (
        "setting,rule,seeds,at the end,half of the interval,below all,place,target,rounds,"
        "simulated seconds,bytes,trainings,train in a round"
    )
    write_csv(path, headings, rows)
