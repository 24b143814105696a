"""Introductions: each node is asked who it is, and what it says is checked before it counts."""

import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pncs_flower.plain_text import in_one_line
from pncs_flower.protocol import INTRODUCE, MARKER, NUM_EXAMPLES, PROBLEM

from ..grids.exchange import content_bytes, sort_replies
from ..grids.polling import OpenMessages, PollingGrid

__all__ = ["Answer", "Introduction", "Introductions", "NoModError", "read_introduction"]

_LONGEST_KEY = 200
_MOST_CLIENTS = 1_000_000
_LONGEST_PROBLEM = 600
# What Flower's server says by itself is no sign of life.
_BY_SERVER = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)


class NoModError(ValueError):
    """An app has answered that is without the library's mod."""


@dataclass(frozen=True)
class Introduction:
    """What a client says of itself.

    Attributes
    ----------
    key : str
        Its stable key.
    num_clients : int
        How many clients there are; 0 if it does not say, or says what cannot be.
    num_examples : int or None
        How many training examples it has; None if it does not say, or says what cannot be.
    without_examples : bool
        Whether it says that it has none.
    """

    key: str
    num_clients: int
    num_examples: int | None
    without_examples: bool


@dataclass(frozen=True)
class Answer:
    """One node's answer.

    Attributes
    ----------
    node_id : int
        The node.
    content : RecordDict or None
        What it sent; None if it failed.
    failure : str
        Why it failed.
    by_node : bool
        Whether the node itself has answered, and not Flower's server in its place.
    by_app : bool
        Whether the failure comes of the node's own app; see `Replies`.
    """

    node_id: int
    content: RecordDict | None
    failure: str
    by_node: bool
    by_app: bool


def read_introduction(content: RecordDict, max_weight: float) -> Introduction:
    """Read an introduction.

    Parameters
    ----------
    content : RecordDict
        What a node sent.
    max_weight : float
        The most examples that a client may have.

    Raises
    ------
    NoModError
        If it is no introduction at all.
    ValueError
        If the client says that it cannot, or has no key that can be used.
    """
    answer = content.config_records.get(MARKER, ConfigRecord())
    if PROBLEM in answer:
        raise ValueError(in_one_line(str(answer[PROBLEM])[:_LONGEST_PROBLEM]))
    if "key" not in answer:
        raise NoModError("no error")
    key = answer["key"]
    if not isinstance(key, str):
        raise ValueError("the answer has no key")
    if not 0 < len(key) <= _LONGEST_KEY:
        raise ValueError(f"its key has {len(key)} letters, but must have 1 to {_LONGEST_KEY}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in key):
        raise ValueError(f"its key {key!r} has control characters or halves of letters in it")
    num_clients, num_examples = _whole(answer, "num-clients"), _whole(answer, NUM_EXAMPLES)
    return Introduction(
        key,
        num_clients if num_clients is not None and 1 <= num_clients <= _MOST_CLIENTS else 0,
        num_examples if num_examples is not None and 1 <= num_examples <= max_weight else None,
        without_examples=num_examples is not None and num_examples <= 0,
    )


def _whole(answer: ConfigRecord, name: str) -> int | None:
    """Return a whole number; None for anything else."""
    value = answer.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Introductions:
    """Asks nodes who they are, and hands over the answers as they come.

    On Flower's own grids, a node that is slow keeps nobody from being heard. Any other grid is
    given all at once: it may do more than its parts do.

    Parameters
    ----------
    grid : Grid
        The grid.

    Attributes
    ----------
    bytes_down, bytes_up : int
        Bytes of all contents so far.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open: OpenMessages | None = None
        if isinstance(grid, PollingGrid):
            self._open = grid.open_messages([])
        self._sent: dict[int, Message] = {}
        self._found: list[Message] = []
        self._given_up: dict[int, str] = {}  # by a grid that is given all at once
        self.bytes_down = self.bytes_up = 0

    @property
    def waiting(self) -> set[int]:
        """Nodes that have not answered yet."""
        return set(self._sent)

    @property
    def pause(self) -> float:
        """Seconds until it is worth while to look again."""
        return 0.2 if self._open is None else self._open.pause()

    def ask(
        self, node_ids: Sequence[int], seconds: float, message_type: str = MessageType.TRAIN
    ) -> None:
        """Ask nodes who they are; their answers count for so many seconds."""
        content = RecordDict({MARKER: ConfigRecord({"phase": INTRODUCE})})
        messages = [Message(content, n, message_type, ttl=seconds) for n in node_ids]
        self.bytes_down += sum(content_bytes(message.content) for message in messages)
        self._sent |= {message.metadata.dst_node_id: message for message in messages}
        if self._open is not None:
            self._open.add(messages)
        elif messages:
            self._found += self._grid.send_and_receive(messages, timeout=seconds)
            self._given_up = dict.fromkeys(node_ids, f"no reply within {seconds:.0f} s")

    def answers(self) -> list[Answer]:
        """Return the answers that have come since the last look, by node id."""
        found = self._found if self._open is None else self._open.look()
        self._found = []
        by_id = {message.metadata.message_id: message for message in self._sent.values()}
        answered = [reply for reply in found if reply.metadata.reply_to_message_id in by_id]
        asked = [by_id[reply.metadata.reply_to_message_id] for reply in answered]
        replies = sort_replies(asked, answered, "no answer in time")
        self.bytes_up += replies.bytes_up
        alive = {by_id[r.metadata.reply_to_message_id].metadata.dst_node_id for r in _own(answered)}
        for message in asked:
            self._sent.pop(message.metadata.dst_node_id, None)
        contents, failures = replies.contents, replies.failures
        for node_id in self._given_up.keys() & self._sent.keys():
            failures[node_id] = self._given_up[node_id]
            del self._sent[node_id]
        self._given_up = {}
        return [
            Answer(
                node_id,
                contents.get(node_id),
                failures.get(node_id, ""),
                by_node=node_id in alive,
                by_app=node_id in replies.by_app,
            )
            for node_id in sorted(contents.keys() | failures.keys())
        ]

    def end(self, start: float) -> dict[int, str]:
        """Return why nodes are left that have not answered, and wait for none of them any more."""
        seconds = time.monotonic() - start
        reasons = dict.fromkeys(self._sent, f"no answer within {seconds:.0f} s")
        self._sent = {}
        return reasons


def _own(replies: Iterable[Message]) -> list[Message]:
    """Return the replies that nodes have made themselves."""
    return [r for r in replies if r.has_content() or r.error.code not in _BY_SERVER]
