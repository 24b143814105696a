"""Sending marked messages and sorting out what comes back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from pncs_flower.messages.records import make_record
from pncs_flower.plain_text import plain_reason
from pncs_flower.protocol import MARKER, Phase

_OF_THE_SERVER = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
_OF_THE_APP = (
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.MOD_FAILED_PRECONDITION,
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
)
NOT_LOADED = "its app cannot be loaded, perhaps for want of a module; its own log says more"


@dataclass
class Replies:
    """The outcome of an exchange, by node id."""

    contents: dict[int, RecordDict] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)  # why the others did not answer
    bytes_up: int = 0
    by_app: set[int] = field(default_factory=set)  # failures that come of the node's own app
    by_node: set[int] = field(default_factory=set)  # not said by Flower's server in its place

    def content_of(self, node_id: int) -> RecordDict:
        """Return what a node has answered, or raise ValueError with the reason why nothing."""
        if node_id in self.failures:
            raise ValueError(self.failures[node_id])
        return self.contents[node_id]


def marked(content: RecordDict, phase: Phase, values: Mapping[str, Any]) -> RecordDict:
    """Return a message's content with the library's marker added; the records are shared."""
    marker = ConfigRecord({"phase": phase, **values})
    return make_record(RecordDict, {**content, MARKER: marker})


def message_like(
    template: Message,
    node_id: int,
    content: RecordDict,
    ttl: float | None = None,
    message_type: str | None = None,
) -> Message:
    """Make a message like a template, but to another node and with another content."""
    return Message(
        content,
        node_id,
        message_type or template.metadata.message_type,
        ttl=ttl,
        group_id=template.metadata.group_id or None,
    )


def expire(messages: Iterable[Message], seconds: float) -> None:
    """Let messages expire when nobody waits for their replies any more."""
    # Flower's live for 12 hours: a client that was busy would work through those of past rounds.
    for message in messages:
        message.metadata.ttl = min(message.metadata.ttl, seconds)


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of all names and values in a content's records, without framing."""
    # Flower's count_bytes raises on an empty text.
    size = 0
    for record in content.values():
        for name, value in record.items():
            size += _bytes(name) + _bytes(value)
    return size


def _bytes(value: object) -> int:
    if isinstance(value, str):  # half a pair of surrogates is no reason to end a run
        return len(value if value.isascii() else value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list):
        return sum(map(_bytes, value))
    return 1 if isinstance(value, bool) else 8


def sort_replies(sent: Iterable[Message], received: Iterable[Message], missing: str) -> Replies:
    """Sort replies by the node whose message they answer, once: a content or a failure for each."""
    node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
    replies = Replies()
    for message in received:
        node_id = node_of.pop(message.metadata.reply_to_message_id, None)
        if message.has_content():
            replies.bytes_up += content_bytes(message.content)
        if node_id is None:
            continue
        if not message.has_error() or message.error.code not in _OF_THE_SERVER:
            replies.by_node.add(node_id)
        if not message.has_error():
            replies.contents[node_id] = message.content
            continue
        reason = plain_reason(message.error.reason)
        if message.error.code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION:
            reason = f"{NOT_LOADED}: {reason}"
        # What Flower's server says of a message whose time is up. Its errors carry its own node id
        # as their source; a node that says so itself says something else.
        elif message.metadata.src_node_id != node_id and "expired due to its TTL" in reason:
            reason = missing
        replies.failures[node_id] = reason
        if message.error.code in _OF_THE_APP:
            replies.by_app.add(node_id)
    for node_id in node_of.values():
        replies.failures[node_id] = missing
    return replies
