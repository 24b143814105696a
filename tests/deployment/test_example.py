"""The example runs as its help says, and leaves nothing running."""

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from deployment.conftest import TESTS

pytestmark = [pytest.mark.superlink, pytest.mark.minutes, pytest.mark.timeout(900)]

SCRIPT = TESTS.parent / "examples" / "deployment" / "run.py"


def example(*arguments: str) -> str:
    """Run the example for one round, see that it has stopped everything, return what it printed."""
    mark = uuid4().hex
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rounds", "1", *arguments],
        env={**os.environ, "PNCS_TEST_MARK": mark},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if sys.platform == "linux":
        deadline = time.monotonic() + 30  # a busy machine ends processes slowly
        while left := marked(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
    return done.stdout


def marked(mark: str) -> list[str]:
    """Return the command lines of processes that inherited a mark."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().decode().replace("\0", " "))
        except OSError:
            continue
    return found


def test_example_runs_over_tls_and_turns_a_stranger_away() -> None:
    printed = example("--authentication")
    assert "whose key is not registered: turned away" in printed
    assert "finished:completed" in printed


def test_example_runs_with_apps_in_processes_of_their_own() -> None:
    printed = example("--isolation", "process")
    assert "SuperNodes: 3 connected" in printed
    assert "finished:completed" in printed


def test_help_shows_examples() -> None:
    command = [sys.executable, str(SCRIPT), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "run.py --isolation process" in done.stdout
