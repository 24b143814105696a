"""Nothing is left running: not a daemon, not one that ignores being asked."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans on")

START_AND_STOP = """
import os, subprocess, sys, time
from pncs_flower.simulations.processes import adopt_orphans, descendants, stop_descendants
adopt_orphans()
subprocess.run(["sh", "-c", sys.argv[1]])
deadline = time.monotonic() + 5
while len([p for p, alive in descendants(os.getpid()).items() if alive]) != 1:
    assert time.monotonic() < deadline, descendants(os.getpid())
    time.sleep(0.02)
time.sleep(0.2)  # for the shell to have set its trap
stop_descendants(grace=0.5)
print(descendants(os.getpid()))
"""


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60 &",
        "setsid sleep 60 &",
        "setsid sh -c 'trap \"\" TERM; while :; do :; done' &",
    ],
    ids=["orphan", "daemon", "deaf daemon"],
)
def test_orphans_are_found_and_stopped(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START_AND_STOP, command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "{}\n", done.stderr
