"""Jobs that are done in processes on this machine (Linux); one that kills its process fails alone.

The processes are forked at once, so that what is in memory by then is theirs without a copy, and
each does one job after the other. What goes to and fro is pickled: it never leaves the machine, and
both ends are this program.
"""

import faulthandler
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from socket import socket
from typing import Any

from pncs_flower.clients.stored import NamelessFile
from pncs_flower.plain_text import one_line
from pncs_flower.strategies import DeadWorkerError

from ..run.fork_server import ForkServer, how_ended
from .failure import Failure

_SIZE = 8  # bytes of the length of what is in a process's file

# The likely cause of a process's end, by how it has ended.
_CRASHED = "native code crashed; where in the code of Python that was is beside the traceback"
_WHY = {
    "SIGKILL": "the system does that where memory runs out: have fewer at once, with --workers",
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"), _CRASHED),
}
_OTHERWISE = "its own code, a library or another program has ended it"


class Processes:
    """Processes that do jobs until they are closed.

    Parameters
    ----------
    count : int
        How many there are at once; each is started when it is first needed.
    """

    def __init__(self, count: int) -> None:
        # One way and then the other: a process has its job before it answers.
        self._files = [NamelessFile.in_memory() for _ in range(count)]
        self._crashes = [_Crash() for _ in range(count)]
        self._forks = ForkServer(self._serve)
        self.close = self._forks.close
        """End all processes."""
        self._idle = [*range(count)][::-1]
        self._started: dict[int, tuple[int, socket]] = {}

    def do(self, do: Callable[[Any], Any], jobs: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
        """Do the job of each path, and yield what comes of it, or a `Failure`."""
        todo = deque(jobs)
        running: dict[int, Path] = {}
        try:
            while todo or running:
                while todo and self._idle:
                    index = self._idle.pop()
                    running[index] = path = todo.popleft()
                    self._give(index, pickle.dumps((do, jobs[path])))
                channels = {self._started[index][1]: index for index in running}
                for channel in wait([*channels]):
                    index = channels[channel]  # type: ignore[index]
                    path, outcome = running.pop(index), self._take(index)
                    self._idle.append(index)
                    yield path, outcome
        finally:
            for index in running:  # whose outcome nobody waits for any more: an error is on its way
                with suppress(DeadWorkerError):
                    self._end(index)
                self._idle.append(index)

    def _give(self, index: int, content: bytes) -> None:
        try:
            _send(self._channel(index), self._files[index], content)
        except ConnectionError:  # it has died while it had nothing to do
            self._end(index)
            _send(self._channel(index), self._files[index], content)

    def _channel(self, index: int) -> socket:
        if index not in self._started:
            with _told_of_the_starter():
                self._started[index] = self._forks.start(index)
        return self._started[index][1]

    def _take(self, index: int) -> Any:
        content = _receive(self._started[index][1], self._files[index])
        if content is not None:
            return pickle.loads(content)
        how = how_ended(self._end(index))
        failed = Failure.of(
            DeadWorkerError(
                f"the process of this run has died ({how}): {_WHY.get(how, _OTHERWISE)}"
            )
        )
        return failed._replace(traceback=failed.traceback + self._crashes[index].take())

    def _end(self, index: int) -> int:
        if index not in self._started:
            return 0
        pid, channel = self._started.pop(index)
        channel.close()
        with _told_of_the_starter():
            return self._forks.end(pid)

    def _serve(self, index: int, channel: socket) -> None:
        """Do what comes, in a process of its own, until nobody is there to send any more."""
        faulthandler.enable(self._crashes[index].file.descriptor)
        while (content := _receive(channel, self._files[index])) is not None:
            do, job = pickle.loads(content)
            try:
                outcome = do(job)
            except Exception as error:
                outcome = Failure.of(error)
            _send(channel, self._files[index], _pickled(outcome))


class _Crash:
    """What a process says when it crashes: where in the code of Python that was."""

    def __init__(self) -> None:
        self.file = NamelessFile.in_memory()

    def take(self) -> str:
        """Return it, and have room for what the next process says; empty if it said nothing."""
        descriptor = self.file.descriptor
        text = self.file.read((0, os.fstat(descriptor).st_size)).decode(errors="replace")
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return text


@contextmanager
def _told_of_the_starter() -> Iterator[None]:
    """Say what to do if the process that starts the others dies: a grid's run goes on otherwise."""
    try:
        yield
    except DeadWorkerError:
        raise DeadWorkerError(
            "the process that starts those of the runs has died, perhaps for want of memory: the "
            "same command goes on from here"
        ) from None


def _pickled(outcome: Any) -> bytes:
    """Pickle an outcome; of an error that cannot be, or not back again, what it says remains."""
    content = b""
    try:
        content = pickle.dumps(outcome)
        pickle.loads(content)
    except Exception as error:
        if not isinstance(outcome, Failure):
            return pickle.dumps(Failure.of(error))
        return pickle.dumps(Failure(RuntimeError(one_line(outcome.error)), outcome.traceback))
    return content


def _send(channel: socket, file: NamelessFile, content: bytes) -> None:
    file.write([content])
    channel.send(len(content).to_bytes(_SIZE))


def _receive(channel: socket, file: NamelessFile) -> bytes | None:
    """Return what was sent, or nothing if the other end is no more."""
    try:
        size = channel.recv(_SIZE)
    except ConnectionError:
        return None
    return file.read((0, int.from_bytes(size))) if size else None
