"""Nothing is left running: not a daemon, not one that ignores being asked."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pncs_flower.simulations.machine.processes import adopt_orphans, descendants
from pncs_flower.simulations.machine.watchdog import is_alive, marked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans on")

START_AND_STOP = """
import subprocess, sys, time
from pncs_flower.simulations.machine.processes import adopt_orphans, descendants, stop_descendants
from pncs_flower.simulations.machine.watchdog import is_alive
adopt_orphans()
subprocess.run(["sh", "-c", sys.argv[1]])
deadline = time.monotonic() + 5
while len(list(filter(is_alive, descendants()))) != 1:
    assert time.monotonic() < deadline, descendants()
    time.sleep(0.02)
time.sleep(0.2)  # for the shell to have set its trap
stop_descendants(grace=0.5)
print(descendants())
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
    assert done.stdout == "[]\n", done.stderr


INTERRUPTED = """
import os, signal, sys, time
from pncs_flower.simulations.machine.signals import exit_on_signals
with exit_on_signals():
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        os.getpid()
    except SystemExit:
        exec(sys.argv[2])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "library", ["raise", "sys.exit(1)", "raise RuntimeError", "raise KeyboardInterrupt", "pass"]
)
def test_exit_code_is_the_signals_whatever_a_library_makes_of_it(
    library: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(int(number)), library]
    assert subprocess.run(command, timeout=60, check=False).returncode == 128 + number


def test_the_second_of_two_signals_ends_at_once_unless_it_is_the_first_sent_twice() -> None:
    again = "os.kill(os.getpid(), signal.SIGTERM); print('once', flush=True); time.sleep(1.1)"
    library = f"{again}; os.kill(os.getpid(), signal.SIGINT); print('never', flush=True)"
    command = [sys.executable, "-c", INTERRUPTED, str(int(signal.SIGTERM)), library]
    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "once\n")


RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from pncs_flower.simulations.run import flower as flower_run
from pncs_flower.simulations.machine import processes

def start(home, *_):
    # Of a daemon that is deaf to SIGTERM, so that stopping it takes a while.
    deaf = subprocess.Popen(
        ["setsid", "sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"],
        env={**os.environ, "FLWR_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    deaf.stdout.readline()
    print(home, flush=True)

flower_run._prepare = lambda home, _: home
flower_run._start = start
flower_run._wait = lambda *_: None
flower_run.run_in_flower(None, 1, None, Path(sys.argv[1]), lambda: None)
print("over", flush=True)
"""


def test_run_that_is_killed_while_it_cleans_up_leaves_nothing_running(tmp_path: Path) -> None:
    """The watchdog watches until all is stopped, which takes up to four seconds."""
    adopt_orphans()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    home = process.stdout.readline().strip()
    assert marked("FLWR_HOME", home)
    time.sleep(0.7)  # it is asked to end, and will be killed after two seconds
    process.kill()
    assert process.communicate()[0] == ""  # it was still cleaning up
    deadline = time.monotonic() + 30
    while (left := marked("FLWR_HOME", home)) or Path(home).exists():
        if time.monotonic() > deadline:
            for each in left:
                each.kill()
            pytest.fail("left running")
        time.sleep(0.1)


def test_run_that_cleans_up_ends_its_watchdog_too(tmp_path: Path) -> None:
    adopt_orphans()
    before = set(descendants())
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    home, over = done.stdout.split()
    assert over == "over"
    assert not Path(home).exists()
    assert not set(filter(is_alive, descendants())) - before
