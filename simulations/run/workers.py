"""Processes on this machine that play the clients of a simulation.

They are forked by a process that does nothing else: early on, when it is safe, and again whenever
one is to be replaced. What the calling process has in memory by then (the app, the data) is theirs
too, without a copy. Messages and replies go as JSON, their arrays as they are, through files in
memory.
"""

import errno
import gc
import json
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import WARNING
from select import POLLIN, poll
from socket import MSG_CMSG_CLOEXEC, MSG_CTRUNC, recv_fds, send_fds, socket
from typing import Any

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.common import log

from pncs_flower.clients.stored import (
    NamelessFile,
    Parts,
    Place,
    StoredArray,
    allow_many_files,
)
from pncs_flower.strategies import DeadWorkerError

from .contexts import Contexts
from .fork_server import ForkServer, flush
from .handover import Record, describe, read_whole, recall, restore, store

Handle = Callable[[Message], Message]

_LONGEST_WAIT = 3600.0  # seconds at once: the system's own calls have a limit
_IDLE = 0.05  # seconds without a message, after which a worker gives memory of its GPU back


class Workers:
    """Worker processes that play clients: whichever is free takes the next one.

    Parameters
    ----------
    count : int
        How many there may be at once; each is started when it is first needed.
    contexts : Contexts
        The clients by their node ids. What they keep is there, not in the workers.
    handle : callable
        ``handle(message) -> Message``, in a worker: has the client that a message is for answer
        it. The client's context is in ``contexts``, and left there with its new state.
    """

    def __init__(self, count: int, contexts: Contexts, handle: Handle) -> None:
        # For each client whose state has arrays, a file is open.
        allow_many_files()
        self._contexts = contexts
        # The arrays of all messages of an exchange, which many of them share.
        self._shared = NamelessFile.in_memory()
        self._places: dict[int, tuple[Array, bytes, Place]] = {}
        self._edition = 0
        # Of each worker, the message that it is given, and then its reply.
        files = [NamelessFile.in_memory() for _ in range(count)]
        shared = self._shared

        def serve(index: int, channel: socket) -> None:
            _Player(channel, files[index], shared, contexts, handle).serve()

        self._forks = ForkServer(serve)
        self._workers = [_Worker(index, file, self._forks) for index, file in enumerate(files)]
        self._last: dict[int, _Worker] = {}  # that has played a client

    def close(self) -> None:
        """End all workers."""
        self._forks.close()

    def play(self, messages: Sequence[Message], timeout: float | None) -> dict[str, Message]:
        """Have clients answer messages, and return their replies by the messages' ids.

        Each message may take ``timeout`` seconds, or its time to live if that is less, from when
        a worker begins with it. Then there is no reply, and the worker is replaced.

        Raises
        ------
        DeadWorkerError
            If a worker dies.
        """
        texts = self._write_arrays(messages)
        # Messages to one client are answered one after the other.
        of_node: dict[int, deque[Message]] = {}
        for message in messages:
            of_node.setdefault(message.metadata.dst_node_id, deque()).append(message)
        # A client's data are at hand where it was last, but nobody is idle while others wait.
        waiting = {worker: deque[int]() for worker in self._workers}
        for node in of_node:
            last = self._last.get(node) or min(waiting, key=lambda worker: len(waiting[worker]))
            waiting[last].append(node)
        replies: dict[str, Message] = {}
        try:
            while True:
                for worker, own in waiting.items():
                    longest = max(waiting.values(), key=len)
                    if longest and worker.message is None:
                        worker.node = node = own.popleft() if own else longest.pop()
                        self._last[node] = worker
                        self._give(worker, of_node[node].popleft(), texts, timeout)
                busy = [worker for worker in waiting if worker.message is not None]
                if not busy:
                    return replies
                seconds = min(worker.deadline for worker in busy) - time.monotonic()
                channels = [worker.channel for worker in busy]
                ready = _ready(channels, max(0.0, min(seconds, _LONGEST_WAIT)))
                for worker in busy:
                    if worker.channel.fileno() in ready:
                        reply = self._take(worker)
                        replies[reply.metadata.reply_to_message_id] = reply
                    elif worker.deadline < time.monotonic():
                        log(WARNING, "No reply from %s in time.", self._name(worker))
                        worker.end()
                    else:
                        continue
                    if of_node[worker.node]:
                        waiting[worker].appendleft(worker.node)
        finally:
            for worker in self._workers:
                if worker.message is not None:
                    worker.end()

    def _write_arrays(self, messages: Sequence[Message]) -> dict[int, str]:
        """Write all arrays where the workers find them; return what to say of each record."""
        records = {id(each): each for m in messages for each in m.content.values()}
        arrays = [
            array
            for record in records.values()
            if isinstance(record, ArrayRecord)
            for array in record.values()
        ]
        places = self._places
        if any(id(a) not in places or places[id(a)][1] is not a.data for a in arrays):
            parts = Parts()
            self._places = {id(a): (a, a.data, parts.add(a)) for a in arrays}
            self._shared.write(parts.data)
            self._edition += 1
        return {
            key: json.dumps(describe(record, lambda array: self._places[id(array)][2]))
            for key, record in records.items()
        }

    def _give(
        self, worker: "_Worker", message: Message, texts: dict[int, str], timeout: float | None
    ) -> None:
        context = self._contexts.look(worker.node)
        state, worker.kept = store(context.state, len(self._contexts))
        job = {
            "edition": self._edition,
            "metadata": vars(message.metadata),
            "node": [context.node_id, context.node_config],
            "content": {name: texts[id(record)] for name, record in message.content.items()},
            "state": state,
        }
        seconds = min(message.metadata.ttl, float("inf") if timeout is None else timeout)
        worker.message, worker.deadline = message, time.monotonic() + seconds
        text = json.dumps(job).encode()
        worker.file.write([text])
        try:
            _send(worker.channel, len(text), worker.kept)
        except ConnectionError:
            raise self._death(worker, "before") from None

    def _take(self, worker: "_Worker") -> Message:
        """Return a worker's reply, and put its client's new state where it belongs."""
        size, new = _receive(worker.channel)
        if not size:
            raise self._death(worker, "while")
        file, kept, message = worker.file, worker.kept, worker.message
        assert message is not None
        told = json.loads(file.read((0, size)))

        def array(about: list[Any], place: list[int]) -> Array:
            start, length, is_kept = place
            if not is_kept:
                return read_whole(about, file, (size + start, length))
            # The client has delivered what it kept, and says where that is.
            assert kept is not None
            return read_whole(about, kept, (start, length))

        if "error" in told:
            reply = Message(Error(*told["error"]), reply_to=message)
        else:
            content = {name: restore(each, array) for name, each in told["content"].items()}
            reply = Message(RecordDict(content), reply_to=message)
        if told["state"] is not None:
            context = self._contexts[worker.node]
            context.state = recall(told["state"], new or kept)
        worker.message = worker.kept = None
        return reply

    def _death(self, worker: "_Worker", when: str) -> DeadWorkerError:
        name, status = self._name(worker), worker.end()
        killed = os.WIFSIGNALED(status)
        code = os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        how = signal.Signals(code).name if killed else f"exit code {code}"
        return DeadWorkerError(
            f"a worker process of the simulation has died ({how}) {when} it played {name}. Why, "
            "the output above may say: too little memory (have fewer workers), native code that "
            "crashed in the app, a signal. Then start again: a run that was saved goes on where "
            "it stopped"
        )

    def _name(self, worker: "_Worker") -> str:
        node = worker.node
        return (
            f"client {self._contexts.look(node).node_config.get('partition-id', f'at node {node}')}"
        )


