"""A process that forks others, at any time as if it were done at the start.

A fork is safe before PyTorch has threads or CUDA is in use, and later it is not. And when the
process that all of it is for is gone, however it has ended, this one notices: it does nothing else,
so that no code of anybody's can keep it from that.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable
from socket import AF_UNIX, SHUT_RDWR, SOCK_SEQPACKET, send_fds, socket, socketpair
from typing import NoReturn

import numpy as np

from pncs_flower.strategies import DeadWorkerError

from ..machine.signals import delaying_signals, leave_to_the_caller
from .descriptors import receive

Serve = Callable[[int, socket], None]

START_AGAIN = (
    "Started again, a run goes on where it stopped if its strategy has a checkpoint (checkpoint=)"
)
"""A note on a worker's death: a command has its own words for how to go on."""

_START, _END = b"+", b"-"
_BYTES = 8  # of a number that is sent
_PR_SET_PDEATHSIG = 1
_OMP_PAUSE_HARD = 2
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ForkServer:
    """Starts processes that call ``serve(index, channel)``, and ends them."""

    def __init__(self, serve: Serve) -> None:
        self._channel, there = socketpair(AF_UNIX, SOCK_SEQPACKET)
        flush()  # or every process would write what waits to be written
        # Those of this thread, which a forked process would wait for in vain; the next parallel
        # loop starts them again.
        with contextlib.suppress(AttributeError):  # there is no OpenMP
            ctypes.CDLL(None).omp_pause_resource_all(_OMP_PAUSE_HARD)
        with delaying_signals():
            pid = os.fork()
            if not pid:  # what is sent to all processes of a command, the calling one makes of it
                leave_to_the_caller()
        if not pid:
            self._channel.close()
            _run_and_exit(lambda: _fork_others(there, serve))
        there.close()
        self.close = weakref.finalize(self, _close, self._channel, pid, os.getpid())
        """End all processes; it also comes to that when this object or the interpreter ends."""

    def start(self, index: int) -> tuple[int, socket]:
        """Start a process, and return its id and a channel to it."""
        pid, descriptors = self._ask(_START, index)
        return pid, socket(fileno=descriptors[0])

    def end(self, pid: int) -> int:
        """Kill a process if it is alive, and return its status as `os.waitpid` does."""
        return self._ask(_END, pid)[0] if self.close.alive else 0

    def _ask(self, order: bytes, number: int) -> tuple[int, list[int]]:
        if not self.close.alive:
            raise ValueError("the grid is closed, and its workers have ended: make another one")
        answer, descriptors = b"", list[int]()
        try:
            with contextlib.suppress(ConnectionError):
                self._channel.send(order + number.to_bytes(_BYTES))
                answer, descriptors = receive(self._channel, _BYTES, 1)
        finally:
            if not answer:  # whatever comes later would be taken for the answer to the next order
                self.close()
        if not answer:
            error = DeadWorkerError(
                "the process that starts the workers of the simulation has died, perhaps for want "
                "of memory: have fewer workers, with InProcessGrid(workers=) or --workers"
            )
            error.add_note(START_AGAIN)
            raise error
        return int.from_bytes(answer), descriptors


def how_ended(status: int) -> str:
    """Say how a process has ended, of a status as `os.waitpid` gives it."""
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.WEXITSTATUS(status)}"


def _close(channel: socket, pid: int, caller: int) -> None:
    if os.getpid() == caller:  # and not in a process that it has forked
        with contextlib.suppress(OSError):  # the server has died
            channel.shutdown(SHUT_RDWR)  # which counts also where forked processes have it open
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for it
            os.waitpid(pid, 0)
    channel.close()


def _fork_others(channel: socket, serve: Serve) -> None:
    """Do what is ordered until nobody is there to order, and then end all that was started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _compute_on_one_thread()
    gc.freeze()  # what is there already is not looked through, which would copy its memory
    children = set()
    with contextlib.suppress(ConnectionError):  # nobody is there to take an answer either
        while order := channel.recv(1 + _BYTES):
            number = int.from_bytes(order[1:])
            if order[:1] == _START:
                here, there = socketpair(AF_UNIX, SOCK_SEQPACKET)
                pid = os.fork()
                if not pid:
                    channel.close()
                    here.close()
                    _run_and_exit(lambda: _serve(serve, number, there))  # noqa: B023
                there.close()
                children.add(pid)
                send_fds(channel, [pid.to_bytes(_BYTES)], [here.fileno()])
                here.close()
            else:
                children.discard(number)
                channel.send(_kill(number).to_bytes(_BYTES))
    for pid in children:
        _kill(pid)


def _kill(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _serve(serve: Serve, index: int, channel: socket) -> None:
    """Serve in a process that shares nothing random with the others."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and so in what the app starts
    np.random.seed()  # noqa: NPY002 - the generator that apps use who do not care
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
        if torch.version.cuda:
            _see_one_gpu(index, torch.cuda.device_count())
    serve(index, channel)


def _see_one_gpu(index: int, count: int) -> None:
    """Of several GPUs, have a process see one; to any framework it is then the first."""
    if count > 1:
        names = os.environ.get(_VISIBLE) or ",".join(map(str, range(count)))
        os.environ[_VISIBLE] = names.split(",")[index % count]


def _compute_on_one_thread() -> None:
    """Have each process use one core, as Ray's do: last bits depend on the number of threads."""
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # for libraries that are loaded later
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    with contextlib.suppress(ImportError):  # comes with scikit-learn
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        threadpool_limits(1)


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Run something in a forked process, and end it without what its parent has yet to do."""
    code = 1
    try:
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def flush() -> None:
    """Write what waits to be written to the terminal."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            stream.flush()
