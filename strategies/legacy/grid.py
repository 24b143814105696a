"""A grid over the client proxies of Flower's older servers, for the pre-round alone.

Each message becomes a ``get_properties`` request: to any other, an older client would answer with
all of its weights.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import uuid4

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common import Code, GetPropertiesIns, GetPropertiesRes
from flwr.common.constant import ErrorCode
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid

from pncs_flower.layers import ALL_LAYERS
from pncs_flower.messages.arrays import NUMPY, read_array
from pncs_flower.properties import pack_properties, unpack_properties
from pncs_flower.protocol import MARKER, SUMMARY, WHOLE

_FIRST_NODE_ID = 1000
_REMEDY = (
    "is its client wrapped, SummaryClient(MyClient().to_client(), context)? See "
    "pncs_flower.clients.legacy"
)


class ProxyGrid(Grid):
    """Ask the clients of a client manager, all at the same time."""

    def __init__(self) -> None:
        self.manager: ClientManager | None = None  # the server's, set anew in each round
        # By the node ids that this grid gives them: older servers know their clients by texts.
        self.proxies: dict[int, ClientProxy] = {}
        self._id_of: dict[str, int] = {}

    # The rest of Flower's interface, which nothing calls: an older server has no run, and its
    # clients are asked and answer in one call.
    push_messages = pull_messages = set_run = create_message = run = None  # type: ignore[assignment]

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of the clients that are connected."""
        online = {} if self.manager is None else self.manager.all()
        nodes = {self.node_id(proxy): proxy for proxy in online.values()}
        self.proxies |= nodes  # a client may be back under another proxy
        return list(nodes)

    def node_id(self, proxy: ClientProxy) -> int:
        """Return the node id of a client."""
        return self._id_of.setdefault(proxy.cid, _FIRST_NODE_ID + len(self._id_of))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Ask each client in a thread of its own, and return the answers that come in time."""
        answers: list[Message] = []
        threads = []
        for message in messages:
            give_id(message)
            ask = partial(self._ask, message, timeout, answers.append)
            # A client that never answers keeps its thread, which must not keep the process.
            threads.append(threading.Thread(target=ask, daemon=True))
            threads[-1].start()
        end = None if timeout is None else time.monotonic() + timeout
        for thread in threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return answers.copy()

    def _ask(self, message: Message, timeout: float | None, put: Callable[[Message], None]) -> None:
        proxy = self.proxies[message.metadata.dst_node_id]
        group = int(message.metadata.group_id or 0)
        try:
            result = proxy.get_properties(_request(message.content), timeout, group)
            put(Message(_answer(result), reply_to=message))
        # Whatever goes wrong with one client, in the network or in its app, is its error reply.
        except Exception as error:
            put(error_reply(message, f"{type(error).__name__}: {error}"))


def error_reply(message: Message, reason: str) -> Message:
    """Return a client's failure as the reply to a message."""
    return Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message)


def give_id(message: Message) -> None:
    """Give a message the id that Flower's server would give it, by which answers are known."""
    message.metadata.__dict__["_message_id"] = uuid4().hex


def to_array(data: bytes) -> Array:
    """Return an array that knows its dtype and shape; one that cannot be read is left as it is."""
    array = Array(dtype="", shape=(), stype=NUMPY, data=data)
    try:
        values = read_array(array)
    except ValueError:
        return array
    return Array(dtype=str(values.dtype), shape=values.shape, stype=NUMPY, data=data)


def _request(content: RecordDict) -> GetPropertiesIns:
    model = content.array_records.get("arrays", ArrayRecord())
    arrays = {name: array.data for name, array in model.items()}
    config: dict[str, Any] = {**content.config_records.get("config", {})}
    return GetPropertiesIns(pack_properties(content.config_records[MARKER], arrays, config))


def _answer(result: GetPropertiesRes) -> RecordDict:
    if result.status.code != Code.OK:
        raise ValueError(f"{result.status.message}; {_REMEDY}")
    unpacked = unpack_properties(result.properties)
    if unpacked is None:
        raise ValueError(f"its properties are not what was asked for; {_REMEDY}")
    marker, arrays, _ = unpacked
    summary = ArrayRecord({name: to_array(data) for name, data in arrays.items()})
    content = RecordDict({MARKER: ConfigRecord(marker), SUMMARY: summary})
    if WHOLE in summary:
        content[WHOLE] = ArrayRecord({ALL_LAYERS: summary.pop(WHOLE)})
    return content