class _Worker:
    """A worker process as the calling process sees it, started when it is first spoken to."""

    def __init__(self, index: int, file: NamelessFile, forks: ForkServer) -> None:
        self.file = file
        self.message: Message | None = None  # that its client is to answer
        self.kept: NamelessFile | None = None  # with the arrays of that client's state
        self.node = 0  # of that client, or the last one
        self.deadline = 0.0
        self._index, self._forks = index, forks
        self._process: tuple[int, socket] | None = None

    @property
    def channel(self) -> socket:
        if self._process is None:
            self._process = self._forks.start(self._index)
        return self._process[1]

    def end(self) -> int:
        """Kill the process, and return its status; there is another one when it is needed."""
        process, self._process = self._process, None
        self.message = self.kept = None
        if process is None:
            return 0
        pid, channel = process
        channel.close()
        return self._forks.end(pid)


class _Player:
    """What a worker process does."""

    def __init__(
        self,
        channel: socket,
        file: NamelessFile,
        shared: NamelessFile,
        contexts: Contexts,
        handle: Handle,
    ) -> None:
        self._channel, self._file, self._shared = channel, file, shared
        self._contexts, self._handle = contexts, handle
        self._any = next(iter(contexts.values()))
        self._edition = 0
        self._records: dict[str, Record] = {}  # of the present edition

    def serve(self) -> None:
        """Answer messages, until nobody sends any more."""
        while True:
            torch = sys.modules.get("torch")
            if torch and torch.cuda.is_initialized() and not _ready([self._channel], _IDLE):
                # Its share of a round is done. PyTorch would keep memory that others could use.
                gc.collect()
                torch.cuda.empty_cache()
            if not self._serve_once():
                return

    def _serve_once(self) -> bool:
        size, kept = _receive(self._channel)
        if size:
            text, new = self._answer(json.loads(self._file.read((0, size))), kept)
            flush()
            _send(self._channel, text, new)
        return bool(size)

    def _answer(
        self, job: dict[str, Any], kept: NamelessFile | None
    ) -> tuple[int, NamelessFile | None]:
        """Have a client answer; write that, and return its size and the file of a new state."""
        if job["edition"] != self._edition:
            self._edition, self._records = job["edition"], {}
        content = {name: self._record(text) for name, text in job["content"].items()}
        message = Message(RecordDict(content), 0, "train")
        vars(message.metadata).update(job["metadata"])
        node_id, node_config = job["node"]
        before = recall(job["state"], kept)
        context = replace(self._any, node_id=node_id, node_config=node_config, state=before)
        self._contexts[message.metadata.dst_node_id] = context
        reply = self._handle(message)
        parts = Parts()

        def place(array: Array) -> tuple[int, int, bool]:
            if isinstance(array, StoredArray) and array.file is kept:
                return *array.place, True
            return *parts.add(array), False

        if reply.has_error():
            told: dict[str, Any] = {"error": [reply.error.code, reply.error.reason]}
        else:
            told = {"content": {name: describe(r, place) for name, r in reply.content.items()}}
        file = None
        told["state"] = None
        if context.state is not before:
            told["state"], file = store(context.state, len(self._contexts))
        text = json.dumps(told).encode()
        self._file.write([text, *parts.data])
        context.state = RecordDict()  # what a client keeps is not here
        return len(text), None if file is kept else file

    def _record(self, text: str) -> Record:
        """Return what the server has sent, to be copied; what is sent to many is read once."""
        if text not in self._records:
            self._records[text] = restore(
                json.loads(text), lambda about, place: read_whole(about, self._shared, place)
            )
        return self._records[text]


def _ready(channels: Sequence[socket], seconds: float) -> set[int]:
    """Wait until there is something to receive; return the descriptors of those where it is."""
    waiting = poll()
    for channel in channels:
        waiting.register(channel, POLLIN)
    return {descriptor for descriptor, _ in waiting.poll(math.ceil(1000 * seconds))}


def _send(channel: socket, number: int, file: NamelessFile | None) -> None:
    """Send a number, and perhaps a file."""
    send_fds(channel, [number.to_bytes(8)], [] if file is None else [file.descriptor])


def _receive(channel: socket) -> tuple[int, NamelessFile | None]:
    """Return the number and the file that were sent; 0 if the other process has ended."""
    try:
        data, descriptors, flags, _ = recv_fds(channel, 8, 1, MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return 0, None
    if flags & MSG_CTRUNC:
        raise OSError(errno.EMFILE, "each client that keeps arrays needs a file: raise ulimit -n")
    return int.from_bytes(data), NamelessFile(descriptors[0]) if descriptors else None
