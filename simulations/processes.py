"""Stop everything that was started, however deep: Flower's and Ray's daemons detach themselves."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "adopt_orphans",
    "descendants",
    "exit_on_signals",
    "ignoring_signals",
    "stop_descendants",
]

_PR_SET_CHILD_SUBREAPER = 36
_POLL = 0.05


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that `descendants` finds them.

    Linux only. Elsewhere a process that outlives its parent is lost from sight; Ray and Flower
    end theirs themselves unless they are killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the processes below this one that are alive, parents before their children."""
    children: dict[int, list[int]] = {}
    dead = set()
    for child, parent, state in _processes():
        children.setdefault(parent, []).append(child)
        if state.startswith("Z"):
            dead.add(child)
    found: list[int] = []
    queue = list(children.get(pid, []))
    while queue:
        child = queue.pop(0)
        found.append(child)
        queue += children.get(child, [])
    return [child for child in found if child not in dead]


def stop_descendants(grace: float = 5.0) -> None:
    """Stop every process below this one: ask first, then kill.

    Parameters
    ----------
    grace : float (default: 5.0)
        Seconds for them to end by themselves.

    Raises
    ------
    RuntimeError
        If a process cannot be killed; names it.
    """
    asked: set[int] = set()
    started = time.monotonic()
    while alive := descendants(os.getpid()):
        waited = time.monotonic() - started
        if waited > 2 * grace:
            raise RuntimeError(f"processes {alive} cannot be stopped")
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                if waited > grace:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in asked:
                    asked.add(pid)
                    os.kill(pid, signal.SIGTERM)
        time.sleep(_POLL)
        _bury()
    _bury()


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn a signal to end into SystemExit, so that what is to be cleaned up is."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Finish cleaning up, whoever is impatient."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield process id, parent's id and state of every process."""
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        for folder in proc.iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    # The name in parentheses may hold anything; what follows it may not.
                    stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                    yield int(folder.name), int(stat[1]), stat[0]
        return
    table = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    for line in table.stdout.splitlines():
        pid, parent, state = line.split()
        yield int(pid), int(parent), state


def _bury() -> None:
    """Take note of children that have ended, adopted ones as well."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
