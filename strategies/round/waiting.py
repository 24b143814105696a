"""The wait for a round's clients: bounded, and in vain for those that will never be there."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from logging import INFO, WARNING

from flwr.common import log
from flwr.serverapp import Grid

from pncs_flower.plain_text import counted, first_of
from pncs_flower.protocol import client_order

from .. import timeouts
from ..base_strategy import least_evaluating
from ..errors import SelectionError, TooFewClientsError
from ..record import RoundRecord
from . import training
from .open_round import OpenRound
from .roster import NO_FUNCTION, Introductions, Roster

_AT_ONCE = 500
_LONGEST_TEXT = 600
_NAMED = 3  # clients in an error


def meet_clients(round: OpenRound, roster: Roster, num_selected: int) -> None:
    """Have the clients of a round, for itself and for the base strategy's evaluation."""
    # Too few for the latter are an error in the first round; later, clients may have left.
    least, find_type = least_evaluating(round.base), partial(training.find_message_type, round)
    waiting = Waiting(roster, round.grid, round.record, num_selected, least, find_type)
    round.clients = round.met = waiting.clients()
    number = len(round.clients)
    if number < least and round.number == 1:
        raise TooFewClientsError(
            f"{type(round.base).__name__} evaluates on min_evaluate_nodes = {least} clients, but "
            f"{number} take part. Use min_evaluate_nodes={number} or fraction_evaluate=0.0"
        )
    if number < least:  # noted now, before the record is written
        round.record.notes.append("too few clients are left for an evaluation: there is none")


