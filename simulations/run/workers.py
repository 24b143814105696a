"""Processes on this machine that play the clients of a simulation.

They are forked by a process that does nothing else: early on, when it is safe, and again whenever
one is to be replaced. What the calling process has in memory by then (the app, the data) is theirs
too, without a copy. Messages and replies go as JSON, their arrays as they are, through files in
memory.
"""

import gc
import json
import math
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from logging import WARNING
from select import POLLIN, poll
from socket import send_fds, socket
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.common import log

from pncs_flower.clients.stored import (
    NamelessFile,
    Parts,
    Place,
    StoredArray,
    allow_many_files,
)
from pncs_flower.messages.records import make_record, own_copy
from pncs_flower.strategies import DeadWorkerError

from .contexts import Contexts
from .descriptors import receive
from .fork_server import START_AGAIN, ForkServer, flush, how_ended
from .handover import Record, describe, read_whole, recall, restore, store

Answer = Callable[[Message, Context], RecordDict | Error]

_LONGEST_WAIT = 3600.0  # seconds at once: the system's own calls have a limit
_IDLE = 0.05  # seconds without a message, after which a worker gives memory of its GPU back
# Seconds that a worker is to take for all that it is given at once: long beside the hand-over, and
# short beside what the others may have to wait for it in the end.
_AT_ONCE = 0.02
_MOST_AT_ONCE = 64
_LATELY = 4  # exchanges, one of which tells of slow clients: a round has a few kinds of them


