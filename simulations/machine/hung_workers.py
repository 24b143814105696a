"""A run that is over ends, even if a client hangs, for which Flower's simulation would wait."""

import contextlib
import threading
import time
from logging import WARNING

import psutil
from flwr.common import log

from ..timeouts import CLIENTS_END
from .processes import descendants

__all__ = ["stop_hung_workers"]

_BUSY = "ray::ClientAppActor.run"  # as Ray names a worker's process while a client is at work


def stop_hung_workers(grace: float = CLIENTS_END) -> None:
    """Kill the workers that are still at work some time from now, if this process still lives then.

    To be called when the server app is done, in the process that has started Ray: nobody waits for
    a client any more, but Flower ends its workers only between two messages. Those of a Ray
    cluster elsewhere are not found.
    """
    threading.Thread(target=_stop_after, args=(grace,), daemon=True).start()


def _stop_after(grace: float) -> None:
    time.sleep(grace)
    for process in descendants():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if " ".join(process.cmdline()).startswith(_BUSY):
                process.kill()
                log(WARNING, "A client is still at work %g s after the run: it is stopped.", grace)
