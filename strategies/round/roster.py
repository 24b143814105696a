"""Who takes part: the nodes that have said who they are, and those that could not."""

import time
from collections import Counter

from flwr.app import MessageType

from pncs_flower.protocol import client_order

from .. import timeouts
from ..errors import SelectionError
from ..grids.exchange import NOT_LOADED, Replies
from ..options import SelectionOptions
from .introductions import Introduction, NoModError, read_introduction

__all__ = ["NO_FUNCTION", "Roster"]

# What Flower says of an app whose functions all have names of their own.
NO_FUNCTION = "No train function registered"
_NO_MOD = (
    "its app answered in place of the mod: put summary_mod first among the app's mods, "
    "ClientApp(mods=[summary_mod, ...]). The answer was"
)


class Roster:
    """Remembers a run's clients by their keys, and which nodes did not say who they are.

    Node ids are drawn anew in each run and say nothing, so each node is asked once for its key
    before it can be chosen.
    """

    def __init__(self, options: SelectionOptions) -> None:
        self.options = options
        self.keys: dict[int, str] = {}  # of nodes
        self.clients: dict[str, Introduction] = {}  # what each said last
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
        return [self.keys[node_id] for node_id in online if node_id in self.keys]

    def present(self, online: set[int]) -> dict[str, int]:
        """Return those that take part: their nodes by key, in the order of keys."""
        nodes = {key: node_id for node_id, key in self.keys.items() if node_id in online}
        return {
            key: nodes[key]
            for key in sorted(nodes, key=client_order)
            if key not in self.excluded and self._is_eligible(key)
        }

    def most_say(self) -> int:
        """Return how many clients there are, as most of them say; 0 if most do not say it.

        One that says what is not so neither holds up a start nor cuts it short.
        """
        said = Counter(client.num_clients or 0 for client in self.clients.values())
        most = max(said.values(), default=0)
        return min((number for number, times in said.items() if times == most), default=0)

    def sizes(self) -> dict[str, int]:
        """Return the numbers of examples that clients say to have, also 0."""
        said = {key: client.num_examples for key, client in self.clients.items()}
        return {key: size for key, size in said.items() if size is not None}

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
            client = read_introduction(replies.content_of(node_id), self.options.max_weight)
        except NoModError as error:
            self.final.add(node_id)
            return f"{_NO_MOD} {error}"
        except ValueError as error:
            return str(error)
        holder = next((node for node, key in self.keys.items() if key == client.key), None)
        if holder in online:
            return (
                f"its key {client.key!r} is that of node {holder}: give each client a partition-id "
                "or a name of its own in its node config. If that node has been started again, "
                "this one takes its place as soon as Flower sees the old one gone"
            )
        if holder is not None:  # the client is back under a new node id
            del self.keys[holder]
        self.keys[node_id], self.clients[client.key] = client.key, client
        return None

    def note_failure(self, node_id: int, number: int) -> None:
        """Leave a node alone for some rounds, and for more of them each time."""
        times = self.failures[node_id] = self.failures.get(node_id, 0) + 1
        self.next_try[node_id] = number + timeouts.rounds_of_rest(times)

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
            return bool(self.options.eligible(key))
        except Exception as error:
            raise SelectionError(
                f"eligible({key!r}) raised {type(error).__name__}: {error}"
            ) from error
