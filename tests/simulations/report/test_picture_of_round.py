"""Who waits for whom in a round, from records written by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.report.of_run import ROUND_PICTURE
from pncs_flower.simulations.report.picture_of_round import draw_round, median_round
from pncs_flower.simulations.run.folder import finish, open_run

CONFIG = replace(Config.from_run_config(default_run_config()), devices="phones", deadline=10.0)


def row(number: int, **other: Any) -> dict[str, Any]:
    """Return a round of 14 s: 4 in which client 2 is the slowest, and 10 up to the deadline."""
    return {
        "round": number,
        "clients": ["0", "1", "2", "3"],
        "chosen": ["0", "1", "3"],
        "delivered": ["0"],
        "cooling": [],
        "accuracy": 0.5,
        "loss": 1.0,
        "elapsed": float(number),
        "rejected": {
            "1": "training: its reply would have come after 13.000 s of simulated time, later",
            "3": "training: its device broke off after 2.000 s of simulated time",
        },
        "notes": [],
        "clock": 100.0,
        "simulated_seconds": {"pre-round": 4.0, "training": 10.0},
        "timeline": {
            "0": {"pre-round": [100, 101, 102, 103], "training": [104, 105, 106, 107]},
            "1": {"pre-round": [100, 101, 102, 103.5], "training": [104, 105, 115, 117]},
            "2": {"pre-round": [100, 101, 103, 104]},
            "3": {"pre-round": [100, 101, 102, 103], "training": [104, 105, 106, 106]},
        },
        **other,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    summary = {"initial-accuracy": 0.1, "rounds": len(rows)}
    with open_run(path, CONFIG):
        finish(path, rows, {}, summary)
    return path


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.set_title", lambda self, text, **_: found.append(text)
    )
    return found


def without_time(number: int) -> dict[str, Any]:
    return row(number, clock=None, simulated_seconds={}, timeline={})


def test_the_round_of_median_length_is_drawn() -> None:
    rows = [
        row(n, simulated_seconds={"training": seconds})
        for n, seconds in enumerate([9.0, 1.0, 5.0, 7.0], start=1)
    ]
    assert median_round(rows) == 3  # of 5 and 7, the shorter
    assert median_round(rows[:3]) == 3
    assert median_round([without_time(1)]) is None


def test_words_say_for_whom_is_waited(tmp_path: Path, titles: list[str]) -> None:
    assert draw_round(write(tmp_path / "run", [row(1)])) == tmp_path / "run" / ROUND_PICTURE
    assert titles == [
        "Round 1, pncs on digits: 14 s of simulated time\n"
        "pre-round: 4 s, 4 clients, all wait for client 2\n"
        "training: 10 s, 3 clients, until the deadline; 1 late; 1 broke off or went"
    ]


def test_summaries_that_came_with_the_evaluation_before_say_so(
    tmp_path: Path, titles: list[str]
) -> None:
    early = row(1)
    for spans in early["timeline"].values():
        spans["pre-round"] = [second - 3 for second in spans["pre-round"]]
    early["simulated_seconds"]["pre-round"] = 1.0  # 3 s of 4 were those of the evaluation
    for spans in early["timeline"].values():
        if "training" in spans:
            spans["training"] = [second - 3 for second in spans["training"]]
    draw_round(write(tmp_path / "run", [early]))
    assert titles[0].splitlines()[1] == (
        "pre-round: 1 s, after the evaluation of the round before, with which it came, 4 clients, "
        "all wait for client 2"
    )


def test_each_part_and_mark_has_its_colour(tmp_path: Path) -> None:
    path = draw_round(write(tmp_path / "run", [row(1)]))
    assert path is not None
    colours = {
        tuple(round(float(c) * 255) for c in p[:3]) for line in image.imread(path) for p in line
    }
    # Download, computing, upload, waiting, late, broken off.
    for colour in ("56b4e9", "0072b2", "009e73", "e4e4e4", "e69f00", "d55e00"):
        assert tuple(bytes.fromhex(colour)) in colours


def test_a_thousand_clients_are_drawn_as_the_slowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.supxlabel", lambda self, text, **_: words.append(text)
    )
    timeline = {str(k): {"pre-round": [100, 101, 102, 103 + k / 1000]} for k in range(1000)}
    draw_round(write(tmp_path / "run", [row(1, timeline=timeline)]))
    assert words == ["880 other clients, quicker than these, not shown"]


def test_a_run_without_devices_has_no_such_picture(tmp_path: Path) -> None:
    path = write(tmp_path / "run", [without_time(1)])
    assert draw_round(path) is None
    assert not (path / ROUND_PICTURE).exists()
    with pytest.raises(ValueError, match=r"round 1 .* has no simulated time: run with devices"):
        draw_round(path, 1)


def test_a_round_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no round 3: it has 2 rounds"):
        draw_round(write(tmp_path / "run", [row(1), row(2)]), 3)


def test_the_command_draws_another_round(tmp_path: Path, titles: list[str]) -> None:
    path = write(tmp_path / "run", [row(1), row(2)])
    result = CliRunner().invoke(app, ["report", str(path), "--round", "2"])
    assert result.exit_code == 0, result.output
    assert titles[-1].startswith("Round 2,")
    assert str(path / ROUND_PICTURE) in result.output.replace("\n", "")
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--round", "2"])
    assert result.exit_code != 0
