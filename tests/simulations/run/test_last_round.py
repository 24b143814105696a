"""The folder of a run that ended before its time has the round of its end, with the reason."""

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg

from pncs_flower.protocol import MARKER
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.folder import read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train
from pncs_flower.strategies import EmptyRoundsError, NoSummariesError, SelectionError, record
from pncs_flower.strategies.resume.checkpoint import CheckpointFolder

ROUNDS, END = 6, 4


class Failing:
    """The app's clients, which all fail in one phase of some rounds."""

    def __init__(self, phase: str, rounds: Sequence[int]) -> None:
        self.phase, self.rounds = phase, rounds

    def __call__(self, message: Message, context: Context) -> Message:
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("phase") == self.phase and marker.get("round") in self.rounds:
            raise RuntimeError("this round is lost")
        return client_app(message, context)


def settings(folder: Path, **given: Any) -> Config:
    own = {"num-rounds": ROUNDS, "model": "linear", "device": "cpu", "output-dir": str(folder)}
    return Config.from_run_config(default_run_config() | own | given)


def play(config: Config, app: Any = client_app, on_round: Any = lambda row: None) -> None:
    folder = Path(config.output_dir)
    train(InProcessGrid(app, 6, config.to_run_config()), config, folder, on_round)


def stopping(error: BaseException) -> Callable[[Any], None]:
    def stop(row: Any) -> None:
        if row["round"] == END:
            raise error

    return stop


def bits(folder: Path) -> tuple[Any, ...]:
    kept = ("round", "chosen", "delivered", "cooling", "accuracy", "loss")
    rows = [{key: row[key] for key in kept} for row in read_rounds(folder)]
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        return rows, {name: weights[name].tobytes() for name in weights.files}


def ends_of(row: dict[str, Any]) -> list[str]:
    return [note for note in row["notes"] if note.startswith("the run ended here")]


ENDS: dict[str, tuple[type[BaseException], dict[str, Any], int]] = {
    "no summaries": (NoSummariesError, {"app": Failing("summarize", range(9))}, 1),
    "empty rounds": (EmptyRoundsError, {"app": Failing("train", range(END - 2, END + 1))}, END),
    "on_round": (ValueError, {"on_round": stopping(ValueError("odd"))}, END),
    "Ctrl-C": (KeyboardInterrupt, {"on_round": stopping(KeyboardInterrupt())}, END),
    "signal": (SystemExit, {"on_round": stopping(SystemExit(143))}, END),
    "base": (SelectionError, {}, END),
}


@pytest.mark.parametrize("end", ENDS)
def test_round_that_ended_the_run_is_in_its_folder_and_is_done_again_when_resumed(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, given, number = ENDS[end]
    aggregate = FedAvg.aggregate_train

    def broken(self: FedAvg, server_round: int, replies: Any) -> Any:
        if server_round == END:
            raise ValueError("odd")
        return aggregate(self, server_round, replies)

    with monkeypatch.context() as patch:
        if end == "base":
            patch.setattr(FedAvg, "aggregate_train", broken)
        with pytest.raises(kind) as raised:
            play(settings(tmp_path / "run"), **given)
    rows = read_rounds(tmp_path / "run")
    assert [row["round"] for row in rows] == list(range(1, number + 1))
    (note,) = ends_of(rows[-1])
    assert note.startswith(f"the run ended here: {kind.__name__}")
    assert str(raised.value) in note
    known = given.get("on_round") is not None
    assert (rows[-1]["accuracy"] is not None) is known
    if "app" in given:
        assert "this round is lost" in str(rows[-1]["rejected"])
    assert rows[-1]["elapsed"] > 0

    if end == "empty rounds":
        return  # its rounds before are as they are
    play(settings(tmp_path / "run", resume=True))
    play(settings(tmp_path / "whole"))
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    assert not any(ends_of(row) for row in read_rounds(tmp_path / "run"))


def test_round_in_which_a_resumed_run_ends_again_has_one_line_with_the_newest_reason(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="first"):
        play(settings(tmp_path), on_round=stopping(ValueError("first")))
    before = read_rounds(tmp_path)[-1]
    for _ in range(2):
        with pytest.raises(EmptyRoundsError):
            play(settings(tmp_path, resume=True), Failing("train", range(END, 9)))
        rows = read_rounds(tmp_path)
        assert [row["round"] for row in rows] == list(range(1, END + 3))
        assert [ends_of(row) for row in rows[:-1]] == [[]] * (END + 1)
        assert "EmptyRoundsError" in ends_of(rows[-1])[0]
        assert rows[END - 1]["seconds"] != before["seconds"]


def test_rounds_that_all_came_to_nothing_say_so_in_the_last(tmp_path: Path) -> None:
    with pytest.raises(EmptyRoundsError):
        play(settings(tmp_path, **{"num-rounds": 2}), Failing("train", range(9)))
    rows = read_rounds(tmp_path)
    assert [len(ends_of(row)) for row in rows] == [0, 1]
    assert "in any of 2 rounds" in ends_of(rows[-1])[0]


@pytest.mark.parametrize("full", [False, True], ids=["room", "no room for long"])
def test_note_that_comes_after_the_round_is_in_its_line(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr(CheckpointFolder, "save", no_room)
    with monkeypatch.context() as patch:

        def room_again(row: Any) -> None:
            if row["round"] == ROUNDS:
                patch.undo()

        if full:
            patch.setattr(record, "append_line", no_room)
            patch.setattr(record, "_replace_last", no_room)
        play(settings(tmp_path), on_round=room_again)
    notes = [row["notes"] for row in read_rounds(tmp_path)]
    assert [sum("no checkpoint of this round" in n for n in each) for each in notes] == [1] * ROUNDS


def test_folder_of_a_run_that_failed_can_be_taken_up_in_the_same_process(tmp_path: Path) -> None:
    error = ValueError("kept, and with it all that the run had")
    with pytest.raises(ValueError, match="kept"):
        play(settings(tmp_path), on_round=stopping(error))
    assert error.__traceback__ is not None
    play(settings(tmp_path, resume=True))
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] == ROUNDS
