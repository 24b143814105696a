"""A grid over the client proxies of Flower's older servers, for the pre-round alone.

Each message becomes a ``get_properties`` request: to any other, an older client would answer with
all of its weights.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common import Code, GetPropertiesIns, GetPropertiesRes
from flwr.common.constant import ErrorCode
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid

from pncs_flower.properties import pack_properties, unpack_properties
from pncs_flower.protocol import MARKER, SUMMARY

__all__ = ["ProxyGrid", "give_id", "only_array"]

_FIRST_NODE_ID = 1000
_REMEDY = (
    "is its client wrapped, SummaryClient(MyClient().to_client(), context)? See "
    "pncs_flower.clients.legacy"
)


def _not_there(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "an older server has no run, and its clients are asked and answer in one call"
    )


class ProxyGrid(Grid):
    """Ask the clients of a client manager, all at the same time."""

    def __init__(self) -> None:
        self.manager: ClientManager | None = None  # the server's, set anew in each round
        # By the node ids that this grid gives them: older servers know their clients by texts.
        self.proxies: dict[int, ClientProxy] = {}
        self._id_of: dict[str, int] = {}

    # The rest of Flower's interface, which nothing calls.
    push_messages = pull_messages = set_run = create_message = _not_there
    run = property(_not_there)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the clients that are connected."""
        online = [] if self.manager is None else list(self.manager.all().values())
        for proxy in online:
            self.proxies[self.node_id(proxy)] = proxy  # a client may be back under another proxy
        return [self.node_id(proxy) for proxy in online]

    def node_id(self, proxy: ClientProxy) -> int:
        """Return the node id of a client."""
        return self._id_of.setdefault(proxy.cid, _FIRST_NODE_ID + len(self._id_of))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask each client in a thread of its own, and return the answers that come in time."""
        answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        asked = list(messages)
        for message in asked:
            give_id(message)
            # A client that never answers keeps its thread, which must not keep the process.
            ask = partial(self._ask, message, timeout, answers.put)
            threading.Thread(target=ask, daemon=True).start()
        end = None if timeout is None else time.monotonic() + timeout
        taken: list[Message] = []
        with suppress(queue.Empty):
            for _ in asked:
                left = None if end is None else max(0.0, end - time.monotonic())
                taken.append(answers.get(timeout=left))
        return taken

    def _ask(self, message: Message, timeout: float | None, put: Callable[[Message], None]) -> None:
        proxy = self.proxies[message.metadata.dst_node_id]
        group = int(message.metadata.group_id or 0)
        try:
            result = proxy.get_properties(_request(message.content), timeout, group)
            put(Message(_answer(result), reply_to=message))
        # Whatever goes wrong with one client, in the network or in its app, is its error reply.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            put(Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message))


def give_id(message: Message) -> None:
    """Give a message the id that Flower's server would give it, by which answers are known."""
    message.metadata.__dict__["_message_id"] = uuid4().hex


def only_array(data: bytes) -> Array:
    """Return bytes in NumPy's format as an array; what they hold is checked by who reads them."""
    return Array(dtype="", shape=(), stype="numpy.ndarray", data=data)


def _request(content: RecordDict) -> GetPropertiesIns:
    config: dict[str, Any] = {}
    arrays: dict[str, bytes] = {}
    for name, record in content.config_records.items():
        config |= {} if name == MARKER else record
    for model in content.array_records.values():
        arrays |= {name: array.data for name, array in model.items()}
    return GetPropertiesIns(pack_properties(content.config_records[MARKER], arrays, config))


def _answer(result: GetPropertiesRes) -> RecordDict:
    if result.status.code != Code.OK:
        raise ValueError(f"{result.status.message}; {_REMEDY}")
    unpacked = unpack_properties(result.properties)
    if unpacked is None:
        raise ValueError(f"its properties are not what was asked for; {_REMEDY}")
    marker, arrays, _ = unpacked
    summary = ArrayRecord({name: only_array(data) for name, data in arrays.items()})
    return RecordDict({MARKER: ConfigRecord(marker), SUMMARY: summary})
