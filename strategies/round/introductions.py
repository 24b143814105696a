"""Introductions: each node is asked who it is, and what it says is checked before it counts."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pncs_flower.plain_text import in_one_line
from pncs_flower.protocol import INTRODUCE, MARKER, NUM_EXAMPLES, PROBLEM

from .. import timeouts
from ..grids.exchange import Replies, content_bytes, sort_replies
from ..grids.polling import OpenMessages, PollingGrid

__all__ = ["Introduction", "Introductions", "NoModError", "read_introduction"]

_LONGEST_KEY = 200
_MOST_CLIENTS = 1_000_000
_LONGEST_PROBLEM = 600


class NoModError(ValueError):
    """An app has answered that is without the library's mod."""


@dataclass(frozen=True)
class Introduction:
    """What a client says of itself; a number that it does not say, or that cannot be, is None."""

    key: str
    num_clients: int | None
    num_examples: int | None  # 0: it has none


def read_introduction(content: RecordDict, max_weight: float) -> Introduction:
    """Read an introduction; `NoModError` if it is none, ValueError if it is of no use."""
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
    return Introduction(
        key,
        _whole(answer, "num-clients", _MOST_CLIENTS) or None,
        _whole(answer, NUM_EXAMPLES, max_weight),
    )


def _whole(answer: ConfigRecord, name: str, most: float) -> int | None:
    """Return a whole number, 0 for one that is below; None for anything else."""
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value > most:
        return None
    return max(0, value)


class Introductions:
    """Asks nodes who they are, and hands over the answers as they come.

    On Flower's own grids, a node that is slow keeps nobody from being heard. Any other grid is
    given all at once, and what it does not answer then is a failure: it may do more than its parts.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open = OpenMessages(grid) if isinstance(grid, PollingGrid) else None
        self._sent: dict[int, Message] = {}
        self._found: list[Message] = []
        self._missing = ""
        self.bytes_down = self.bytes_up = 0

    @property
    def waiting(self) -> set[int]:
        """Nodes that have not answered yet."""
        return set(self._sent)

    @property
    def pause(self) -> float:
        """Seconds until it is worth while to look again."""
        if self._open is None or not self._sent:
            return timeouts.LOOK_FOR_CLIENTS
        return self._open.pause()

    def ask(
        self, node_ids: Sequence[int], seconds: float, message_type: str = MessageType.TRAIN
    ) -> None:
        """Ask nodes who they are; their answers count for so many seconds."""
        content = RecordDict({MARKER: ConfigRecord({"phase": INTRODUCE})})
        messages = [Message(content, n, message_type, ttl=seconds) for n in node_ids]
        self.bytes_down += sum(content_bytes(message.content) for message in messages)
        self._sent |= {message.metadata.dst_node_id: message for message in messages}
        self._missing = f"no reply within {seconds:.0f} s"
        if self._open is not None:
            self._open.add(messages)
        else:
            self._found = list(self._grid.send_and_receive(messages, timeout=seconds))

    def answers(self) -> Replies:
        """Return the answers that have come since the last look."""
        found, asked = self._found, list(self._sent.values())
        self._found = []
        if self._open is not None:
            found = self._open.look()
            ids = {reply.metadata.reply_to_message_id for reply in found}
            asked = [message for message in asked if message.metadata.message_id in ids]
        replies = sort_replies(asked, found, self._missing)
        for message in asked:
            del self._sent[message.metadata.dst_node_id]
        self.bytes_up += replies.bytes_up
        return replies
