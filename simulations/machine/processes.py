"""Stop everything that was started, however deep: Flower's and Ray's daemons detach themselves."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "adopt_orphans",
    "descendants",
    "exit_on_signals",
    "guarded",
    "ignoring_signals",
    "keeping_handlers",
    "stop_descendants",
]

_PR_SET_CHILD_SUBREAPER = 36
_POLL = 0.05
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that `descendants` finds them.

    Linux only. Elsewhere a process that outlives its parent is lost from sight; Ray and Flower
    end theirs themselves unless they are killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> dict[int, bool]:
    """Return the processes below this one, and whether each is alive or only not yet buried."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for child, parent, state in _processes():
        children.setdefault(parent, []).append((child, not state.startswith("Z")))
    found: dict[int, bool] = {}
    queue = list(children.get(pid, []))
    while queue:
        child, alive = queue.pop()
        found[child] = alive
        queue += children.get(child, [])
    return found


def stop_descendants(grace: float = 2.0, spared: int | None = None) -> None:
    """Stop every process below this one: ask first, then kill.

    Parameters
    ----------
    grace : float (default: 2.0)
        Seconds for them to end by themselves.
    spared : int, optional (default: None)
        A process that is not to be stopped.

    Raises
    ------
    RuntimeError
        If a process cannot be killed; names it.
    """
    asked: set[int] = set()
    started = time.monotonic()
    # A process that has ended stays on the list until its parent, or its heir, takes note.
    while below := {p: lives for p, lives in descendants(os.getpid()).items() if p != spared}:
        waited = time.monotonic() - started
        alive = [pid for pid, lives in below.items() if lives]
        if waited > 2 * grace:
            if alive:
                raise RuntimeError(f"processes {alive} cannot be stopped: kill them yourself")
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                if waited > grace:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in asked:
                    asked.add(pid)
                    os.kill(pid, signal.SIGTERM)
        time.sleep(_POLL)
        _bury()


@contextlib.contextmanager
def guarded(name: str, folder: Path) -> Iterator[int | None]:
    """Have what is started meanwhile stopped even if this process is killed at once.

    All of it is to be stopped within the block: after it nobody watches any more.

    Parameters
    ----------
    name : str
        Name of the environment variable by which all of it is known.
    folder : Path
        The variable's value; this folder is removed as well.

    Yields
    ------
    int or None
        The guardian's process; None where there is none.
    """
    if sys.platform != "linux":
        yield None
        return
    script = str(Path(__file__).with_name("watchdog.py"))
    # In a session of its own, so that what ends this one does not end the guardian too.
    with subprocess.Popen(
        [sys.executable, "-I", script, name, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as guardian:
        try:
            yield guardian.pid
        finally:
            guardian.kill()


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn a signal to end into SystemExit, so that what is to be cleaned up is.

    After the first one no other is heeded, until the process has ended. Whatever a library that
    was interrupted makes of it, such as an exit code of its own, the process ends by the signal's.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}

    def leave(number: int, frame: object) -> None:
        before.clear()
        received.append(number)
        _ignore_signals()
        raise SystemExit(128 + number)

    for number, current in before.items():
        if current is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, leave)
    try:
        yield
    except BaseException as error:
        if received and getattr(error, "code", None) != 128 + received[0]:
            raise SystemExit(128 + received[0]) from error
        raise
    else:
        if received:
            raise SystemExit(128 + received[0])
    finally:
        for number, current in before.items():
            signal.signal(number, current)


@contextlib.contextmanager
def keeping_handlers() -> Iterator[None]:
    """Put the handlers of signals back in their place, where a library puts its own there."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    yield
    # Not after an exception: a signal may have come, after which no other is heeded.
    if threading.current_thread() is threading.main_thread():
        for number, current in before.items():
            if current is not None:  # as it is where it was not set by Python
                signal.signal(number, current)


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Finish cleaning up, whoever is impatient."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    _ignore_signals()
    try:
        yield
    finally:
        for number, current in before.items():
            signal.signal(number, current)


def _ignore_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


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