class Workers:
    """Worker processes that play clients: whichever is free takes the next one, or a few.

    Parameters
    ----------
    count : int
        How many there may be at once; each is started when it is first needed.
    contexts : Contexts
        The clients by their node ids. What they keep is there, not in the workers.
    answer : callable
        ``answer(message, context) -> RecordDict or Error``, in a worker: has a client answer a
        message. Its new state, if there is one, is then in place of the old one in the context.
    """

    def __init__(self, count: int, contexts: Contexts, answer: Answer) -> None:
        # For each client whose state has arrays, a file is open.
        allow_many_files()
        self._contexts = contexts
        # The arrays of all messages of an exchange, which many of them share.
        self._shared = NamelessFile.in_memory()
        self._places: dict[int, tuple[Array, bytes, Place]] = {}
        self._edition = 0
        # Of each worker, what it is given, and behind that its replies. Two, since it is given more
        # before it has done all.
        files = [(NamelessFile.in_memory(), NamelessFile.in_memory()) for _ in range(count)]
        shared = self._shared

        def serve(index: int, channel: socket) -> None:
            _Player(channel, files[index], shared, contexts, answer).serve()

        self._forks = ForkServer(serve)
        self._workers = [_Worker(index, two, self._forks) for index, two in enumerate(files)]
        self._last: dict[int, _Worker] = {}  # that has played a client
        self._paces = deque[float](maxlen=_LATELY)  # seconds for a message, of each exchange

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
        took, over = 0.0, 0  # seconds of all workers together, and for how many messages
        # How long messages take decides who plays whom, and never what anybody answers: a client
        # gets its own messages in their order, and the caller has the replies by their ids.
        pace = max(self._paces, default=math.inf)
        try:
            while True:
                left = sum(map(len, waiting.values()))
                share = math.ceil(left / len(waiting))
                for worker, own in waiting.items():
                    given = []
                    for _ in range(min(worker.room(share, pace), left)):
                        node = own.popleft() if own else max(waiting.values(), key=len).pop()
                        self._last[node] = worker
                        given.append(of_node[node].popleft())
                    left -= len(given)
                    if given:
                        self._give(worker, given, texts, timeout)
                busy = [worker for worker in waiting if worker.given]
                if not busy:
                    if over:
                        self._paces.append(pace)
                    return replies
                wait = min(worker.deadline for worker in busy) - time.monotonic()
                channels = [worker.channel for worker in busy]
                ready = _ready(channels, max(0.0, min(wait, _LONGEST_WAIT)))
                for worker in busy:
                    first = worker.given[0]
                    free = [first.message]
                    if worker.channel.fileno() in ready:
                        reply, seconds = self._take(worker)
                        replies[reply.metadata.reply_to_message_id] = reply
                    elif worker.deadline < time.monotonic():
                        log(WARNING, "No reply from %s in time.", self._name(worker))
                        free = [each.message for each in worker.given]
                        seconds = first.seconds
                        for message in free[1:]:  # with which it has not begun
                            of_node[message.metadata.dst_node_id].appendleft(message)
                        worker.end()
                    else:
                        continue
                    took, over = took + seconds, over + 1
                    pace = took / over
                    for message in reversed(free):
                        if of_node[message.metadata.dst_node_id]:
                            waiting[worker].appendleft(message.metadata.dst_node_id)
        finally:
            for worker in self._workers:
                if worker.given:  # an error is on its way, of which this is to hide nothing
                    with suppress(DeadWorkerError):
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
        self,
        worker: "_Worker",
        messages: Sequence[Message],
        texts: dict[int, str],
        timeout: float | None,
    ) -> None:
        """Have a worker answer messages, one after the other."""
        now, jobs, file, at_work = time.monotonic(), [], worker.next_file(), bool(worker.given)
        said: dict[str, int] = {}  # each record once
        for message in messages:
            context = self._contexts.look(message.metadata.dst_node_id)
            state, kept = store(context.state, len(self._contexts))
            content = {
                name: said.setdefault(texts[id(record)], len(said))
                for name, record in message.content.items()
            }
            node = context.node_id, context.node_config
            jobs.append((kept is not None, vars(message.metadata), *node, content, state))
            seconds = min(message.metadata.ttl, math.inf if timeout is None else timeout)
            if not worker.given:
                worker.begun = now
            worker.given.append(_Given(message, file, kept, seconds))
        text = json.dumps([self._edition, [*said], jobs]).encode()
        file.write([text])
        files = [given.kept for given in [*worker.given][-len(jobs) :] if given.kept is not None]
        try:
            _send(worker.channel, (worker.turn, len(text)), files)
        except ConnectionError:
            if not at_work:  # else its last replies tell which client it has played to the end
                raise self._death(worker, "before") from None

    def _take(self, worker: "_Worker") -> tuple[Message, float]:
        """Return a worker's next reply, and how many seconds it took.

        The client's new state is put where it belongs.
        """
        (start, size), new = _receive(worker.channel)
        if not size:
            raise self._death(worker, "while")
        given = worker.given.popleft()
        file, kept, message = given.file, given.kept, given.message
        told = json.loads(file.read((start, size)))

        def array(about: list[Any], place: list[int]) -> Array:
            begin, length, is_kept = place
            if not is_kept:
                return read_whole(about, file, (start + size + begin, length))
            # The client has delivered what it kept, and says where that is.
            assert kept is not None
            return read_whole(about, kept, (begin, length))

        if "error" in told:
            reply = Message(Error(*told["error"]), reply_to=message)
        else:
            content = {name: restore(each, array) for name, each in told["content"].items()}
            reply = Message(make_record(RecordDict, content), reply_to=message)
        if told["state"] is not None:
            context = self._contexts[message.metadata.dst_node_id]
            context.state = recall(told["state"], new[0] if new else kept)
        worker.begun = time.monotonic()
        return reply, told["seconds"]

    def _death(self, worker: "_Worker", when: str) -> DeadWorkerError:
        name, how = self._name(worker), how_ended(worker.end())
        error = DeadWorkerError(
            f"a worker process of the simulation has died ({how}) {when} it played {name}. It may "
            "have had too little memory (have fewer workers, with InProcessGrid(workers=) or "
            "--workers), or got a signal, or native code crashed in the app: then it has written "
            "to the command's standard error"
        )
        error.add_note(START_AGAIN)
        return error

    def _name(self, worker: "_Worker") -> str:
        node = worker.given[0].message.metadata.dst_node_id
        config = self._contexts.look(node).node_config
        return f"client {config.get('partition-id', f'at node {node}')}"


@dataclass
class _Given:
    """A message that a worker is to answer."""

    message: Message
    file: NamelessFile  # for the reply
    kept: NamelessFile | None  # with the arrays of its client's state
    seconds: float  # that it may take


