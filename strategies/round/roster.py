"""Who takes part: a bounded wait for clients, and their stable keys."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from logging import INFO, WARNING

from flwr.app import MessageType
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from pncs_flower.protocol import client_order

from .. import timeouts
from ..base_strategy import check_evaluation, least_evaluating
from ..errors import SelectionError
from ..grids.exchange import NOT_LOADED
from ..grids.polling import is_simulated
from ..options import SelectionOptions
from ..record import RoundRecord
from .introductions import Answer, Introductions, NoModError, read_introduction, too_few
from .open_round import OpenRound
from .training import find_message_type

__all__ = ["Roster"]

# What Flower says of an app whose functions all have names of their own.
_NO_FUNCTION = "No train function registered"
_NO_MOD = (
    "its app answered in place of the mod: put summary_mod first among the app's mods, "
    "ClientApp(mods=[summary_mod, ...]). The answer was"
)


class Roster:
    """Keeps track of the clients that are online and of who they are.

    Node ids are drawn anew in each run and say nothing, so each node is asked once for its key
    before it can be chosen. The arguments are the options of these names.
    """

    def __init__(
        self,
        min_clients: int | None,
        wait_timeout: float,
        eligible: Callable[[str], bool] | None,
        start_timeout: float = timeouts.START,
        max_weight: float = 1e9,
    ) -> None:
        self._min_clients = min_clients
        self._wait_timeout = wait_timeout
        self._start_timeout = max(start_timeout, wait_timeout)
        self._eligible = eligible
        self._max_weight = max_weight
        self._key_of_node: dict[int, str] = {}
        self._declared: dict[str, int] = {}  # how many clients there are, in the words of each
        self.num_examples: dict[str, float] = {}  # of those that say it
        self.without_examples: set[str] = set()  # that say so
        self.excluded: dict[str, str] = {}  # for the rest of the run, with the reason
        self._complete_once = False
        self._first_answer: float | None = None
        self._message_type: str = MessageType.TRAIN
        self._heard: set[int] = set()  # nodes that have ever answered
        self._final: set[int] = set()  # those whose app answered in place of the mod
        # Of nodes that failed to introduce themselves: how often, and the round to try again in.
        self._failed: dict[int, int] = {}
        self._next_try: dict[int, int] = {}

    @classmethod
    def by(cls, options: SelectionOptions) -> "Roster":
        """Return a roster with a strategy's options."""
        return cls(
            options.min_clients,
            options.wait_timeout,
            options.eligible,
            options.start_timeout,
            options.max_weight,
        )

    def meet(self, round: OpenRound, base: Strategy, num_selected: int) -> None:
        """Have the clients of a round, for itself and for the base strategy's evaluation.

        Too few for the latter are an error in the first round; later, clients may have left.
        """
        evaluating = least_evaluating(base)
        round.clients = self.update(
            round.grid,
            num_selected,
            round.record,
            evaluating,
            partial(find_message_type, round, base),
        )
        if round.number == 1:
            check_evaluation(base, len(round.clients))
        elif len(round.clients) < evaluating:  # noted now, before the record is written
            round.record.notes.append("too few clients are left for an evaluation: there is none")

    def update(
        self,
        grid: Grid,
        num_selected: int,
        record: RoundRecord,
        evaluating: int = 0,
        message_type: Callable[[list[int]], str] | None = None,
    ) -> dict[str, int]:
        """Wait for clients, meet the new ones, and return those that take part: their nodes by key.

        ``evaluating`` clients are waited for at the start, as the base strategy evaluates on them.
        ``message_type(node_ids)`` tells the type of the base strategy's training messages. It is
        asked, once, if no node has a train function without a name: only a message that some
        function is there for reaches a mod.
        """
        start = told = time.monotonic()
        asking = Introductions(grid)
        failures: dict[int, str] = {}
        untold: set[int] = set()
        tried: dict[int, float] = {}
        while True:
            online = set(grid.get_node_ids())
            left = self._deadline(start, online, num_selected) - time.monotonic()
            enough = self._enough(online, num_selected, evaluating)
            soon = not self._complete_once and online <= self._hopeless(
                grid, self._heard & failures.keys()
            )
            strangers = self._strangers(online, tried, record.round, enough, soon) - asking.waiting
            if strangers and left > 0:
                asking.ask(sorted(strangers), left, self._message_type)
            for answer in asking.answers():
                tried[answer.node_id] = time.monotonic()
                failures.pop(answer.node_id, None)
                self._heard |= {answer.node_id} if answer.by_node else set()
                reason = self._meet(answer, online)
                if reason is not None:
                    failures[answer.node_id] = reason
                    untold.add(answer.node_id)
            no_function = {n for n in failures if _NO_FUNCTION in failures[n]}
            # All nodes of a simulation are there, but another type of message needs enough of them.
            few = 1 if is_simulated(grid) and not no_function else num_selected
            nobody = not self._complete_once and few <= len(online & failures.keys())
            nobody = nobody and online <= self._hopeless(grid, self._heard & failures.keys())
            if nobody and message_type and online <= no_function:
                self._message_type = message_type(sorted(online)[:num_selected])
                message_type = None
                tried.clear()
                untold.clear()
                continue
            if message_type and asking.waiting:  # perhaps only the type of the message was wrong
                self._note_failures(failures, untold.difference(no_function), record.round)
                untold.intersection_update(no_function)
            else:
                self._note_failures(failures, untold, record.round)
                untold.clear()
            enough = self._enough(online, num_selected, evaluating)
            if not asking.waiting and (enough or self._all_here(grid, online)):
                break
            if nobody and all(self._failed.get(node_id, 0) > 1 for node_id in online):
                break  # no waiting puts the mod into the app, or a simulation in order
            now = time.monotonic()
            left = self._deadline(start, online, num_selected) - now
            if left <= 0:
                break
            if now - told > (timeouts.TELL_AGAIN if told > start else timeouts.TELL_FIRST):
                told = now
                self._tell_of_waiting(online, asking.waiting, num_selected, evaluating)
            time.sleep(min(left, asking.pause if asking.waiting else timeouts.LOOK_FOR_CLIENTS))
        silent = asking.end(start)
        failures |= silent
        self._note_failures(failures, untold.union(silent), record.round)
        clients = self._present(online)
        waited = record.seconds["waiting"] = time.monotonic() - start
        record.bytes_down["introduction"] = asking.bytes_down
        record.bytes_up["introduction"] = asking.bytes_up
        record.clients = list(clients)
        for node_id, reason in failures.items():
            record.rejected[f"node {node_id}"] = f"introduction: {reason}"
        if len(clients) < num_selected:
            known = self._known(online)
            raise too_few(
                clients, known, num_selected, failures, self._heard, self.excluded, waited
            )
        here, wanted = len(self._known(online)), self._wanted(num_selected, evaluating)
        if here < wanted:
            note = f"started with {here} of {wanted} clients after {waited:.0f} s of waiting"
            record.notes.append(note)
            log(WARNING, "Round %d %s.", record.round, note)
        self._complete_once = True
        return clients

    def _deadline(self, start: float, online: set[int], num_selected: int) -> float:
        """Return when the wait ends.

        While too few for a round have answered, and nodes are connected that never have, the run
        is still starting: a quick client must not cut short the start of others.
        """
        starting = not self._complete_once and bool(online - self._heard)
        if starting and (
            len(self._known(online)) < num_selected or len(self._present(online)) < num_selected
        ):
            return start + self._start_timeout
        return max(start, self._first_answer or start) + self._wait_timeout

    def _wanted(self, num_selected: int, evaluating: int) -> int:
        """Return how many clients to wait for."""
        if self._complete_once:
            return num_selected
        return max(num_selected, evaluating, self._min_clients or self._agreed())

    def _agreed(self) -> int:
        """Return how many clients there are, as most of them say; 0 if most do not say it.

        One that says what is not so neither holds up a start nor cuts it short.
        """
        said = Counter(self._declared.values())
        most = max(said.values(), default=0)
        return min((number for number, times in said.items() if times == most), default=0)

    def _enough(self, online: Iterable[int], num_selected: int, evaluating: int) -> bool:
        """Tell whether nobody needs to be waited for. Clients that are left out are here, too."""
        if self._complete_once:
            return len(self._present(online)) >= num_selected
        here = len(self._known(online))
        least = max(num_selected, evaluating)
        # In this order: `eligible`, somebody else's code, is not called at each look for nothing.
        return here >= max(least, self._wanted(0, 0)) and len(self._present(online)) >= least

    def _all_here(self, grid: Grid, online: set[int]) -> bool:
        """Tell whether nobody else will come: the clients of a simulation are there at once."""
        declared = self._agreed()
        return is_simulated(grid) and self._min_clients is None and 0 < declared <= len(online)

    def _hopeless(self, grid: Grid, failed: set[int]) -> set[int]:
        """Return the nodes whose answer is final, if none but such nodes are there.

        An app without the mod, or that cannot be loaded, is the same on all nodes. In a simulation,
        any failure is final.
        """
        return self._final | failed if is_simulated(grid) else self._final

    def _strangers(
        self, online: set[int], tried: Mapping[int, float], number: int, enough: bool, soon: bool
    ) -> set[int]:
        """Return the nodes to ask who they are; one that failed only after a while.

        A round that has enough clients without it tries it again after 1, 2, 4, ... rounds: a node
        that never answers would cost `wait_timeout` in each.
        """
        now = time.monotonic()
        pause = timeouts.RETRY_IN_VAIN if soon else timeouts.RETRY
        return {
            node_id
            for node_id in online - self._key_of_node.keys()
            if now - tried.get(node_id, -math.inf) > pause
            and (not enough or (node_id not in tried and self._next_try.get(node_id, 0) <= number))
        }

    def _note_failures(
        self, failures: Mapping[int, str], nodes: Iterable[int], number: int
    ) -> None:
        """Count the failures of nodes, and tell of each one's first at once."""
        for node_id in sorted(nodes):
            if node_id not in self._failed:
                log(WARNING, "Node %d takes no part for now: %s", node_id, failures[node_id])
            times = self._failed[node_id] = self._failed.get(node_id, 0) + 1
            self._next_try[node_id] = number + timeouts.rounds_of_rest(times)

    def _tell_of_waiting(
        self, online: set[int], silent: set[int], num_selected: int, evaluating: int
    ) -> None:
        log(
            INFO,
            "Waiting for clients: %d of %d are here%s.",
            len(self._known(online)),
            self._wanted(num_selected, evaluating),
            f"; {len(silent)} are connected and still starting: no answer yet" if silent else "",
        )

    def _meet(self, answer: Answer, online: set[int]) -> str | None:
        """Take up a client, or return the reason why not."""
        if answer.by_node and self._first_answer is None:
            self._first_answer = time.monotonic()
        self._final.discard(answer.node_id)
        if answer.content is None:
            if not answer.by_app:
                return answer.failure
            self._final.add(answer.node_id)
            return self._hint(answer.failure)
        try:
            client = read_introduction(answer.content, self._max_weight)
        except NoModError as error:
            self._final.add(answer.node_id)
            return f"{_NO_MOD} {error}"
        except ValueError as error:
            return str(error)
        holder = next((n for n, key in self._key_of_node.items() if key == client.key), None)
        if holder in online:
            return (
                f"its key {client.key!r} is that of node {holder}: give each client a partition-id "
                "or a name of its own in its node config. If that node has been started again, "
                "this one takes its place as soon as Flower sees the old one gone"
            )
        if holder is not None:  # the client is back under a new node id
            del self._key_of_node[holder]
        self._key_of_node[answer.node_id] = client.key
        self._declared[client.key] = client.num_clients
        if client.num_examples is not None:
            self.num_examples[client.key] = client.num_examples
        self.without_examples.discard(client.key)
        if client.without_examples:
            self.without_examples.add(client.key)
        return None

    def _hint(self, reason: str) -> str:
        """Return what an app answered in place of the mod, with what to do about it."""
        if reason.startswith(NOT_LOADED):
            return reason
        if _NO_FUNCTION in reason:
            return (
                f"its app has no function for messages of type {self._message_type!r}, which the "
                f"base strategy sends: {reason}"
            )
        return f"{_NO_MOD}: {reason}"

    def _known(self, online: Iterable[int]) -> list[str]:
        """Return the keys of the nodes that are there, whether or not they may take part."""
        return [self._key_of_node[node_id] for node_id in online if node_id in self._key_of_node]

    def _present(self, online: Iterable[int]) -> dict[str, int]:
        there = set(online)
        present = {
            key: node_id
            for node_id, key in self._key_of_node.items()
            if node_id in there and key not in self.excluded and self._may_take_part(key)
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
