"""Who takes part: each node is asked who it is, and what it says is checked and remembered."""

import math
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pncs_flower.plain_text import in_one_line
from pncs_flower.protocol import (
    EPOCHS,
    INTRODUCE,
    JOINT,
    MARKER,
    MOST_EPOCHS,
    NUM_EXAMPLES,
    PROBLEM,
    TAG,
    client_order,
)
from pncs_flower.tags import Tags, check_tags

from .. import timeouts
from ..errors import SelectionError
from ..grids.exchange import NOT_LOADED, Replies, content_bytes, sort_replies
from ..grids.polling import OpenMessages, PollingGrid
from ..options import SelectionOptions, takes_tags

# What Flower says of an app whose functions all have names of their own.
NO_FUNCTION = "No train function registered"
_NO_MOD = (
    "its app answered in place of the mod: put summary_mod first among the app's mods, "
    "ClientApp(mods=[summary_mod, ...]). The answer was"
)
_LONGEST_KEY = 200
_MOST_CLIENTS = 1_000_000
_LONGEST_PROBLEM = 600
_NO_TAGS: Tags = MappingProxyType({})  # one for all who have none


class _NoModError(ValueError):
    """An app has answered that is without the library's mod."""


@dataclass(frozen=True, slots=True)  # there is one for each client of the run
class _Introduction:
    """What a client says of itself; a number that it does not say, or that cannot be, is None."""

    key: str
    num_clients: int | None
    num_examples: int | None  # 0: it has none
    tags: Tags
    joint: bool  # whether it takes an evaluation and a request for a summary in one message
    epochs: float | None = None  # how often a training goes through its examples


