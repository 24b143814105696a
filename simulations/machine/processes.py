"""Stop everything that was started, however deep: Flower's and Ray's daemons detach themselves."""

import ctypes
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ..timeouts import CLIENTS_END, ORPHANS_END, PROCESSES_END
from .watchdog import stop

_PR_SET_CHILD_SUBREAPER = 36
_BUSY = "ray::ClientAppActor.run"  # as Ray names a worker's process while a client is at work


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that `descendants` finds them."""
    # Elsewhere they are lost from sight; Ray and Flower end theirs unless they are killed.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes below one, below this one by default; also those not yet waited for."""
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def stop_descendants(grace: float = PROCESSES_END, spared: int | None = None) -> None:
    """Stop every process below this one but one: ask first, then kill; say which cannot be."""
    left = stop(lambda: [each for each in descendants() if each.pid != spared], grace)
    if left:
        raise RuntimeError(f"processes {left} cannot be stopped: kill them yourself")


@contextmanager
def guarded(name: str, folder: Path) -> Iterator[int | None]:
    """Have what is started in the block stopped, and a folder removed, even if this is killed."""
    # All of it has the folder in the environment variable ``name``. Yields the watchdog's
    # process.
    if sys.platform != "linux":
        yield None
        return
    script = str(Path(__file__).with_name("watchdog.py"))
    # In a session of its own, so that what ends this one does not end the watchdog too.
    with subprocess.Popen(
        [sys.executable, "-I", script, name, str(folder), str(ORPHANS_END)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watchdog:
        try:
            yield watchdog.pid
        finally:
            watchdog.kill()


def stop_hung_workers(grace: float = CLIENTS_END) -> None:
    """Kill the workers that are still at work some time after the server app, in Ray's process."""
    # Nobody waits for a client any more, but Flower ends its workers only between two messages.
    timer = threading.Timer(grace, _kill_busy_workers, (grace,))
    timer.daemon = True
    timer.start()


def _kill_busy_workers(grace: float) -> None:
    for process in descendants():
        with suppress(psutil.Error):  # it has ended meanwhile
            if " ".join(process.cmdline()).startswith(_BUSY):
                process.kill()
                logging.getLogger("flwr").warning(
                    "A client is still at work %g s after the run: it is stopped.", grace
                )
