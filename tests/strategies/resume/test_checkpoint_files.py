"""The files of a saved run: cut off, damaged, left over, and how large they are."""

import json
import os
import random
import shutil
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from apps import numpy_app
from coming_and_going import Grid
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.files import write_whole
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import GradientMemory, RoundRobin
from pncs_flower.strategies.resume import checkpoint

CUTS = int(os.environ.get("PNCS_CUTS", "5"))
ROUNDS = 5
FILES = ["newest", "before", "rounds.log", "history.jsonl"]


class Remembering(FedAdam):
    """Its model depends on FedAdam's moments, on a deque, and on the config that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[float] = deque(maxlen=3)

    def configure_train(self, server_round, arrays, config, grid):
        self.last.append(float(sum(array.numpy().sum() for array in arrays.values())))
        config["lr"] = config["lr"] * (0.9 + 0.01 * sum(self.last))
        return super().configure_train(server_round, arrays, config, grid)


def run(folder: Path | None, rounds: int = ROUNDS) -> list[Any]:
    """Return what a run ends with, but for what a restart costs."""
    strategy = GradientMemory(
        Remembering(),
        num_selected=2,
        sketch="count:16",
        seed=8,
        checkpoint=folder,
        history_path=folder and folder / "history.jsonl",
    )

    result = strategy.start(
        InProcessGrid(numpy_app.make_app(summary_mod), 5),
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.5}),
        evaluate_fn=numpy_app.sum_of_weights,
    )
    if folder is not None:
        lines = (folder / "history.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [*range(1, rounds + 1)]
    metrics = (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    )
    return [
        [(r.round, r.clients, r.asked, r.chosen, r.delivered, r.notes) for r in strategy.history],
        [{number: dict(record) for number, record in by_round.items()} for by_round in metrics],
        [array.numpy().tobytes() for array in result.arrays.values()],
    ]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return run(None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run(folder, ROUNDS - 1)
    return folder


def file_of(folder: Path, name: str) -> Path:
    both = sorted(folder.glob("*.checkpoint"))
    return {"newest": both[-1], "before": both[0]}.get(name, folder / name)


def check(folder: Path, expected: list[Any]) -> bool:
    """Take a run up, which must end as expected or be refused; tell whether it went on."""
    try:
        found = run(folder)
    except ValueError as error:
        found = str(error)
    refused = "Remove that folder to start from the first round" in found
    assert refused or found == expected
    return not refused


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_cut_off_anywhere_gives_the_same_end_or_a_refusal(
    tmp_path, saved, expected, name
):
    size = file_of(saved, name).stat().st_size
    places = random.Random(name)
    ends = [0, 1, size - 1, *(places.randrange(size) for _ in range(CUTS))]
    went_on = []
    for number, end in enumerate(ends):
        folder = shutil.copytree(saved, tmp_path / str(number))
        os.truncate(file_of(folder, name), end)
        went_on.append(check(folder, expected))
        shutil.rmtree(folder)
    if name != "rounds.log":  # the checkpoint before needs less of it, but not nothing
        assert all(went_on)
    else:
        assert went_on[:2] == [False, False]


@pytest.mark.parametrize("name", FILES)
def test_file_with_another_byte_gives_the_same_end_or_a_refusal(tmp_path, saved, expected, name):
    size = file_of(saved, name).stat().st_size
    places = random.Random(f"{name} again")
    for number in range(CUTS):
        folder = shutil.copytree(saved, tmp_path / str(number))
        path = file_of(folder, name)
        data = bytearray(path.read_bytes())
        data[places.randrange(size)] ^= 1 << places.randrange(8)
        path.write_bytes(data)
        check(folder, expected)
        shutil.rmtree(folder)


@pytest.mark.parametrize("missing", [["newest"], ["history.jsonl"], ["before"], ["lock"]])
def test_file_that_is_gone_changes_nothing(tmp_path, saved, expected, missing):
    folder = shutil.copytree(saved, tmp_path / "run")
    for path in [file_of(folder, name) for name in missing]:
        path.unlink()
    assert check(folder, expected)


def test_run_without_its_lines_is_refused(tmp_path, saved, expected):
    folder = shutil.copytree(saved, tmp_path / "run")
    (folder / "rounds.log").unlink()
    assert not check(folder, expected)


def test_run_without_its_checkpoints_is_refused(tmp_path, saved, expected):
    folder = shutil.copytree(saved, tmp_path / "run")
    for path in folder.glob("*.checkpoint"):
        path.unlink()
    assert not check(folder, expected)
    # Killed when the line of the first round was there, and its checkpoint not yet.
    first, *_ = (folder / "rounds.log").read_text().splitlines()
    (folder / "rounds.log").write_text(f"{first}\n")
    assert check(folder, expected)


def test_what_was_written_of_a_round_that_was_not_saved_is_dropped(tmp_path, saved, expected):
    folder = shutil.copytree(saved, tmp_path / "run")
    with (folder / "rounds.log").open("ab") as file:  # killed between the line and the checkpoint
        file.write(b'{"record": {"round": 9')
    assert check(folder, expected)


def test_unfinished_files_of_a_killed_run_are_removed(tmp_path, saved, expected):
    folder = shutil.copytree(saved, tmp_path / "run")
    left = ["round-00000005.checkpoint.4711.partial", "history.jsonl.4711.partial"]
    for name in left:
        (folder / name).write_bytes(b"half")
    (folder / "notes.partial").write_text("of somebody else")
    assert check(folder, expected)
    assert not any((folder / name).exists() for name in left)
    assert (folder / "notes.partial").exists()


def test_checkpoint_of_another_format_says_so(tmp_path, saved):
    folder = shutil.copytree(saved, tmp_path / "run")
    for path in folder.glob("*.checkpoint"):
        path.write_bytes(b"pncs-checkpoint 3" + path.read_bytes()[17:])
    with pytest.raises(ValueError, match=r"of another release of pncs-flower"):
        run(folder)


def test_size_of_a_checkpoint_does_not_depend_on_how_many_rounds_there_were(tmp_path):
    def size(rounds: int) -> int:
        folder = tmp_path / str(rounds)
        strategy = RoundRobin(FedAvg(), checkpoint=folder, seed=3)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), 5)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
        return max(folder.glob("*.checkpoint")).stat().st_size

    assert abs(size(40) - size(5)) < 100


@pytest.mark.parametrize("place", ["checkpoint", "lines"])
def test_full_disk_is_in_the_record_with_the_file_and_what_to_do(tmp_path, monkeypatch, place):
    fails = []

    def write(path, content):
        if place == "checkpoint" and "round-00000002" in str(path):
            fails.append(str(path))
            raise OSError(28, "No space left on device", str(path))
        write_whole(path, content)

    def append(folder, lines):
        if place == "lines" and len(fails) == 0 and '"round": 2' in "".join(lines):
            fails.append(str(tmp_path / "rounds.log"))
            raise OSError(28, "No space left on device", fails[0])
        return appended(folder, lines)

    appended = checkpoint.CheckpointFolder._append
    monkeypatch.setattr(checkpoint, "write_whole", write)
    monkeypatch.setattr(checkpoint.CheckpointFolder, "_append", append)

    def start(rounds: int):
        strategy = RoundRobin(FedAvg(), checkpoint=tmp_path, seed=3)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), 5)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
        return strategy

    start(3)
    resumed = start(4)
    assert [record.round for record in resumed.history] == [1, 2, 3, 4]
    (note,) = resumed.history[1].notes
    assert note.startswith("no checkpoint of this round was written: ")
    assert fails[0] in note
    assert note.endswith("to save it is tried again after the next round")


@pytest.mark.parametrize("number", [28, 5])
def test_note_of_a_last_round_that_was_not_saved_promises_no_next_one(
    tmp_path, monkeypatch, number
):
    def write(path, content):
        if "round-00000002" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        write_whole(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", write)
    strategy = RoundRobin(FedAvg(), checkpoint=tmp_path, seed=3)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 5)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    (note,) = strategy.history[1].notes
    assert os.strerror(number) in note
    assert "next round" not in note
    assert "room" not in note
    assert note.endswith(
        "The run is done; started again, it repeats the rounds that were not saved"
    )


def test_the_list_of_clients_is_written_where_it_changes_and_is_there_for_each_round(tmp_path):
    grid = Grid(numpy_app.make_app(summary_mod), 6, lambda number: [5] if number > 3 else [])

    def count(server_round, arrays):
        grid.round = server_round + 1

    def run() -> list[list[str]]:
        strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), checkpoint=tmp_path)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=5, evaluate_fn=count)
        return [record.clients for record in strategy.history]

    written = run()
    assert [len(clients) for clients in written] == [6, 6, 6, 5, 5]
    lines = (tmp_path / "rounds.log").read_text().splitlines()
    assert ["clients" in json.loads(line)["record"] for line in lines] == [1, 0, 0, 1, 0]
    assert run() == written