class _Worker:
    """A worker process as the calling process sees it, started when it is first spoken to."""

    def __init__(
        self, index: int, files: tuple[NamelessFile, NamelessFile], forks: ForkServer
    ) -> None:
        self.given = deque[_Given]()  # in the order in which it answers
        self.turn = 0  # of the two files
        self.begun = 0.0  # with the first of them
        self._index, self._files, self._forks = index, files, forks
        self._process: tuple[int, socket] | None = None

    @property
    def channel(self) -> socket:
        if self._process is None:
            self._process = self._forks.start(self._index)
        return self._process[1]

    @property
    def deadline(self) -> float:
        return self.begun + self.given[0].seconds

    def room(self, share: int, pace: float) -> int:
        """Return how many messages it is to be given.

        Parameters
        ----------
        share : int
            Its share of those that are left.
        pace : float
            Seconds that a worker is to take for one.
        """
        quick = int(min(_AT_ONCE / max(pace, 1e-9), _MOST_AT_ONCE))
        if self.given and (len(self.given) > 1 or quick < 2):  # others may be free before it is
            return 0
        return min(share, max(1, quick))

    def next_file(self) -> NamelessFile:
        """Return a file all of whose replies have been taken."""
        self.turn = 1 - self.turn
        return self._files[self.turn]

    def end(self) -> int:
        """Kill the process, and return its status; there is another one when it is needed."""
        process, self._process = self._process, None
        self.given.clear()
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
        files: tuple[NamelessFile, NamelessFile],
        shared: NamelessFile,
        contexts: Contexts,
        answer: Answer,
    ) -> None:
        self._channel, self._files, self._shared = channel, files, shared
        self._num_clients, self._answer = len(contexts), answer
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
            (turn, size), files = _receive(self._channel)
            if not size:
                return
            file, at = self._files[turn], size
            edition, texts, jobs = json.loads(file.read((0, size)))
            if edition != self._edition:
                self._edition, self._records = edition, {}
            records = [self._record(text) for text in texts]
            for keeps, *job in jobs:
                text, data, new = self._play(records, job, files.pop(0) if keeps else None)
                end = file.write([text, *data], at)
                flush()
                _send(self._channel, (at, len(text)), [] if new is None else [new])
                at = end

    def _play(
        self,
        records: Sequence[Record],
        job: Sequence[Any],
        kept: NamelessFile | None,
    ) -> tuple[bytes, list[bytes], NamelessFile | None]:
        """Have a client answer; return the text and arrays to be told, and a new state's file."""
        begun = time.monotonic()
        metadata, node_id, node_config, content, state = job
        given = make_record(RecordDict, {name: records[each] for name, each in content.items()})
        message = Message(own_copy(given), 0, "train")
        vars(message.metadata).update(metadata)
        settings, before = dict(self._any.run_config), recall(state, kept)
        context = replace(
            self._any,
            node_id=node_id,
            node_config=node_config,
            state=before,
            run_config=settings,
        )
        said = self._answer(message, context)
        parts = Parts()

        def place(array: Array) -> tuple[int, int, bool]:
            if isinstance(array, StoredArray) and array.file is kept:
                return *array.place, True
            return *parts.add(array), False

        if isinstance(said, Error):
            told: dict[str, Any] = {"error": [said.code, said.reason]}
        else:
            told = {"content": {name: describe(r, place) for name, r in said.items()}}
        file = None
        told["state"] = None
        if context.state is not before and (context.state or before):
            told["state"], file = store(context.state, self._num_clients)
        told["seconds"] = time.monotonic() - begun
        return json.dumps(told).encode(), parts.data, None if file is kept else file

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


def _send(channel: socket, numbers: tuple[int, int], files: Sequence[NamelessFile]) -> None:
    """Send two numbers, and perhaps files."""
    send_fds(channel, [struct.pack("QQ", *numbers)], [file.descriptor for file in files])


def _receive(channel: socket) -> tuple[tuple[int, int], list[NamelessFile]]:
    """Return the numbers and the files that were sent; zeros if the other process has ended."""
    for _ in range(2):
        # An error tells, once, of a process that had not read all: its last words follow.
        with suppress(ConnectionError):
            data, descriptors = receive(channel, 16, _MOST_AT_ONCE)
            break
    else:
        return (0, 0), []
    first, second = struct.unpack("QQ", data or bytes(16))
    return (first, second), [NamelessFile(descriptor) for descriptor in descriptors]