def _read(content: RecordDict, max_weight: float) -> _Introduction:
    """Read an introduction; `_NoModError` if it is none, ValueError if it is of no use."""
    answer = content.config_records.get(MARKER, ConfigRecord())
    if PROBLEM in answer:
        raise ValueError(in_one_line(str(answer[PROBLEM])[:_LONGEST_PROBLEM]))
    if "key" not in answer:
        raise _NoModError("no error")
    key = answer["key"]
    if not isinstance(key, str):
        raise ValueError("the answer has no key")
    if not 0 < len(key) <= _LONGEST_KEY:
        raise ValueError(f"its key has {len(key)} letters, but must have 1 to {_LONGEST_KEY}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in key):
        raise ValueError(f"its key {key!r} has control characters or halves of letters in it")
    return _Introduction(
        key,
        _whole(answer, "num-clients", _MOST_CLIENTS) or None,
        _whole(answer, NUM_EXAMPLES, max_weight),
        check_tags({n.removeprefix(TAG): v for n, v in answer.items() if n.startswith(TAG)})
        or _NO_TAGS,
        answer.get(JOINT) is True,
        _epochs(answer.get(EPOCHS)),
    )


def _whole(answer: ConfigRecord, name: str, most: float) -> int | None:
    """Return a whole number, 0 for one that is below; None for anything else."""
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value > most:
        return None
    return max(0, value)


def _epochs(value: object) -> float | None:
    """Return a number of epochs; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and 0 < value <= MOST_EPOCHS else None


class Introductions:
    """Asks nodes who they are, and hands over the answers as they come."""

    # On Flower's own grids, a node that is slow keeps nobody from being heard. Any other grid is
    # given all at once, and what it does not answer then is a failure: it may do more than its
    # parts.

    def __init__(self, grid: Grid, clocked: bool = False) -> None:
        self._grid = grid
        self._question: dict[str, str | bool] = {"phase": INTRODUCE}
        self._question |= {EPOCHS: True} if clocked else {}
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

    def ask(self, node_ids: Sequence[int], seconds: float, message_type: str) -> None:
        """Ask nodes who they are; their answers count for so many seconds."""
        content = RecordDict({MARKER: ConfigRecord({**self._question})})
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


class Roster:
    """Remembers a run's clients by their keys, and which nodes did not say who they are."""

    # Node ids are drawn anew in each run and say nothing, so each node is asked once for its key
    # before it can be chosen.

    def __init__(self, options: SelectionOptions) -> None:
        self.options = options
        self._by_tags = takes_tags(options.eligible)
        self.keys: dict[int, str] = {}  # of nodes
        self._nodes: dict[str, int] = {}  # by key
        self._in_order = True  # whether these are in the order of keys
        self.clients: dict[str, _Introduction] = {}  # what each said last
        self.listed: list[str] = []  # who takes part, one list for all rounds while it is the same
        self.excluded: dict[str, str] = {}  # for the rest of the run, with the reason
        self.started = False  # whether a round has had its clients
        self.message_type: str = MessageType.TRAIN  # of the question who they are
        self.first_answer: float | None = None
        self.heard: set[int] = set()  # nodes that have ever answered
        self.final: set[int] = set()  # those whose app answered in place of the mod
        self.failures: dict[int, int] = {}  # how often nodes failed to say who they are
        self.next_try: dict[int, int] = {}  # the round to ask them again in

    def known(self, online: set[int]) -> list[str]:
        """Return the keys of the nodes that are there, whether or not they may take part."""
        return [self.keys[node_id] for node_id in self.keys.keys() & online]

    def present(self, online: set[int]) -> dict[str, int]:
        """Return those that take part: their nodes by key, in the order of keys."""
        if not self._in_order:
            self._nodes = {key: self._nodes[key] for key in sorted(self._nodes, key=client_order)}
            self._in_order = True
        return {
            key: node_id
            for key, node_id in self._nodes.items()
            if node_id in online and key not in self.excluded and self._is_eligible(key)
        }

    def most_say(self) -> int:
        """Return how many clients there are, as most of them say; 0 if most do not say it."""
        # One that says what is not so neither holds up a start nor cuts it short.
        said = Counter(client.num_clients or 0 for client in self.clients.values())
        most = max(said.values(), default=0)
        return min((number for number, times in said.items() if times == most), default=0)

    def sizes(self) -> dict[str, int]:
        """Return the numbers of examples that clients say to have, also 0."""
        return {
            key: client.num_examples
            for key, client in self.clients.items()
            if client.num_examples is not None
        }

    def tags(self) -> dict[str, Tags]:
        """Return what clients say of themselves, if they do."""
        return {key: client.tags for key, client in self.clients.items() if client.tags}

    def take(self, node_id: int, replies: Replies, online: set[int]) -> str | None:
        """Take up the client that a node says it is, or return the reason why not."""
        if node_id in replies.by_node:
            self.heard.add(node_id)
            if self.first_answer is None:
                self.first_answer = time.monotonic()
        self.final.discard(node_id)
        if node_id in replies.by_app:
            self.final.add(node_id)
            return self._hint(replies.failures[node_id])
        try:
            client = _read(replies.content_of(node_id), self.options.max_weight)
        except _NoModError as error:
            self.final.add(node_id)
            return f"{_NO_MOD} {error}"
        except ValueError as error:
            return str(error)
        holder = self._nodes.get(client.key)
        if holder in online:
            return (
                f"its key {client.key!r} is that of node {holder}: give each client a partition-id "
                "or a name of its own in its node config. If that node has been started again, "
                "this one takes its place as soon as Flower sees the old one gone"
            )
        if holder is not None:  # the client is back under a new node id
            del self.keys[holder]
        self.keys[node_id], self.clients[client.key] = client.key, client
        self._nodes[client.key], self._in_order = node_id, False
        return None

    def forget(self, client: str) -> None:
        """Forget what a client has said; if it is still there, it is asked again who it is."""
        self.clients.pop(client, None)
        if client in self._nodes:
            del self.keys[self._nodes.pop(client)]

    def _hint(self, reason: str) -> str:
        """Return what an app answered in place of the mod, with what to do about it."""
        if reason.startswith(NOT_LOADED):
            return reason
        if NO_FUNCTION in reason:
            return (
                f"its app has no function for messages of type {self.message_type!r}, which the "
                f"base strategy sends: {reason}"
            )
        return f"{_NO_MOD}: {reason}"

    def _is_eligible(self, key: str) -> bool:
        if self.options.eligible is None:
            return True
        try:
            if self._by_tags:
                return bool(self.options.eligible(key, self.clients[key].tags))
            return bool(self.options.eligible(key))
        except Exception as error:
            raise SelectionError(
                f"eligible({key!r}) raised {type(error).__name__}: {error}"
            ) from error
