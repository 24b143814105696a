"""A run that ends after some rounds without a better accuracy, alone and in a sweep."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pncs_flower.plain_text import counted
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.report.of_run import final_table
from pncs_flower.simulations.report.of_sweep import write_report
from pncs_flower.simulations.run import training
from pncs_flower.simulations.run.early_stopping import after_the_stop, best_round, stop_note
from pncs_flower.simulations.run.folder import CHECKPOINT, read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import Evaluation, train
from pncs_flower.simulations.sweep.cell import read_cell
from pncs_flower.simulations.sweep.results import read_results
from pncs_flower.simulations.sweep.run import run_sweep
from pncs_flower.simulations.sweep.sweep import Sweep

NO_CLASSES = (None,) * 10  # nothing is known of them
ACCURACIES = [0.1, 0.2, 0.5, 0.4, 0.5, 0.45, 0.6, 0.1, 0.1, 0.1, 0.1]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the accuracies of a run be those above: before training, and after each round."""
    ahead = list(ACCURACIES)
    monkeypatch.setattr(training, "evaluate", lambda *_: Evaluation(ahead.pop(0), 1.0, NO_CLASSES))
    return ahead


def play(output: Path, stop_after: int, rounds: int = 10, **given: Any) -> list[dict[str, Any]]:
    output.mkdir(exist_ok=True)
    config = Config.from_run_config(
        default_run_config()
        | {"num-rounds": rounds, "strategy": "round-robin", "stop-after": stop_after}
        | given
    )
    train(InProcessGrid(client_app, 4, config.to_run_config()), config, output, lambda row: None)
    return read_rounds(output)


def summary(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return found


@pytest.mark.parametrize(("stop_after", "rounds"), [(0, 10), (1, 3), (2, 4), (3, 5), (4, 10)])
def test_a_run_ends_after_so_many_rounds_without_a_better_accuracy(
    tmp_path: Path, scripted: list[float], stop_after: int, rounds: int
) -> None:
    rows = play(tmp_path, stop_after)
    assert [row["accuracy"] for row in rows] == ACCURACIES[1 : rounds + 1]
    notes = [note for row in rows for note in row["notes"] if "stopped early" in note]
    if rounds == 10:
        assert not notes  # the last round is no early one
        assert summary(tmp_path)["stopped-after-round"] is None
    else:
        told = f"stopped early: no better accuracy for {counted(stop_after, 'round')}"
        assert notes == [f"{told}; the best was 0.500, after round 2"]
        assert notes == rows[-1]["notes"][-1:]
        assert summary(tmp_path)["stopped-after-round"] == rounds == summary(tmp_path)["rounds"]
        assert f"after {rounds} rounds, stopped early" in str(final_table(tmp_path).title)


def test_a_stopped_run_has_the_bits_of_a_run_of_so_many_rounds(tmp_path: Path) -> None:
    def weights(folder: Path) -> dict[str, bytes]:
        with np.load(folder / "weights.npz", allow_pickle=False) as file:
            return {name: file[name].tobytes() for name in file.files}

    rounds = len(play(tmp_path / "early", 1, lr=0.3))
    assert 1 <= rounds < 10
    play(tmp_path / "short", 0, rounds, lr=0.3)
    assert weights(tmp_path / "early") == weights(tmp_path / "short")


def test_a_stopped_run_that_is_resumed_stays_stopped_and_says_so(
    tmp_path: Path, scripted: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flwr")
    rows = play(tmp_path, 2)
    weights = (tmp_path / "weights.npz").read_bytes()
    assert any((tmp_path / CHECKPOINT).glob("*.checkpoint"))
    assert play(tmp_path, 2, rounds=20) == rows
    assert (tmp_path / "weights.npz").read_bytes() == weights
    assert "stopped early after round 4, and stays so" in caplog.text
    assert summary(tmp_path)["stopped-after-round"] == 4
    assert "stopped early" in str(final_table(tmp_path).title)


def test_rounds_are_counted_from_the_best_of_all_also_after_a_restart(
    tmp_path: Path, scripted: list[float]
) -> None:
    play(tmp_path, 3, rounds=3)
    scripted.insert(0, ACCURACIES[0])  # before training, measured again
    assert len(play(tmp_path, 3, rounds=10)) == 5


def test_the_best_is_the_first_of_equals_and_may_be_before_training() -> None:
    assert best_round([0.3, 0.2, 0.3]) == 0
    assert best_round([0.1, 0.2, 0.2]) == 1
    assert stop_note([0.3, 0.2, 0.3], 3) is None
    assert "for 2 rounds; the best was 0.300, after round 0" in str(stop_note([0.3, 0.2, 0.3], 2))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
def test_other_kinds_of_patience_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="stop-after"):
        Config.from_run_config(default_run_config() | {"stop-after": wrong})


def sweep_of(stop_after: int) -> Sweep:
    settings = {"num-rounds": 6, "stop-after": stop_after, "lr": 1.0, "device": "cpu"}
    return Sweep("a sweep", ("uniform", "round-robin"), clients=5, seeds=1, settings=settings)


def run(sweep: Sweep, folder: Path) -> dict[str, str]:
    return run_sweep(sweep, folder, 0, lambda *_: None)


def test_cells_of_a_sweep_stop_early_and_are_compared_over_all_rounds(tmp_path: Path) -> None:
    sweep = sweep_of(stop_after=1)
    assert run(sweep, tmp_path / "out") == {}
    stopped = 0
    for path in (tmp_path / "out" / "cells").iterdir():
        written = len(path.read_text().splitlines()) - 3
        run_of = read_cell(path)
        rounds, told = run_of.rounds, run_of.summary
        assert [row["round"] for row in rounds] == [1, 2, 3, 4, 5, 6]
        if written < 6:
            stopped += 1
            assert told["stopped-after-round"] == written
            assert {row["accuracy"] for row in rounds[written:]} == {
                rounds[written - 1]["accuracy"]
            }
            assert not any(row["chosen"] or row["bytes_up"] for row in rounds[written:])
    assert stopped
    runs = read_results(tmp_path / "out").runs
    assert all(len(run.scores) == 6 for run in runs)
    # What a round costs is that of the rounds that there were.
    assert [len(run.trained) for run in runs] == [run.summary["rounds"] for run in runs]
    page = write_report(tmp_path / "out", read_results(tmp_path / "out")).read_text()
    how_many = "All" if stopped == len(runs) else stopped
    assert f"{how_many} of them stopped early" in page
    for each in runs:
        assert f"<td>{each.bytes_up[-1] / len(each.trained) / 1e3:,.1f}</td>" in page
    assert run(sweep, tmp_path / "out") == {}


def test_simulated_time_does_not_go_on_after_the_stop() -> None:
    spent: dict[str, Any] = {"bytes_up": {"training": 1}, "simulated_seconds": {"training": 9.0}}
    last = {"round": 2, "notes": [], **spent}
    (after,) = after_the_stop([last], 3)
    assert (after["round"], after["bytes_up"], after["simulated_seconds"]) == (3, {}, {})
