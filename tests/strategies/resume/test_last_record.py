"""The record of the round in which a run ends is on disk, with its reasons and all its notes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apps import numpy_app
from flwr.app import Error, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    Choice,
    DeadWorkerError,
    EmptyRoundsError,
    NoSummariesError,
    RoundRobin,
    SelectionError,
    SelectionRule,
    SelectionStrategy,
    TooFewClientsError,
)
from pncs_flower.strategies.resume.checkpoint import CheckpointFolder

ROUND = 2  # in which something happens


class BrokenError(Exception):
    """What user code raises."""


class Raising(FedAvg):
    """A base strategy with a method that raises in one round."""

    not_in_checkpoint = ("_given",)

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        self._given = method, error

    def _maybe(self, method: str, server_round: int) -> None:
        if (method, server_round) == (self._given[0], ROUND):
            raise self._given[1]

    def configure_train(self, server_round, arrays, config, grid):
        self._maybe("configure_train", server_round)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        self._maybe("aggregate_train", server_round)
        return super().aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, arrays, config, grid):
        self._maybe("configure_evaluate", server_round)
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        self._maybe("aggregate_evaluate", server_round)
        return super().aggregate_evaluate(server_round, replies)


class Broken(SelectionRule):
    def __init__(self) -> None:
        self.num_selected = 2

    def select(self, state, now, summaries):
        if now.number == ROUND:
            raise SelectionError("the rule has nobody to choose")
        return Choice(now.available[:2])


class Grid(InProcessGrid):
    """A grid that answers for its clients, and that they leave, from one round on."""

    def __init__(self, answer: Callable[..., Any] | None = None, phase: str = "") -> None:
        super().__init__(numpy_app.make_app(summary_mod), 4)
        self.answer, self.phase, self.left = answer, phase, False

    def get_node_ids(self):
        return [] if self.left else super().get_node_ids()

    def _handle(self, message: Message) -> Message:
        reply = super()._handle(message)
        marker = message.content.config_records.get(MARKER, {})
        if self.answer is not None and marker.get("phase") == self.phase:
            return self.answer(message, reply)
        return reply


def boom(message: Message, reply: Message) -> Message:
    return Message(Error(0, "boom"), reply_to=message)


def died(message: Message, reply: Message) -> Message:
    if message.content[MARKER]["round"] == ROUND:
        raise DeadWorkerError("a worker process has died")
    return reply


def leave(grid: Grid) -> Callable[..., None]:
    def evaluate(server_round, arrays):
        grid.left = server_round == ROUND - 1

    return evaluate


def raising(error: BaseException) -> Callable[..., None]:
    def evaluate(server_round, arrays):
        if server_round == ROUND:
            raise error

    return evaluate


Made = tuple[SelectionStrategy, Grid, Callable[..., None] | None]


def cases(**options: Any) -> dict[str, Callable[[], Made]]:
    def of_base(method: str) -> Callable[[], Made]:
        return lambda: (PNCS(Raising(method, BrokenError("odd")), **options), Grid(), None)

    def with_replies(answer, phase: str, **more: Any) -> Callable[[], Made]:
        return lambda: (PNCS(FedAvg(), **options, **more), Grid(answer, phase), None)

    def after(error: BaseException) -> Callable[[], Made]:
        return lambda: (PNCS(FedAvg(), **options), Grid(), raising(error))

    def too_few() -> Made:
        grid = Grid()
        return PNCS(FedAvg(), wait_timeout=0.3, **options), grid, leave(grid)

    return {
        "NoSummariesError": with_replies(boom, "summarize"),
        "TooFewClientsError": too_few,
        "SelectionError": lambda: (SelectionStrategy(FedAvg(), Broken(), **options), Grid(), None),
        "DeadWorkerError": with_replies(died, "summarize", ride_along=False),
        "EmptyRoundsError": with_replies(boom, "train", max_empty_rounds=ROUND),
        "configure_train": of_base("configure_train"),
        "aggregate_train": of_base("aggregate_train"),
        "configure_evaluate": of_base("configure_evaluate"),
        "aggregate_evaluate": of_base("aggregate_evaluate"),
        "evaluate_fn": after(BrokenError("odd")),
        "KeyboardInterrupt": after(KeyboardInterrupt()),
        "SystemExit": after(SystemExit(3)),
    }


ERRORS: dict[str, type[BaseException]] = {
    "NoSummariesError": NoSummariesError,
    "TooFewClientsError": TooFewClientsError,
    "SelectionError": SelectionError,
    "DeadWorkerError": DeadWorkerError,
    "EmptyRoundsError": EmptyRoundsError,
    **dict.fromkeys(("configure_train", "aggregate_train"), SelectionError),
    **dict.fromkeys(("configure_evaluate", "aggregate_evaluate"), SelectionError),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("saved", [False, True], ids=["alone", "with a checkpoint"])
@pytest.mark.parametrize("end", cases())
def test_round_that_ended_the_run_is_on_disk_with_its_reason(tmp_path, end, saved):
    path = tmp_path / "history.jsonl"
    options = {"checkpoint": tmp_path / "saved"} if saved else {}
    strategy, grid, evaluate = cases(history_path=path, **options)[end]()
    kind = ERRORS.get(end, BrokenError)
    with pytest.raises(kind):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4, evaluate_fn=evaluate)
    assert lines(path) == [record.to_dict() for record in strategy.history]
    last = lines(path)[-1]
    assert last["round"] == (1 if end == "NoSummariesError" else ROUND)
    (note,) = [note for note in last["notes"] if note.startswith("the run ended here")]
    assert note.startswith(f"the run ended here: {kind.__name__}")
    if end in ("NoSummariesError", "EmptyRoundsError"):
        assert len(last["rejected"]) >= 2


TAKEN_UP = [end for end in cases() if end not in ("SelectionError", *vars(FedAvg))]


@pytest.mark.parametrize("end", TAKEN_UP)
def test_round_that_ended_the_run_is_on_disk_once_after_it_was_taken_up(tmp_path, end):
    path = tmp_path / "history.jsonl"
    options = {"history_path": path, "checkpoint": tmp_path / "saved"}
    strategy, grid, evaluate = cases(**options)[end]()
    with pytest.raises(ERRORS.get(end, BrokenError)):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4, evaluate_fn=evaluate)
    again = PNCS(FedAvg(), **options)
    again.start(Grid(), numpy_app.initial_arrays(), num_rounds=4)
    assert [line["round"] for line in lines(path)] == [1, 2, 3, 4]
    assert not any("ended here" in note for line in lines(path) for note in line["notes"])


@pytest.mark.parametrize("method", ["configure_train", "aggregate_train", "aggregate_evaluate"])
def test_round_that_ended_the_run_of_a_wrapper_is_on_disk(tmp_path, method):
    path = tmp_path / "history.jsonl"
    inner = PNCS(Raising(method, BrokenError("odd")), history_path=path)
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, num_sampled_clients=2)
    with pytest.raises(SelectionError):
        outer.start(Grid(), numpy_app.initial_arrays(), num_rounds=4)
    assert [line["round"] for line in lines(path)] == [1, ROUND]
    note = lines(path)[-1]["notes"][-1]
    assert note.startswith("the run ended here: SelectionError: ")
    assert note.endswith("BrokenError in round 2: odd")


def test_note_that_is_made_after_the_training_is_on_disk(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(CheckpointFolder, "save", full)
    path = tmp_path / "history.jsonl"
    strategy = RoundRobin(FedAvg(), history_path=path, checkpoint=tmp_path / "saved")

    def evaluate(server_round, arrays):
        if server_round == ROUND:
            strategy.history[-1].notes.append("a look at the model")

    strategy.start(Grid(), numpy_app.initial_arrays(), num_rounds=3, evaluate_fn=evaluate)
    assert lines(path) == [record.to_dict() for record in strategy.history]
    assert [any("No space left" in n for n in line["notes"]) for line in lines(path)] == [True] * 3
    assert "a look at the model" in lines(path)[ROUND - 1]["notes"]


def test_what_is_added_to_a_record_is_in_its_line_and_is_taken_up(tmp_path):
    path = tmp_path / "history.jsonl"

    def run(rounds):
        strategy = RoundRobin(FedAvg(), history_path=path, checkpoint=tmp_path / "saved")

        def evaluate(server_round, arrays):
            if server_round:
                strategy.history[-1].extra["accuracy"] = server_round / 10

        initial = numpy_app.initial_arrays()
        strategy.start(Grid(), initial, num_rounds=rounds, evaluate_fn=evaluate)

    run(2)
    path.unlink()
    run(3)
    assert [line["accuracy"] for line in lines(path)] == [0.1, 0.2, 0.3]


def test_lines_of_another_run_in_the_same_file_stay(tmp_path):
    path = tmp_path / "history.jsonl"
    strategy = RoundRobin(FedAvg(), history_path=path)

    def evaluate(server_round, arrays):
        if server_round == ROUND:
            with path.open("a") as file:
                file.write('{"round": 7, "notes": ["of another run"]}\n')
            strategy.history[-1].notes.append("too late")

    strategy.start(Grid(), numpy_app.initial_arrays(), num_rounds=3, evaluate_fn=evaluate)
    assert [line["round"] for line in lines(path)] == [1, 2, 7, 3]


def test_a_line_that_was_cut_off_does_not_spoil_the_first_of_the_next_run(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"round": 1}\n{"rou')
    strategy = RoundRobin(FedAvg(), history_path=path)
    strategy.start(Grid(), numpy_app.initial_arrays(), num_rounds=2)
    texts = path.read_text().splitlines()
    assert [json.loads(text)["round"] for text in (texts[0], *texts[2:])] == [1, 1, 2]
