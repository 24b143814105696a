"""The table of a comparison: how good, how soon, how dear, how fair."""

from io import StringIO

import pytest
from rich.console import Console, RenderableType

from pncs_flower.simulations.report.side_by_side import courses, side_by_side
from pncs_flower.simulations.sweep.cell import Run
from pncs_flower.simulations.sweep.plan import Report
from pncs_flower.simulations.sweep.results import Description, SweepResults


def run(line: str, seed: int, *scores: float, gini: float = 0.5) -> Run:
    rows = [
        {"accuracy": score, "bytes_up": {"training": 1000}, "bytes_down": {"training": 5000}}
        for score in scores
    ]
    rule = "all" if line == "all" else line
    return Run({"line": line, "rule": rule, "seed": seed}, rows, {"gini": gini})


def results_of(lines: dict[str, list[Run]], *targets: float) -> SweepResults:
    return SweepResults(Description("a title", Report(targets=targets)), {"a panel": lines})


def printed(table: RenderableType) -> str:
    file = StringIO()
    Console(file=file, width=100).print(table)
    return file.getvalue()


def rows_of(lines: dict[str, list[Run]], *targets: float) -> tuple[str, dict[str, list[str]]]:
    text = printed(side_by_side(results_of(lines, *targets)))
    cells = [[each.strip() for each in row.split("│")] for row in text.splitlines() if "│" in row]
    return text, {row[1]: row[2:-1] for row in cells}


def test_a_row_says_how_good_how_soon_how_dear_and_how_fair() -> None:
    text, rows = rows_of(
        {
            "good": [run("good", 0, 0.5, 0.9), run("good", 1, 0.7, 0.7, gini=0.3)],
            "all": [run("all", 0, 0.9, 0.9), run("all", 1, 0.9, 0.9)],
        },
        *(0.6, 0.8, 0.95),
    )
    # By hand: both means are 0.7; the median of 2 and infinity is infinity, so 0.8 is not reached.
    assert rows["good"] == ["0.700 ± 0.000", "1.5", "2.0 kB", "10.0 kB", "0.40"]
    assert rows["all"] == ["0.900 ± 0.000", "1", "2.0 kB", "10.0 kB", "0.50"]
    assert "rounds to 60%" in text
    assert "95% interval over 2 seeds" in text


@pytest.mark.parametrize(
    ("targets", "heading", "of_high", "of_low"),
    [
        ((0.6, 0.7, 0.8), "rounds to 70%", "2 (2 of 3)", "never"),
        ((0.79, 0.95), "rounds to 79%", "never (1 of 3)", "never"),
        ((0.95,), "no run reaches 95%", "2.0 kB", "2.0 kB"),
        ((), "sent", "2.0 kB", "2.0 kB"),
    ],
)
def test_the_target_is_the_highest_that_is_reached(
    targets: tuple[float, ...], heading: str, of_high: str, of_low: str
) -> None:
    lines = {
        "low": [run("low", 0, 0.1, 0.1)],
        "high": [run("high", seed, *s) for seed, s in enumerate([(0.1, 0.8), (0.75, 0.7), (0, 0)])],
    }
    text, rows = rows_of(lines, *targets)
    assert heading in text
    assert (rows["high"][1], rows["low"][1]) == (of_high, of_low)


def test_what_the_ceiling_alone_reaches_is_not_asked_of_the_others() -> None:
    lines = {"good": [run("good", 0, 0.5, 0.7)], "all": [run("all", 0, 0.9, 0.9)]}
    text, rows = rows_of(lines, 0.6, 0.8)
    assert "rounds to 60%" in text
    assert (rows["good"][1], rows["all"][1]) == ("2", "1")
    assert "rounds to 80%" in rows_of(lines, 0.8)[0]


def test_the_course_of_each_line_is_drawn_on_one_scale() -> None:
    lines = {
        "low": [run("low", 0, 0.0, 0.2, 0.2), run("low", 1, 0.2, 0.0, 0.0)],
        "high": [run("high", 0, 0.1, 0.5, 0.8)],
    }
    text = printed(courses(results_of(lines)))
    assert "rounds 1 to 3, from 0.10 to 0.80" in text
    drawn = dict(line.split() for line in text.splitlines()[1:])
    assert drawn == {"low": "▁▁▁", "high": "▁▅█"}
