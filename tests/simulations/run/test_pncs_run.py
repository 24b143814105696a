"""`pncs run` on Flower and Ray, as a person starts it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pncs_flower.simulations.machine.limits import usable_cpus
from pncs_flower.simulations.machine.processes import adopt_orphans, descendants
from pncs_flower.simulations.machine.watchdog import marked

PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()", "run"]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Whatever `pncs` leaves behind becomes a child of this process."""
    adopt_orphans()
    before = set(descendants())
    yield
    if sys.platform == "linux":
        # One that has ended, and of which nobody has asked how yet, is nothing that runs.
        left = set(descendants()) - before
        assert [each for each in left if runs(each)] == []


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pncs(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PNCS, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def result(folder: Path) -> tuple[list[Any], dict[str, bytes]]:
    """Return what must not depend on the engine: the choices and the bits of the weights."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    choices = [(row["chosen"], row["cooling"], row["mean_similarity"]) for row in rows]
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        return choices, {name: weights[name].tobytes() for name in weights.files}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-process")
    done = pncs("--engine", "in-process", "--rounds", "4", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.usefixtures("nothing_left")
def test_ray_gives_the_bits_of_one_process_behind_a_proxy_with_a_long_temporary_folder(
    in_process: Path, tmp_path: Path
) -> None:
    long, folder = tmp_path / ("x" * 60), tmp_path / "run"
    long.mkdir()
    cpus = usable_cpus()
    workers = min(2, cpus)
    done = pncs(
        *("--rounds", "4", "--cpus-per-client", str(cpus // workers), "--output", str(folder)),
        TMPDIR=str(long),
        http_proxy="http://127.0.0.1:9",
        ALL_PROXY="socks5://127.0.0.1:9",
    )
    assert done.returncode == 0, done.stderr
    assert f"{workers} at once" in done.stdout
    assert done.stdout.count("  similarity ") == 4  # a line for each round
    assert result(folder) == result(in_process)
    assert (folder / "rounds.png").is_file()
    assert (folder / "summary.json").is_file()
    assert not list(long.iterdir())


RULE = """
from dataclasses import dataclass
import numpy as np
from pncs_flower.strategies.rules.uniform import UniformRule

@dataclass(frozen=True)
class Rule(UniformRule):
    def select(self, *_, **__):
        return np.zeros(2) + np.zeros(3)
"""


@pytest.mark.minutes
@pytest.mark.usefixtures("nothing_left")
def test_run_that_ends_in_its_first_round_says_why_and_keeps_the_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken_rule.py").write_text(RULE)
    done = pncs(
        "--strategy",
        "broken_rule:Rule",
        "--output",
        str(tmp_path / "run"),
        PYTHONPATH=os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))),
    )
    assert done.returncode == 1
    assert "finished:failed" in done.stderr
    assert "could not be broadcast" in done.stderr
    assert "\x1b" not in done.stderr
    log = tmp_path / "run" / "flwr.log"
    assert f"Flower's log: {log}" in done.stderr
    assert "np.zeros(2) + np.zeros(3)" in log.read_text()
    assert f"pncs run --resume {tmp_path / 'run'}" in done.stderr


@contextlib.contextmanager
def begun(folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a long run, wait for its first round, and in the end leave it to its watchdog."""
    command = [*PNCS, "--rounds", "1000", "--output", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True, **options) as process:
        try:
            deadline = time.monotonic() + 300
            rounds = folder / "rounds.jsonl"
            while not (rounds.exists() and rounds.stat().st_size):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


@pytest.mark.minutes
@pytest.mark.usefixtures("nothing_left")
def test_a_run_that_is_stopped_takes_everything_with_it(tmp_path: Path) -> None:
    with begun(tmp_path, stderr=subprocess.PIPE) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"Stopped. The rounds so far: {tmp_path}" in errors
    assert f"To go on with it: pncs run --resume {tmp_path}\n" in errors


@pytest.mark.skipif(sys.platform != "linux", reason="finds what is left in /proc")
@pytest.mark.minutes
@pytest.mark.usefixtures("nothing_left")
def test_a_run_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    before = set(descendants())
    with begun(tmp_path, stderr=subprocess.DEVNULL) as process:
        homes = (each.environ().get("FLWR_HOME") for each in descendants(process.pid))
        home = next(filter(None, homes))
        # Also those that give themselves a title: two of them would stay for a minute.
        titled = {each for each in descendants(process.pid) if "ray::" in " ".join(each.cmdline())}
        assert len(titled) >= 2
        assert titled <= set(marked("FLWR_HOME", home))
    deadline = time.monotonic() + 120
    while marked("FLWR_HOME", home) or Path(home).exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # The watchdog ends last; its heir, this process, takes note of all of them.
    while set(descendants()) - before and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.05)
