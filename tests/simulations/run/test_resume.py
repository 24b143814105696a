"""A run of the app that was killed goes on, and ends as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.machine.processes import adopt_orphans, descendants
from pncs_flower.simulations.machine.watchdog import stop
from pncs_flower.simulations.run.folder import open_run, read_rounds
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.served import KEYS
from pncs_flower.simulations.run.settings import keep_settings
from pncs_flower.simulations.run.training import train

PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()", "run"]
CLIENTS, ROUNDS = 6, 8
LONG = 40  # rounds, of which the last are far off when a server is killed in the first half
KILLS = int(os.environ.get("PNCS_RAY_KILLS", "1"))


def settings(rounds: int = ROUNDS, **given: Any) -> Config:
    run_config = default_run_config() | {"num-rounds": rounds, "strategy": "gradient-memory"}
    return Config.from_run_config(run_config | given)


def play(config: Config, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    grid = InProcessGrid(client_app, CLIENTS, config.to_run_config())
    train(grid, config, folder, lambda row: None)


def result(folder: Path) -> tuple[list[Any], dict[str, bytes], dict[str, Any]]:
    """Return what a run leaves, but for what a second start costs: time, introductions."""
    kept = ("round", "asked", "chosen", "delivered", "cooling", "accuracy", "loss", *KEYS)
    rows = [{key: row[key] for key in kept} for row in read_rounds(folder)]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    same = ("rounds", "initial-accuracy", "final-accuracy", "times-chosen", "times-delivered")
    same += (*KEYS, "accuracy-by-client")
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        bits = {name: weights[name].tobytes() for name in weights.files}
    return rows, bits, {key: summary[key] for key in same}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    play(settings(), folder)
    return folder


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    play(settings(LONG), folder)
    return folder


class StoppedError(Exception):
    pass


def stop_in(number: int, config: Config, folder: Path) -> None:
    """Run until a round's row is written, but not yet its checkpoint."""

    def stop(row: Any) -> None:
        if row["round"] == number:
            raise StoppedError

    folder.mkdir()
    grid = InProcessGrid(client_app, CLIENTS, config.to_run_config())
    with pytest.raises(StoppedError):
        train(grid, config, folder, stop)


def pncs(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PNCS, *arguments], capture_output=True, text=True, timeout=400, check=False
    )


def resume(*arguments: str) -> tuple[int, str]:
    """Give the command in this process; return its code and the text, as on one line."""
    done = CliRunner().invoke(app, ["run", "--resume", *arguments])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("number", [1, 4, ROUNDS])
def test_resumed_run_leaves_what_an_uninterrupted_one_does(
    number: int, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    stop_in(number, settings(), folder)
    with (folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": ')  # a line that was being written
    play(settings(resume=True, **{"output-dir": str(folder)}), folder)
    assert result(folder) == result(whole)


@pytest.mark.minutes
def test_command_goes_on_with_the_settings_of_the_run(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_in(3, settings(), folder)
    done = pncs("--engine", "in-process", "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("similarity") <= 1 + ROUNDS - 2
    assert result(folder) == result(whole)


def test_going_on_from_an_older_checkpoint_is_told(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop_in(4, settings(), folder)
    newest = max((folder / "checkpoint").glob("*.checkpoint"))
    newest.write_bytes(b"")
    code, told = resume(str(folder), "--engine", "in-process", "--workers", "1")
    assert code == 0
    assert f"it goes on from an older checkpoint, as of {newest.name}: " in told
    assert result(folder) == result(whole)


def test_finished_run_is_made_longer(tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    play(settings(3), short)
    play(settings(5), long)
    play(settings(5, resume=True, **{"output-dir": str(short)}), short)
    assert result(short) == result(long)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "lr=0.5"], "lr is 0.5, but it was started with 0.1"),
        (["--clients", "7"], "--clients is 7, but the run in"),
    ],
)
def test_what_does_not_fit_the_run_is_refused(
    arguments: list[str], message: str, whole: Path
) -> None:
    code, told = resume(str(whole), "--engine", "in-process", *arguments)
    assert code == 1
    assert message in told


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    code, told = resume(str(tmp_path), "--engine", "in-process")
    assert code == 1
    assert "holds no run to resume" in told


def test_run_that_another_process_goes_on_with_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    keep_settings(tmp_path, settings(), CLIENTS)
    with open_run(tmp_path, settings()):
        code, told = resume(str(tmp_path))
    assert code == 1
    assert "another process still writes to" in told
    assert "Starting Flower" not in told


def test_run_that_is_done_says_so(tmp_path: Path) -> None:
    play(settings(3), tmp_path / "run")
    two = ("--engine", "in-process", "--workers", "2")
    code, told = resume(str(tmp_path / "run"), "--rounds", "2", *two)
    assert code == 0
    assert "has 3 rounds already" in told
    assert "worker" not in told.partition("Flower's log")[0]


def test_folder_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    again = partial(open_run, tmp_path, settings())
    with again(), pytest.raises(ValueError, match="another process still writes to"), again():
        pass
    with again():
        pass


@pytest.mark.ray
@pytest.mark.minutes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.skipif(sys.platform != "linux", reason="finds the server's process in /proc")
def test_killed_server_on_ray_goes_on_with_the_same_bits(
    seed: int, long: Path, tmp_path: Path
) -> None:
    adopt_orphans()
    before = set(descendants())
    arguments = ["--clients", str(CLIENTS), "--rounds", str(LONG)]
    arguments += ["--strategy", "gradient-memory", "--output", str(tmp_path / "run")]
    rows = tmp_path / "run" / "rounds.jsonl"
    moment = random.Random(seed).uniform(1, LONG / 2)
    process = subprocess.Popen([*PNCS, *arguments], stdout=subprocess.DEVNULL, text=True)
    try:
        deadline = time.monotonic() + 300
        while not rows.exists() or rows.read_text().count("\n") < int(moment):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(moment % 1 * 0.2)
        os.kill(server_of(process.pid), signal.SIGKILL)
        assert process.wait(timeout=180) == 1  # Flower misses the heartbeat after a minute
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        left = stop(lambda: [each for each in descendants() if each not in before], 5)
    assert left == []
    assert not (tmp_path / "run" / "summary.json").exists()
    done = pncs("--resume", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert result(tmp_path / "run") == result(long)


def server_of(pid: int) -> int:
    """Return the process that runs Flower's simulation: the server app is a thread of it."""
    for child in descendants(pid):
        if any(part.endswith("flwr-simulation") for part in child.cmdline()[:2]):
            return child.pid
    raise AssertionError("no simulation runs")
