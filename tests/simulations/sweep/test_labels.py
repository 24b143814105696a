"""Who is the ceiling and who the reference does not hang on a label, or on what has a result."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cells import change
from matplotlib.axes import Axes
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.report import pictures_of_sweep as pictures
from pncs_flower.simulations.report.figures import BLACK
from pncs_flower.simulations.report.of_sweep import write_report
from pncs_flower.simulations.report.pictures_of_sweep import Look
from pncs_flower.simulations.sweep.cell import Run
from pncs_flower.simulations.sweep.plan import Similar
from pncs_flower.simulations.sweep.progress import Spent
from pncs_flower.simulations.sweep.results import SweepResults, read_results
from pncs_flower.simulations.sweep.run import run_sweep
from pncs_flower.simulations.sweep.statistics import judge
from pncs_flower.simulations.sweep.sweep import Sweep

QUEUES = Sweep(
    "queues",
    ("pncs", "all"),
    clients=5,
    shards=(2, 10),
    queue=(2, 0),
    seeds=1,
    settings={"num-rounds": 1, "device": "cpu"},
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("queues")
    assert run_sweep(QUEUES, folder, 0, lambda *_: None) == {}
    return folder


@pytest.fixture
def folder(ran: Path, tmp_path: Path) -> Path:
    """A copy in which the ceiling is better than all others."""
    copy = shutil.copytree(ran, tmp_path / "sweep")
    for path in (copy / "cells").iterdir():
        about = json.loads(path.read_text().splitlines()[0])
        accuracy = 0.9 if is_ceiling(about) else 0.3
        change(path, r'"accuracy": [^,]+', f'"accuracy": {accuracy}')
    return copy


def is_ceiling(cell: Mapping[str, Any]) -> bool:
    return bool(cell["settings"]["num-selected"] == cell["clients"])


def lose(folder: Path, panel: str, line: str) -> None:
    for path in (folder / "cells").iterdir():
        about = json.loads(path.read_text().splitlines()[0])
        if about["line"] == line and about["panel"].startswith(panel):
            path.unlink()


def page_of(folder: Path) -> str:
    return write_report(folder, read_results(folder)).read_text()


def test_ceiling_is_called_the_same_whatever_the_lengths_of_the_queue() -> None:
    """It has none: a label with one would not be true."""
    lines = {(cell.line, cell.rule) for cell in QUEUES.cells()}
    assert lines == {("pncs L=2", "pncs"), ("pncs L=0", "pncs"), ("all", "all")}


def test_rule_is_the_one_of_the_sweep_whatever_its_label() -> None:
    sweep = replace(QUEUES, rules=("all L=0",), rule={"all L=0": {"strategy": "pncs"}}, queue=(-1,))
    assert {(cell.line, cell.rule) for cell in sweep.cells()} == {("all L=0", "all L=0")}


@pytest.mark.minutes
def test_ceiling_of_a_sweep_of_queues_does_not_compete_and_is_drawn_as_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bool] = []
    draw = pictures._draw_line

    def seen(axes: Axes, runs: list[Run], over: Spent, look: Look, size: float) -> object:
        drawn.append((look.colour == BLACK) == is_ceiling(runs[0].cell))
        return draw(axes, runs, over, look, size)

    monkeypatch.setattr(pictures, "_draw_line", seen)
    page = page_of(folder)
    assert re.search(r'<th scope="row">all[^<]*</th><td>0\.900</td><td>0\.900</td>', page)
    assert re.search(r'<th scope="row">pncs L=2</th><td><strong>0\.300</strong></td>', page)
    assert "all is the ceiling and does not compete)" in page
    assert drawn
    assert all(drawn)


def test_rule_that_has_a_ceilings_label_competes(folder: Path) -> None:
    for path in (folder / "cells").iterdir():
        change(path, r'"rule": "all"', '"rule": "mine"')
    results = read_results(folder)
    assert results.ceilings == frozenset()


def test_reference_is_written_down_before_anything_has_a_result(ran: Path) -> None:
    about = json.loads((ran / "sweep.json").read_text())
    assert about["report"]["reference"] == "pncs L=2"


@pytest.mark.minutes
@pytest.mark.parametrize("panel", ["shards 2", "shards"])
def test_reference_without_a_result_does_not_shift_to_another_rule(
    panel: str, folder: Path
) -> None:
    lose(folder, panel, "pncs L=2")
    results = read_results(folder)
    assert results.reference == "pncs L=2"
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert f"No test in {panel}" in done.output
    page = (folder / "report.html").read_text()
    assert ("Mean accuracy of pncs L=2 over the only round minus" in page) == (panel != "shards")
    assert "pncs L=2, the reference, has no result there" in page


@pytest.mark.parametrize("panel", ["shards 2", "shards 10"])
def test_claim_is_not_told_of_another_rule(panel: str, folder: Path) -> None:
    lose(folder, panel, "pncs L=2")
    claim = Similar(text="", kind="similar", against=("pncs L=0",), within=0.1)
    verdict, numbers = judge(claim, read_results(folder))
    assert verdict == "holds in part"
    assert f"{panel}: no result for pncs L=2" in numbers


@pytest.mark.minutes
def test_mean_over_other_plots_is_not_put_beside_the_others(folder: Path) -> None:
    """A rule that failed in the hard plots would seem to be the best."""
    lose(folder, "shards 2", "pncs L=0")
    about = json.loads((folder / "sweep.json").read_text())
    about["report"]["rounds"] = [1]
    (folder / "sweep.json").write_text(json.dumps(about) + "\n")
    row = '<th scope="row">pncs L=0</th><td>-</td>'
    assert row in page_of(folder).rpartition("over all plots above")[2]


def test_choices_of_another_seed_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first seed that has a result may not be the same for all rules."""
    results = read_results(folder)
    panel, lines = next(iter(results.panels.items()))
    run = lines["pncs L=0"][0]
    later = Run({**run.cell, "seed": 1}, run.rounds, run.summary)
    shifted = SweepResults(results.about, {panel: {**lines, "pncs L=0": [later]}}, ())
    titles: list[str] = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.set_title", lambda self, text, **_: titles.append(text)
    )
    assert pictures.draw_choices(shifted, folder / "choices.png")
    assert titles == ["pncs L=2", "pncs L=0, seed 1"]
