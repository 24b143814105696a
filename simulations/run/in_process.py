"""A grid that calls the real ClientApp on this machine: no Ray, no network, the same bits."""

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from logging import ERROR, WARNING
from traceback import walk_tb
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pncs_flower.clients.kept import drop_kept, ticket_of
from pncs_flower.messages.records import make_message, own_copy
from pncs_flower.protocol import MARKER, TICKET, TRAIN
from pncs_flower.strategies.checks import check_whole
from pncs_flower.strategies.grids.releases import Run, set_task_identity

from .contexts import Contexts

if TYPE_CHECKING:
    from .workers import Workers

# PyTorch then asks the driver whether there is a GPU, and starts no CUDA, of which workers that are
# forked afterwards could make no use.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

_FIRST_NODE_ID = 1000
_RUN_ID = 1


def check_workers(workers: int) -> None:
    """Refuse a number of workers that cannot be."""
    check_whole(least=1, workers=workers)
    if workers > 1 and sys.platform != "linux":
        raise ValueError(f"workers = {workers} needs Linux: leave it at 1 on {sys.platform}")


class InProcessGrid(Grid):
    """Run simulated clients in the calling process, or in worker processes on this machine.

    A client sees what it would see in a process of its own: records of its own, and a state that
    is kept only if its app returns. Messages are handled when they are pushed.

    With workers, clients compute at the same time, each on one thread. The workers are forked when
    the grid is made (Linux): they have the app and whatever else is in memory then, data sets too,
    without a copy, and never see what becomes of it in the calling process. Make the grid before
    that process uses CUDA or JAX. A client that takes longer for a message than the timeout of
    `send_and_receive`, or the message's time to live, has not answered, and its worker is replaced;
    a worker that dies ends the run with a `DeadWorkerError`. The grid is closed by ``with``, or
    when it is forgotten::

        with InProcessGrid(app, 100, workers=4) as grid:
            strategy.start(grid, initial_arrays)

    Parameters
    ----------
    client_app : ClientApp
        The app that every client runs, with its mods.
    num_clients : int
        How many clients there are; client i has ``partition-id`` i.
    run_config : mapping of str to scalar, optional (default: empty)
        What the clients read from ``context.run_config``.
    tracebacks : bool (default: False)
        Whether what a client raises is also logged, with where it comes from.
    workers : int (default: 1)
        How many processes play clients; 1: the calling process does.
    """

    simulated = True  # all nodes are there from the start

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        run_config: Mapping[str, bool | int | float | str] | None = None,
        *,
        tracebacks: bool = False,
        workers: int = 1,
    ) -> None:
        check_whole(least=0, num_clients=num_clients)
        check_workers(workers)
        set_task_identity(_RUN_ID)
        self._app = client_app
        self._tracebacks = tracebacks
        self._replies: dict[str, Message] = {}
        # One for all clients: each message brings a copy, and only a state with something in it
        # takes the place of the empty one.
        settings, empty = dict(run_config or {}), RecordDict()

        def make(node_id: int) -> Context:
            return Context(
                run_id=_RUN_ID,
                node_id=node_id,
                node_config={
                    "partition-id": node_id - _FIRST_NODE_ID,
                    "num-partitions": num_clients,
                },
                state=empty,
                run_config=settings,
            )

        self.contexts = Contexts(range(_FIRST_NODE_ID, _FIRST_NODE_ID + num_clients), make)
        self._timeout: float | None = None
        self._decided = set[str]()  # tickets of the pre-rounds whose chosen were asked last
        self._may_keep = set[int]()  # nodes that may keep an update
        self._closed = False
        self._workers: Workers | None = None
        if workers > 1:
            from . import workers as processes  # which only Linux can import

            if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
                log(
                    WARNING,
                    "This process has used CUDA, so clients in its workers cannot: make the grid "
                    "before, or have the clients compute on the CPU.",
                )
            self._workers = processes.Workers(workers, self.contexts, self._answer)

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._workers is not None:
            self._closed = True
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of all clients."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have every message handled by its client and keep the replies."""
        if self._closed:
            raise ValueError("the grid is closed, and its workers have ended: make another one")
        messages, sent = list(messages), []
        self._drop_what_is_decided(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = message_id = uuid4().hex
            if message.metadata.dst_node_id not in self.contexts:
                continue  # Flower, too, drops a message to an unknown node
            sent.append(message)
            if self._workers is None:
                self._replies[message_id] = self._handle(message)
        if self._workers is not None:
            self._replies |= self._workers.play(sent, self._timeout)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand over the replies to these messages, once."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies, of which there is none that comes later."""
        self._timeout = timeout
        try:
            return self.pull_messages(self.push_messages(messages))
        finally:
            self._timeout = None

    def _drop_what_is_decided(self, messages: list[Message]) -> None:
        """Have clients drop the updates of a pre-round whose chosen have delivered."""
        # They would do it with their next message, but a client of many may not get one for long.
        # The chosen are asked in one exchange after the other, if some had lost their update.
        tickets, asked = set[str](), set[int]()
        for message in messages:
            marker = message.content.get(MARKER)
            if isinstance(marker, ConfigRecord) and TICKET in marker:
                asked.add(message.metadata.dst_node_id)
                if marker.get("phase") == TRAIN:
                    tickets.add(str(marker[TICKET]))
        if self._decided and self._decided != tickets:
            for node_id in self._may_keep & self.contexts.keys():
                state = self.contexts[node_id].state
                if ticket_of(state) in self._decided:
                    drop_kept(state)
                if ticket_of(state) is None:
                    self._may_keep.discard(node_id)
        self._may_keep |= asked
        self._decided = tickets

    def _handle(self, message: Message) -> Message:
        """Have a client of this process answer a message."""
        node_id = message.metadata.dst_node_id
        client = self.contexts.look(node_id)
        context = replace(client, run_config=dict(client.run_config))
        said = self._answer(make_message(message.metadata, own_copy(message.content)), context)
        if client.state or context.state:
            self.contexts[node_id].state = context.state
        return Message(said, reply_to=message)

    def _answer(self, message: Message, context: Context) -> RecordDict | Error:
        """Call the app with records of its own, and return what it says; see to the state."""
        before = context.state
        context.state = own_copy(before)
        try:
            reply = self._app(message, context)
            return reply.error if reply.has_error() else own_copy(reply.content)
        except (Exception, SystemExit) as error:  # whatever an app raises is an error reply
            if isinstance(error, SystemExit) and _is_of_a_signal(error):
                raise
            context.state = before
            if self._tracebacks:
                place = context.node_config["partition-id"]
                log(ERROR, "Client %s raised an exception.", place, exc_info=error)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Error(code, f"{type(error)}:<'{error}'>")

    # The rest of Flower's interface, which only its own runtime needs.

    @property
    def run(self) -> Run:
        """Return the run that the clients believe to be in."""
        return Run.create_empty(_RUN_ID)

    def set_run(self, run: Run) -> None:
        """Ignore the run: there is only one."""

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (deprecated in Flower; use `Message`)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


def _is_of_a_signal(error: SystemExit) -> bool:
    """Tell whether a signal is to end this process, and not a client that it plays."""
    if isinstance(error.code, int) and error.code > 128:  # as a signal's exit code is
        return True
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))
