"""A file of a run that was cut off costs time or is refused, but never changes the result."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.report import of_run
from pncs_flower.simulations.run.folder import read_rounds

CUTS = int(os.environ.get("PNCS_CUTS", "1"))
RUN = ["run", "--engine", "in-process", "--workers", "1"]
# Settings that no checkpoint compares.
NEW = ["--clients", "6", "--rounds", "4", "--set", "lr=0.3", "--set", "batch-size=64"]
OF_THE_RUN = ("config.toml", "rounds.jsonl", "flwr.log", "checkpoint/rounds.log")
KINDS = {
    # Of a run that was stopped in its third round, and of one that was done.
    "stopped": (*OF_THE_RUN, "checkpoint/round-00000001", "checkpoint/round-00000002"),
    "done": (
        *OF_THE_RUN,
        "checkpoint/round-00000003",
        "checkpoint/round-00000004",
        "weights.npz",
        "summary.json",
        "rounds.png",
    ),
}
FILES = [(state, name) for state, names in KINDS.items() for name in names]


def pncs(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*RUN, *arguments], env={"COLUMNS": "1000"})


def result(folder: Path) -> tuple[list[Any], dict[str, bytes], dict[str, Any]]:
    """Return what a run leaves, but for what a second start costs: time, introductions."""
    kept = ("round", "asked", "chosen", "delivered", "cooling", "accuracy", "loss")
    rows = [{key: row[key] for key in kept} for row in read_rounds(folder)]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    same = ("rounds", "initial-accuracy", "final-accuracy", "best-accuracy", "times-chosen")
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        bits = {name: weights[name].tobytes() for name in weights.files}
    return rows, bits, {key: summary[key] for key in same}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("runs")
    done, stopped = parent / "done", parent / "stopped"
    first = pncs(*NEW, "--output", str(done))
    assert first.exit_code == 0, first.output
    show = of_run.round_line

    def stop(row: Any, num_rounds: int) -> str:
        if row["round"] == 3:
            raise SystemExit(1)
        return show(row, num_rounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_run, "round_line", stop)
        assert pncs(*NEW, "--output", str(stopped)).exit_code == 1
    return {"done": done, "stopped": stopped}


def find(folder: Path, name: str) -> Path:
    """Return the file of that name, whatever it ends in."""
    (file,) = (folder / name).parent.glob(f"{Path(name).name}*")
    return file


def check_the_end(ended: Result, folder: Path, whole: Path, cut: Path) -> None:
    """The same end, or an error that names the file: nothing else."""
    if ended.exit_code == 0:
        assert result(folder) == result(whole)
    else:
        assert ended.exit_code == 1
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        assert "Error: " in ended.output
        assert cut.name in ended.output or str(cut.parent) in ended.output


def places(size: int, name: str) -> Iterator[int]:
    yield from (0, size - 1)
    drawn = random.Random(name)
    yield from (drawn.randrange(size) for _ in range(CUTS))


@pytest.mark.minutes
@pytest.mark.parametrize(("state", "name"), FILES)
def test_file_that_was_cut_off_leads_to_the_same_end_or_to_an_error(
    state: str, name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    size = find(runs[state], name).stat().st_size
    for place in places(size, name):
        folder = tmp_path / str(place)
        shutil.copytree(runs[state], folder, dirs_exist_ok=True)
        file = find(folder, name)
        os.truncate(file, place)
        check_the_end(pncs("--resume", str(folder)), folder, runs["done"], file)
        shutil.rmtree(folder)


@pytest.mark.parametrize(("state", "name"), FILES)
def test_file_that_is_not_there_leads_to_the_same_end_or_to_an_error(
    state: str, name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[state], folder)
    file = find(folder, name)
    file.unlink()
    check_the_end(pncs("--resume", str(folder)), folder, runs["done"], file)


@pytest.mark.parametrize("state", KINDS)
@pytest.mark.parametrize("lost", ["config.toml", "rounds.jsonl", "checkpoint"])
def test_run_is_not_begun_on_what_is_left_of_another(
    state: str, lost: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[state], folder)
    if lost == "checkpoint":
        shutil.rmtree(folder / lost)
    else:
        (folder / lost).unlink()
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    ended = pncs(*NEW, "--set", "lr=0.1", "--output", str(folder))
    assert ended.exit_code == 1
    assert "holds a run already" in ended.output
    after = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    assert after == before


def test_lines_that_were_lost_are_written_again_as_they_were(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["stopped"], folder)
    before = read_rounds(folder)
    (folder / "rounds.jsonl").write_text("")
    assert pncs("--resume", str(folder)).exit_code == 0
    assert result(folder) == result(runs["done"])
    rows = read_rounds(folder)
    assert rows[:2] == before[:2]
    elapsed = [row["elapsed"] for row in rows]
    assert elapsed == sorted(elapsed)
