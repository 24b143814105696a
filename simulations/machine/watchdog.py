"""Stops processes; as a script of its own, those of a command that was killed and cannot.

The script reads from the command until the command is gone. What was started is known by its
environment, since daemons have detached themselves.
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Sequence

import psutil

# In seconds; here, since the script runs alone and imports nothing of the package.
_POLL = 0.1
_KILLED = 30.0  # a busy machine takes its time to end what it was told to kill


def stop(find: Callable[[], Sequence[psutil.Process]], grace: float) -> list[int]:
    """Stop what ``find`` finds again and again: ask, then kill; return what is left alive."""
    found: Sequence[psutil.Process] = ()
    for end, patience in ((psutil.Process.terminate, grace), (psutil.Process.kill, _KILLED)):
        deadline, told = time.monotonic() + patience, set[psutil.Process]()
        # One that has ended is found until its parent, or its heir, takes note: wait_procs does.
        while found := find():
            for process in (each for each in found if each not in told):
                with contextlib.suppress(psutil.Error):
                    end(process)
            told |= set(found)
            if time.monotonic() > deadline:
                break
            psutil.wait_procs(found, timeout=_POLL)
            if end is psutil.Process.kill and not any(map(is_alive, find())):
                break  # their parents take no note of it
    return [process.pid for process in found if is_alive(process)]


def marked(name: str, value: str) -> list[psutil.Process]:
    """Return the other processes that have this variable in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is somebody else's
            if process.environ().get(name) == value:
                found.append(process)
    return [process for process in found if process != psutil.Process()]


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process runs: not one that has ended and was not yet waited for."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    name, folder, grace = sys.argv[1:]
    sys.stdin.buffer.read()  # until the command has ended
    stop(lambda: marked(name, folder), float(grace))
    shutil.rmtree(folder, ignore_errors=True)
