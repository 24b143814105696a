"""A run that is over ends, even if a client hangs, for which Flower's simulation would wait."""

import os
import signal
import threading
import time
from logging import WARNING
from pathlib import Path

from flwr.common import log

from .processes import descendants

__all__ = ["stop_hung_workers"]

_BUSY = b"ray::ClientAppActor.run"  # as Ray names a worker's process while a client is at work


def stop_hung_workers(grace: float = 10.0) -> None:
    """Kill the workers that are still at work some time from now, if this process still lives then.

    To be called when the server app is done, in the process that has started Ray: nobody waits for
    a client any more, but Flower ends its workers only between two messages. Finds them on Linux
    alone, and not those of a Ray cluster elsewhere.

    Parameters
    ----------
    grace : float (default: 10.0)
        Seconds for the clients to end by themselves.
    """
    threading.Thread(target=_stop_after, args=(grace,), daemon=True).start()


def _stop_after(grace: float) -> None:
    time.sleep(grace)
    for pid in descendants(os.getpid()):
        try:
            busy = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_BUSY)
            if busy:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if busy:
            log(WARNING, "A client is still at work %g s after the run: it is stopped.", grace)
