"""Who takes part: a bounded wait for clients, and their stable keys."""

import math
import time
from collections.abc import Callable, Mapping
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from pncs_flower.protocol import INTRODUCE, MARKER, NUM_EXAMPLES, PROBLEM, client_order

from .errors import SelectionError, TooFewClientsError
from .exchange import content_bytes, exchange
from .history import RoundRecord

__all__ = ["Roster"]

_POLL = 0.2
_RETRY = 10.0  # seconds until a node that failed is asked again, while clients are missing
_AGAIN = 3.0  # ... while the apps of all nodes answer in place of the mod
_LONGEST_REST = 16  # rounds
_LONGEST_TEXT = 600
_LONGEST_KEY = 200
# What Flower says of an app whose functions all have names of their own.
_NO_FUNCTION = "No train function registered"
_NO_MOD = (
    "its app answered in place of the mod: put summary_mod first among the app's mods, "
    "ClientApp(mods=[summary_mod, ...]). The answer was"
)


class Roster:
    """Keeps track of the clients that are online and of who they are.

    Node ids are drawn anew in each run and say nothing, so each node is asked once for its key
    before it can be chosen.

    Parameters
    ----------
    min_clients : int or None
        Wait for this many clients before the first round. If None, clients of a simulation say
        how many there are; of a deployment, there need to be enough for one round.
    wait_timeout : float
        Seconds to wait for clients, and for one to introduce itself.
    eligible : callable or None
        ``eligible(key) -> bool``: clients that may take part at all.

    Attributes
    ----------
    num_examples : dict of str to float
        How many training examples clients have, of those that say so.
    without_examples : set of str
        Clients that say to have no training example.
    excluded : dict of str to str
        Clients left out for the rest of the run, with the reason.
    """

    def __init__(
        self,
        min_clients: int | None,
        wait_timeout: float,
        eligible: Callable[[str], bool] | None,
    ) -> None:
        self._min_clients = min_clients
        self._wait_timeout = wait_timeout
        self._eligible = eligible
        self._key_of_node: dict[int, str] = {}
        self._declared = 0
        self.num_examples: dict[str, float] = {}
        self.without_examples: set[str] = set()
        self.excluded: dict[str, str] = {}
        self._complete_once = False
        self._message_type = MessageType.TRAIN
        self._without_mod: set[int] = set()
        # Of nodes that failed to introduce themselves: how often, and the round to try again in.
        self._failed: dict[int, int] = {}
        self._next_try: dict[int, int] = {}

    def update(
        self,
        grid: Grid,
        num_selected: int,
        record: RoundRecord,
        evaluating: int = 0,
        message_type: Callable[[list[int]], str] | None = None,
    ) -> dict[str, int]:
        """Wait for clients, meet the new ones, and return those that take part.

        Parameters
        ----------
        grid : Grid
            The grid.
        num_selected : int
            How many clients a round needs at least.
        record : RoundRecord
            Takes the clients, the introductions that failed, bytes and seconds.
        evaluating : int (default: 0)
            How many clients the base strategy evaluates on; they are waited for once, at the start.
        message_type : callable, optional (default: None)
            ``message_type(node_ids) -> str``: the type of the base strategy's training messages.
            Asked, once, if no node has a train function without a name: only a message that some
            function is there for reaches a mod.

        Returns
        -------
        dict of str to int
            Node id of each client, by key, in the order of keys.

        Raises
        ------
        TooFewClientsError
            If there are still fewer than ``num_selected`` clients when the time is up.
        SelectionError
            If nobody could be introduced.
        """
        start = time.monotonic()
        record.bytes_down["introduction"] = record.bytes_up["introduction"] = 0
        failures: dict[int, str] = {}
        tried: dict[int, float] = {}
        told = False
        while True:
            online = set(grid.get_node_ids())
            clients = self._present(online)
            enough = len(clients) >= self._wanted(num_selected, evaluating)
            strangers = self._strangers(online, tried, record.round, enough)
            if strangers:
                failed = self._introduce(grid, strangers, online, record)
                failures = {n: why for n, why in failures.items() if n not in strangers} | failed
                tried |= dict.fromkeys(strangers, time.monotonic())
                clients = self._present(online)
            nobody = not self._complete_once and num_selected <= len(online & failures.keys())
            nobody = nobody and online <= self._without_mod
            if nobody and message_type and all(_NO_FUNCTION in failures.get(n, "") for n in online):
                self._message_type = message_type(sorted(online)[:num_selected])
                message_type = None
                tried.clear()
                continue
            self._note_failures(
                {node_id: failures[node_id] for node_id in strangers if node_id in failures},
                record.round,
            )
            wanted = self._wanted(num_selected, evaluating)
            waited = time.monotonic() - start
            if len(clients) >= wanted or self._all_here(online) or waited > self._wait_timeout:
                break
            if nobody and all(self._failed.get(node_id, 0) > 1 for node_id in online):
                break  # no waiting puts the mod into the app
            if not told and waited > 1:
                told = True
                log(INFO, "Waiting for clients: %d of %d are here.", len(clients), wanted)
            time.sleep(_POLL)
        record.seconds["waiting"] = time.monotonic() - start
        record.clients = list(clients)
        for node_id, reason in failures.items():
            record.rejected[f"node {node_id}"] = f"introduction: {reason}"
        if len(clients) < num_selected:
            self._fail(len(clients), num_selected, failures, waited)
        if len(clients) < wanted:
            note = (
                f"started with {len(clients)} of {wanted} clients after {waited:.0f} s of waiting"
            )
            record.notes.append(note)
            log(WARNING, "Round %d %s.", record.round, note)
        self._complete_once = True
        return clients

    def _wanted(self, num_selected: int, evaluating: int) -> int:
        """Return how many clients to wait for."""
        if self._complete_once:
            return num_selected
        return max(num_selected, evaluating, self._min_clients or self._declared)

    def _all_here(self, online: set[int]) -> bool:
        """Tell whether nobody else will come: the clients of a simulation are there at once."""
        return self._min_clients is None and 0 < self._declared <= len(online)

    def _strangers(
        self, online: set[int], tried: Mapping[int, float], number: int, enough: bool
    ) -> list[int]:
        """Return the nodes to ask who they are; one that failed only after a while.

        A round that has enough clients without it tries it again after 1, 2, 4, ... rounds: a node
        that never answers would cost `wait_timeout` in each.
        """
        now = time.monotonic()
        pause = _RETRY if self._complete_once or online - self._without_mod else _AGAIN
        return sorted(
            node_id
            for node_id in online - self._key_of_node.keys()
            if now - tried.get(node_id, -math.inf) > pause
            and (not enough or (node_id not in tried and self._next_try.get(node_id, 0) <= number))
        )

    def _note_failures(self, failures: Mapping[int, str], number: int) -> None:
        for node_id, reason in failures.items():
            if node_id not in self._failed:
                log(WARNING, "Node %d takes no part for now: %s", node_id, reason)
            times = self._failed[node_id] = self._failed.get(node_id, 0) + 1
            self._next_try[node_id] = number + min(2 ** (times - 1), _LONGEST_REST)

    def exclude(self, client: str, reason: str) -> None:
        """Leave a client out for the rest of the run."""
        self.excluded[client] = reason

    def _introduce(
        self, grid: Grid, node_ids: list[int], online: set[int], record: RoundRecord
    ) -> dict[int, str]:
        marker = ConfigRecord({"phase": INTRODUCE})
        messages = [
            Message(
                RecordDict({MARKER: marker}),
                node_id,
                self._message_type,
                ttl=self._wait_timeout,
            )
            for node_id in node_ids
        ]
        record.bytes_down["introduction"] += sum(content_bytes(m.content) for m in messages)
        replies = exchange(grid, messages, self._wait_timeout)
        record.bytes_up["introduction"] += replies.bytes_up
        self._without_mod -= set(node_ids)
        failures = {
            node_id: self._hint(reason) if node_id in replies.by_app else reason
            for node_id, reason in replies.failures.items()
        }
        self._without_mod |= replies.by_app
        for node_id, content in sorted(replies.contents.items()):
            answer = content.config_records.get(MARKER, ConfigRecord())
            if PROBLEM in answer:
                failures[node_id] = str(answer[PROBLEM])[:_LONGEST_TEXT]
                continue
            if "key" not in answer:
                failures[node_id] = f"{_NO_MOD} no error"
                self._without_mod.add(node_id)
                continue
            key = answer.get("key")
            num_clients = answer.get("num-clients", 0)
            if not isinstance(key, str) or not isinstance(num_clients, int):
                failures[node_id] = "the answer has no key"
                continue
            if not 0 < len(key) <= _LONGEST_KEY:
                failures[node_id] = (
                    f"its key has {len(key)} letters, but must have 1 to {_LONGEST_KEY}"
                )
                continue
            holder = next((n for n, k in self._key_of_node.items() if k == key), None)
            if holder in online:
                failures[node_id] = (
                    f"its key {key!r} is that of node {holder}: give each client a partition-id "
                    "or a name of its own in its node config. If that node has been started again, "
                    "this one takes its place as soon as Flower sees the old one gone"
                )
                continue
            if holder is not None:  # the client is back under a new node id
                del self._key_of_node[holder]
            self._key_of_node[node_id] = key
            num_examples = answer.get(NUM_EXAMPLES)
            if isinstance(num_examples, int) and num_examples > 0:
                self.num_examples[key] = num_examples
            self.without_examples.discard(key)
            if isinstance(num_examples, int) and num_examples <= 0:
                self.without_examples.add(key)
            self._declared = max(self._declared, num_clients)
        return failures

    def _hint(self, reason: str) -> str:
        """Return what an app answered in place of the mod, with what to do about it."""
        if _NO_FUNCTION in reason:
            return (
                f"its app has no function for messages of type {self._message_type!r}, which the "
                f"base strategy sends: {reason}"
            )
        return f"{_NO_MOD}: {reason}"

    def _present(self, online: set[int]) -> dict[str, int]:
        present = {
            key: node_id
            for node_id, key in self._key_of_node.items()
            if node_id in online and key not in self.excluded and self._may_take_part(key)
        }
        return {key: present[key] for key in sorted(present, key=client_order)}

    def _may_take_part(self, key: str) -> bool:
        if self._eligible is None:
            return True
        try:
            return bool(self._eligible(key))
        except Exception as error:
            raise SelectionError(
                f"eligible({key!r}) raised {type(error).__name__}: {error}"
            ) from error

    def _fail(
        self, present: int, num_selected: int, failures: dict[int, str], waited: float
    ) -> None:
        if failures and not present:
            node_id, reason = next(iter(failures.items()))
            raise SelectionError(
                f"none of the {len(failures)} clients could introduce itself in {waited:.0f} s; "
                f"of node {node_id}: {reason}"
            )
        unusable = "".join(f"; node {node_id}: {why}" for node_id, why in failures.items())
        raise TooFewClientsError(
            f"{present} clients take part, but num_selected is {num_selected}; waited "
            f"{waited:.0f} s{unusable[:_LONGEST_TEXT]}. Start more clients, or lower num_selected"
        )
