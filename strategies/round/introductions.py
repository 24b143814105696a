"""Introductions: each node is asked who it is, and what it says is checked before it counts."""

import time
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pncs_flower.plain_text import in_one_line
from pncs_flower.protocol import INTRODUCE, MARKER, NUM_EXAMPLES, PROBLEM, client_order

from .. import timeouts
from ..errors import SelectionError, TooFewClientsError
from ..grids.exchange import content_bytes, sort_replies
from ..grids.polling import OpenMessages, PollingGrid

__all__ = ["Answer", "Introduction", "Introductions", "NoModError", "read_introduction", "too_few"]

_LONGEST_KEY = 200
_MOST_CLIENTS = 1_000_000
_LONGEST_PROBLEM = _LONGEST_TEXT = 600
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
    """What a client says of itself; what it does not say, or what cannot be, is 0 or None."""

    key: str
    num_clients: int
    num_examples: int | None
    without_examples: bool


@dataclass(frozen=True)
class Answer:
    """One node's answer: a content, or why there is none."""

    node_id: int
    content: RecordDict | None
    failure: str
    by_node: bool  # and not Flower's server in its place
    by_app: bool  # it is the node's own app that failed


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
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open: OpenMessages | None = None
        if isinstance(grid, PollingGrid):
            self._open = OpenMessages(grid)
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
        return timeouts.LOOK_FOR_CLIENTS if self._open is None else self._open.pause()

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


def too_few(
    clients: Collection[str],
    known: Sequence[str],
    num_selected: int,
    failures: Mapping[int, str],
    heard: Collection[int],
    excluded: Collection[str],
    waited: float,
) -> SelectionError:
    """Return the error of a round with too few clients: some are known, some were heard."""
    if failures and not known:
        return _nobody_introduced(failures, heard, waited)
    short = f"{len(clients)} clients take part, but num_selected is {num_selected}"
    if len(known) >= num_selected:
        left_out = [key for key in known if key in excluded]
        refused = [key for key in known if key not in clients and key not in excluded]
        told = "; ".join(
            [f"eligible refuses {_some(refused)} (keys are text)"] * bool(refused)
            + [f"left out for the rest of the run: {_some(left_out)}"] * bool(left_out)
        )
        remedy = "Have eligible take more of them, or lower" if refused else "Lower"
        return TooFewClientsError(
            f"{short}: {len(known)} are here, but {told}. {remedy} num_selected"
        )
    reasons = "".join(f"; node {node_id}: {why}" for node_id, why in failures.items())
    longer = ", or wait for longer: with a larger start_timeout, and later wait_timeout"
    return TooFewClientsError(
        f"{short}; waited {waited:.0f} s{reasons[:_LONGEST_TEXT]}. Start more clients, or lower "
        f"num_selected{longer if failures.keys() - set(heard) else ''}"
    )


def _nobody_introduced(
    failures: Mapping[int, str], heard: Collection[int], waited: float
) -> SelectionError:
    answered = [node_id for node_id in failures if node_id in heard]
    node_id = (answered or list(failures))[0]
    of_one = f"of node {node_id}: {failures[node_id]}"
    if not answered:
        return SelectionError(
            f"none of the {len(failures)} clients that are connected has answered in {waited:.0f} "
            f"s; {of_one}. They are still starting (large imports, few CPUs) or hang: their own "
            "log says more. A larger start_timeout waits for longer"
        )
    starting = len(failures) - len(answered)
    others = f", and {starting} of them have not answered yet" if starting else ""
    return SelectionError(
        f"none of the {len(failures)} clients could introduce itself in {waited:.0f} s{others}; "
        f"{of_one}"
    )


def _some(keys: Sequence[str]) -> str:
    """Return the first of some keys as text."""
    first = ", ".join(repr(key) for key in sorted(keys, key=client_order)[:3])
    return first + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