@dataclass
class Waiting:
    """One round's wait for clients, whom the roster takes up as they answer."""

    roster: Roster
    grid: Grid
    record: RoundRecord
    num_selected: int
    evaluating: int = 0  # as many are waited for at the start, as the base evaluates on them
    # Tells the type of the base strategy's training messages, given nodes. It is asked, once, if no
    # node has a train function without a name: only a message that some function is there for
    # reaches a mod.
    find_type: Callable[[list[int]], str] | None = None

    def __post_init__(self) -> None:
        self._start = self._told = time.monotonic()
        # All nodes of a simulation are there from the start.
        self._simulated = bool(getattr(self.grid, "simulated", False))
        self._asking = Introductions(self.grid, self.roster.options.devices is not None)
        self._online: set[int] = set()
        self._present: dict[str, int] | None = None  # at this look, once it was asked for
        self._tried: dict[int, float] = {}  # when nodes last answered
        self._failures: dict[int, str] = {}
        self._untold: set[int] = set()  # nodes whose failure is not counted yet

    def clients(self) -> dict[str, int]:
        """Wait for clients, and return those that take part: their nodes by key."""
        while True:
            self._ask()
            self._hear()
            if self._take_other_type():
                continue
            undecided = set()
            if self._asking.waiting and self.find_type:  # perhaps only the type was wrong
                undecided = self._without_function()
            self._note_failures(self._untold - undecided)
            left = self._deadline() - time.monotonic()
            if self._is_over() or left <= 0:
                return self._end()
            self._tell()
            time.sleep(min(left, self._asking.pause))

    def _ask(self) -> None:
        """Ask the nodes who they are that nobody knows; one that failed only after a while."""
        # A round that has enough clients without it tries it again after 1, 2, 4, ... rounds: a
        # node that never answers would cost `wait_timeout` in each.
        self._online, self._present = set(self.grid.get_node_ids()), None
        now = time.monotonic()
        left = self._deadline() - now
        strangers = self._online - self.roster.keys.keys() - self._asking.waiting
        if self._has_enough():
            due = {n: self.roster.next_try.get(n, 0) for n in strangers - self._tried.keys()}
            strangers = {n for n in due if due[n] <= self.record.round}
        else:
            pause = timeouts.RETRY_IN_VAIN if self._is_hopeless() else timeouts.RETRY
            strangers = {n for n in strangers if now - self._tried.get(n, -math.inf) > pause}
        if left <= 0:
            return
        # A message and its reply take more memory than what stays of them, so a simulation, whose
        # clients answer at once, has a part of them at a time.
        order = sorted(strangers)
        most = _AT_ONCE if self._simulated else max(1, len(order))
        for start in range(0, len(order), most):
            self._asking.ask(order[start : start + most], left, self.roster.message_type)
            self._hear()

    def _hear(self) -> None:
        """Take up those that have answered."""
        replies = self._asking.answers()
        if replies.contents:
            self._present = None
        for node_id in sorted(replies.contents.keys() | replies.failures.keys()):
            self._tried[node_id] = time.monotonic()
            self._failures.pop(node_id, None)
            self._untold.discard(node_id)
            reason = self.roster.take(node_id, replies, self._online)
            if reason is not None:
                self._failures[node_id] = reason
                self._untold.add(node_id)

    def _take_other_type(self) -> bool:
        """Ask in messages of the base strategy's type, if nobody has a function for the plain."""
        nobody = self._nobody_will_be_there() and self._online <= self._without_function()
        if self.find_type is None or not nobody:
            return False
        self.roster.message_type = self.find_type(sorted(self._online)[: self.num_selected])
        self.find_type = None
        self._tried.clear()
        self._untold.clear()
        return True

    def _is_over(self) -> bool:
        """Tell whether to wait no longer, although there is time."""
        # The clients of a simulation are there at once.
        at_once = self._simulated and self.roster.options.min_clients is None
        if not self._asking.waiting and (
            self._has_enough() or (at_once and 0 < self.roster.most_say() <= len(self._online))
        ):
            return True
        # No waiting puts the mod into the app, or a simulation in order.
        twice = all(self.roster.failures.get(node_id, 0) > 1 for node_id in self._online)
        return twice and self._nobody_will_be_there()

    def _deadline(self) -> float:
        """Return when the wait ends."""
        # While too few for a round have answered, and nodes are connected that never have, the
        # run is still starting: a quick client must not cut short the start of others.
        roster, options = self.roster, self.roster.options
        starting = not roster.started and self._online - roster.heard
        if starting and not self._are_here(self.num_selected, self.num_selected):
            return self._start + max(options.start_timeout, options.wait_timeout)
        return max(self._start, roster.first_answer or self._start) + options.wait_timeout

    def _wanted(self) -> int:
        """Return how many clients to wait for."""
        if self.roster.started:
            return self.num_selected
        there_are = self.roster.options.min_clients or self.roster.most_say()
        return max(self.num_selected, self.evaluating, there_are)

    def _has_enough(self) -> bool:
        """Tell whether nobody needs to be waited for. Clients that are left out are here, too."""
        others = 0 if self.roster.started else self.evaluating
        return self._are_here(self._wanted(), max(self.num_selected, others))

    def _are_here(self, known: int, present: int) -> bool:
        # In this order: `eligible`, somebody else's code, is not called at each look for nothing.
        here = len(self.roster.keys.keys() & self._online) >= known
        return here and len(self._those_present()) >= present

    def _those_present(self) -> dict[str, int]:
        if self._present is None:
            self._present = self.roster.present(self._online)
        return self._present

    def _is_hopeless(self) -> bool:
        """Tell whether all answers are final."""
        # An app without the mod, or that cannot be loaded, is the same on all nodes. In a
        # simulation, any failure is final.
        final = set(self.roster.final)
        if self._simulated:
            final |= self.roster.heard & self._failures.keys()
        return not self.roster.started and self._online <= final

    def _without_function(self) -> set[int]:
        """Return the nodes whose app has no train function without a name."""
        return {node_id for node_id, why in self._failures.items() if NO_FUNCTION in why}

    def _nobody_will_be_there(self) -> bool:
        # All nodes of a simulation are there, but another type of message needs enough of them.
        few = 1 if self._simulated and not self._without_function() else self.num_selected
        return few <= len(self._online & self._failures.keys()) and self._is_hopeless()

    def _note_failures(self, nodes: Iterable[int]) -> None:
        """Count the failures of nodes, each of which rests the longer, and tell of the first."""
        for node_id in sorted(nodes):
            times = self.roster.failures.get(node_id, 0) + 1
            if times == 1:
                log(WARNING, "Node %d takes no part for now: %s", node_id, self._failures[node_id])
            self.roster.failures[node_id] = times
            self.roster.next_try[node_id] = self.record.round + timeouts.rounds_of_rest(times)
            self._untold.discard(node_id)

    def _tell(self) -> None:
        """Say now and then who is waited for."""
        now = time.monotonic()
        pause = timeouts.TELL_FIRST if self._told == self._start else timeouts.TELL_AGAIN
        if now - self._told <= pause:
            return
        self._told = now
        silent = len(self._asking.waiting)
        log(
            INFO,
            "Waiting for clients: %d of %d are here%s.",
            len(self.roster.known(self._online)),
            self._wanted(),
            f"; {silent} are connected and still starting: no answer yet" if silent else "",
        )

    def _end(self) -> dict[str, int]:
        """Put into the record what came of the wait; too few clients are an error."""
        record, waited = self.record, time.monotonic() - self._start
        silent = dict.fromkeys(self._asking.waiting, f"no answer within {waited:.0f} s")
        self._failures |= silent
        self._note_failures(self._untold.union(silent))
        clients = self._those_present()
        if self.roster.listed != (listed := list(clients)):
            self.roster.listed = listed
        record.clients = self.roster.listed
        record.seconds["waiting"] = waited
        record.bytes_down["introduction"] = self._asking.bytes_down
        record.bytes_up["introduction"] = self._asking.bytes_up
        for node_id, reason in self._failures.items():
            record.rejected[f"node {node_id}"] = f"introduction: {reason}"
        if len(clients) < self.num_selected:
            raise self._too_few(clients, f"{waited:.0f} s")
        here, wanted = len(self.roster.known(self._online)), self._wanted()
        if here < wanted:
            of_all = counted(wanted, "client")
            note = f"started with {here} of {of_all} after {waited:.0f} s of waiting"
            record.notes.append(note)
            log(WARNING, "Round %d %s.", record.round, note)
        self.roster.started = True
        return clients

    def _too_few(self, clients: Iterable[str], waited: str) -> SelectionError:
        """Return the error of a round with too few clients: some are known, some were heard."""
        known, excluded = self.roster.known(self._online), self.roster.excluded
        clients = set(clients)
        if self._failures and not known:
            return self._nobody_introduced(waited)
        there = counted(len(clients), "client takes part", "clients take part")
        short = f"{there}, but num_selected is {self.num_selected}"
        if len(known) >= self.num_selected:
            order = sorted(set(known).difference(clients), key=client_order)
            left_out = [repr(key) for key in order if key in excluded]
            refused = [repr(key) for key in order if key not in excluded]
            told = []
            if refused:
                told.append(f"eligible refuses {first_of(refused, _NAMED)} (keys are text)")
            if left_out:
                told.append(f"left out for the rest of the run: {first_of(left_out, _NAMED)}")
            remedy = "Have eligible take more of them, or lower" if refused else "Lower"
            return TooFewClientsError(
                f"{short}: {len(known)} are here, but {'; '.join(told)}. {remedy} num_selected"
            )
        reasons = "".join(f"; node {node_id}: {why}" for node_id, why in self._failures.items())
        reasons = reasons[:_LONGEST_TEXT]
        if self._simulated:  # where no others come, however long one waits
            have = counted(len(self._online), "client")
            more = "num_clients of InProcessGrid, num-supernodes of Flower's federation"
            remedy = f"Have more clients ({more})" if not reasons else "See to these clients"
            return TooFewClientsError(
                f"{short}; the simulation has {have}{reasons}. {remedy}, or lower num_selected"
            )
        longer = ", or wait for longer: with a larger start_timeout, and later wait_timeout"
        return TooFewClientsError(
            f"{short}; waited {waited}{reasons}. Start more clients, or lower "
            f"num_selected{longer if self._failures.keys() - self.roster.heard else ''}"
        )

    def _nobody_introduced(self, waited: str) -> SelectionError:
        failures = self._failures
        answered = [node_id for node_id in failures if node_id in self.roster.heard]
        node_id = (answered or list(failures))[0]
        of_one = f"of node {node_id}: {failures[node_id]}"
        if not answered:
            return SelectionError(
                f"none of {counted(len(failures), 'connected client')} has answered in {waited}; "
                f"{of_one}. They are still starting (large imports, few CPUs) or hang: their own "
                "log says more. A larger start_timeout waits for longer"
            )
        starting = len(failures) - len(answered)
        others = f", and {starting} of them have not answered yet" if starting else ""
        return SelectionError(
            f"none of {counted(len(failures), 'client')} could introduce itself in {waited}"
            f"{others}; {of_one}"
        )
