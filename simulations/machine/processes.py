"""Stop everything that was started, however deep: Flower's and Ray's daemons detach themselves."""

import contextlib
import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from ..timeouts import ORPHANS_END, PROCESSES_END
from .watchdog import stop

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
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

Handlers = dict[signal.Signals, Any]


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that `descendants` finds them.

    Linux only. Elsewhere a process that outlives its parent is lost from sight; Ray and Flower
    end theirs themselves unless they are killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes below one, below this one by default; also those not yet waited for."""
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def stop_descendants(grace: float = PROCESSES_END, spared: int | None = None) -> None:
    """Stop every process below this one but one: ask first, then kill; say which cannot be."""
    left = stop(lambda: [each for each in descendants() if each.pid != spared], grace)
    if left:
        raise RuntimeError(f"processes {left} cannot be stopped: kill them yourself")


@contextlib.contextmanager
def guarded(name: str, folder: Path) -> Iterator[int | None]:
    """Have what is started meanwhile stopped even if this process is killed at once.

    All of it is known by the environment variable ``name`` with the value ``folder``, and the
    folder is removed as well. It is to be stopped within the block: after it nobody watches any
    more. Yields the watchdog's process; None where there is none.
    """
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


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn a signal to end into SystemExit, so that what is to be cleaned up is.

    After the first one no other is heeded, until the process has ended. Whatever a library that
    was interrupted makes of it, such as an exit code of its own, the process ends by the signal's.
    """
    received: list[int] = []
    before = _handlers()

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
        _restore(before)


@contextlib.contextmanager
def keeping_handlers() -> Iterator[None]:
    """Put the handlers of signals back in their place, where a library puts its own there."""
    before = _handlers()
    yield
    # Not after an exception: a signal may have come, after which no other is heeded.
    if threading.current_thread() is threading.main_thread():
        _restore(before)


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Finish cleaning up, whoever is impatient."""
    before = _handlers()
    _ignore_signals()
    try:
        yield
    finally:
        _restore(before)


def _handlers() -> Handlers:
    return {number: signal.getsignal(number) for number in _ENDING}


def _ignore_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def _restore(handlers: Handlers) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # as it is where it was not set by Python
            signal.signal(number, handler)
