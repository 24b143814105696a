"""The choice: the rule behind the Age-of-Update queue, and what both remember."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from logging import WARNING
from typing import Any

from flwr.common import log

from pncs_flower.protocol import NUM_EXAMPLES, client_order
from pncs_flower.queue import AgeOfUpdateQueue

from ..errors import NoSummariesError, named
from ..options import SelectionOptions
from ..record import RoundRecord
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary
from .backoff import Backoff
from .open_round import OpenRound, Plan
from .roster import Roster

__all__ = ["Selector", "choose"]


def choose(
    round: OpenRound,
    selector: "Selector",
    options: SelectionOptions,
    history: Sequence[RoundRecord],
) -> Choice:
    """Choose among the clients whose summaries came; by waiting time where too few came."""
    plan, rule, record = round.plan, selector.rule, round.record
    with round.timed("selection"):
        asked = set(plan.candidates)
        offered = [client for client in plan.now.available if client in round.summaries]
        if rule.chooses_unasked:
            offered += [client for client in plan.now.available if client not in asked]
        if asked and len(offered) < options.min_summaries:
            selector.note_asked(plan)
            choice = _without_summaries(round, len(offered), options, history)
        else:
            choice = selector.choose(plan, round.summaries)
            if len(choice.clients) < rule.num_selected:
                record.notes.append(
                    f"of the {len(asked)} clients asked, {len(offered)} answered and may "
                    f"be chosen, so {len(choice.clients)} are in place of {rule.num_selected}"
                )
    record.chosen = list(choice.clients)
    record.chosen_by_layer = {
        layer: sorted(clients, key=client_order) for layer, clients in choice.by_layer.items()
    }
    record.mean_similarity, record.optimal = choice.mean_similarity, choice.optimal
    return choice


def _without_summaries(
    round: OpenRound, answers: int, options: SelectionOptions, history: Sequence[RoundRecord]
) -> Choice:
    """Choose the longest waiting, unless it is plain that no summary will ever come."""
    now, record = round.plan.now, round.record
    what = (
        f"{answers} of the {len(round.plan.candidates)} clients asked in round {now.number} "
        f"sent a summary that can be used, fewer than min_summaries = {options.min_summaries}"
    )
    failed = record.reasons("pre-round")
    for client, reason in list(failed.items())[:1]:
        what += f"; client {client}: {reason}"
    never = not any(earlier.answered for earlier in history)
    if never or options.on_too_few_summaries == "stop":
        raise NoSummariesError(what)
    record.notes.append(f"{what}. The longest waiting are chosen")
    log(WARNING, "%s. The longest waiting are chosen.", what)
    order = sorted(now.available, key=lambda client: client in failed)  # stable
    return Choice(tuple(sorted(order[: now.num_selected], key=client_order)))


class Selector:
    """A selection rule with an Age-of-Update queue in front, and what both remember."""

    def __init__(self, rule: SelectionRule, queue_length: int, seed: int) -> None:
        self.rule = rule
        self._seed = seed
        self._queue_length = queue_length
        self._told = False
        self._queue = AgeOfUpdateQueue(queue_length, rule.num_selected)
        self._backoff = Backoff()
        self._state: RuleState = rule.initial_state()
        self._num_examples: dict[str, float] = {}
        # What clients only say of their size, and those that said it and then did not deliver.
        self._said: dict[str, float] = {}
        self._doubted: set[str] = set()
        self._last_chosen: dict[str, int] = {}
        self._last_asked: dict[str, int] = {}

    def open(self, round: OpenRound, roster: Roster) -> None:
        """Plan a round for the clients on the roster."""
        self._tell_what_has_no_effect(round.number, len(round.clients) + len(roster.excluded))
        sizes = roster.sizes()
        self.learn_sizes({client: size for client, size in sizes.items() if size})
        without = sorted((c for c, size in sizes.items() if not size), key=client_order)
        self._backoff.note_without_examples(without, round.number)
        round.plan = self.plan(round.number, list(round.clients))
        round.plan.note(round.record)
        if not round.plan.candidates:
            round.pre_round = None  # a rule may ask in some rounds only

    def close(self, round: OpenRound, used: Mapping[str, Metrics], sound: Collection[str]) -> None:
        """Take note of what came of a round in which somebody was chosen."""
        record = round.record
        if record.chosen:
            self.observe(round.plan, record.chosen, used)
            self.end_round(round.plan, record.answered, round.sent, sound, not record.delivered)

    def _tell_what_has_no_effect(self, number: int, num_clients: int) -> None:
        """Log, once a run, that there is nothing to choose or that nobody ever rests."""
        num_selected, queue_length = self.rule.num_selected, self._queue_length
        if number == 1 and 0 < queue_length < num_selected:
            log(
                WARNING,
                "queue_length is %d and num_selected is %d: a client rests for queue_length / "
                "num_selected rounds, which is less than one, so nobody ever rests. For two rounds "
                "of rest use queue_length=%d",
                *(queue_length, num_selected, 2 * num_selected),
            )
        if num_clients <= num_selected and not self._told:
            self._told = True
            log(
                WARNING,
                "num_selected is %d and %d clients take part, so all are chosen in each round: "
                "there is nothing to choose. (flwr run simulates 2 clients unless it is told "
                "otherwise, as by --federation-config num-supernodes=10)",
                *(num_selected, num_clients),
            )

    def learn_sizes(self, num_examples: Mapping[str, float]) -> None:
        """Note how many examples clients say to have; what came with an update counts for more.

        The word of a client that was to deliver and did not counts for nothing until it does.
        """
        self._said |= num_examples

    def plan(self, number: int, clients: Sequence[str]) -> Plan:
        """Plan a round for the clients that take part."""
        ordered = sorted(clients, key=client_order)
        failed = self._backoff.holds_back(ordered)
        cooling = set(ordered).difference(self._queue.available(ordered, number))
        free = set(ordered).difference(cooling, failed)
        # By their last turn, not by their last update: a client that failed has had its turn.
        turn = self._last_chosen
        missing = max(0, self.rule.num_selected - len(free))
        held = [client for client in ordered if client in cooling and client not in failed]
        released = self._queue.longest_waiting(held, missing)
        returned = failed[: missing - len(released)]
        may = free.union(released, returned)
        available = sorted((c for c in ordered if c in may), key=lambda c: turn.get(c, 0))
        now = Round(
            number=number,
            seed=self._seed,
            num_selected=self.rule.num_selected,
            available=tuple(available),
            last_rounds={client: turn.get(client, 0) for client in available},
            num_examples={
                **{c: size for c, size in self._said.items() if c not in self._doubted},
                **self._num_examples,
            },
            clients=tuple(ordered),
            last_asked=dict(self._last_asked),
        )
        backing_off = tuple(client for client in ordered if client in failed and client not in may)
        asked: tuple[str, ...] = ()
        if self.rule.request:
            others = tuple(client for client in ordered if client not in backing_off)
            asked = self._candidates(replace(now, clients=others))
        return Plan(
            now=now,
            candidates=asked,
            cooling=tuple(client for client in ordered if client in cooling and client not in may),
            released=tuple(released),
            backing_off=backing_off,
            returned=tuple(returned),
        )

    def note_asked(self, plan: Plan) -> None:
        """Note whom the round has asked, whether or not they answered; `choose` does it too."""
        self._last_asked |= dict.fromkeys(plan.candidates, plan.now.number)

    def choose(self, plan: Plan, summaries: Mapping[str, Summary]) -> Choice:
        """Have the rule choose, among those that answered if any were asked."""
        self.note_asked(plan)
        asked = set(plan.candidates)
        offered = tuple(
            client
            for client in plan.now.available
            if not asked
            or client in summaries
            or (client not in asked and self.rule.chooses_unasked)
        )
        now = replace(
            plan.now,
            available=offered,
            num_selected=min(plan.now.num_selected, len(offered)),
            asked=plan.candidates,
        )
        order = (*offered, *sorted(summaries.keys() - set(offered), key=client_order))
        answers = {client: summaries[client] for client in order if client in summaries}
        with self._named("select", now):
            choice = self.rule.select(self._state, now, answers)
        if not isinstance(choice, Choice):
            raise TypeError(f"select of the rule {self.rule} returned {choice!r}, want a Choice")
        for chosen in choice.by_layer.values() if choice.by_layer else (choice.clients,):
            clients = set(chosen)
            if len(chosen) != now.num_selected or not clients <= set(offered):
                raise ValueError(
                    f"the rule {self.rule} chose {list(chosen)} in round {now.number}, but must "
                    f"choose {now.num_selected} different clients of {list(offered)}"
                )
            if len(clients) != len(chosen):
                raise ValueError(f"the rule {self.rule} chose a client twice: {list(chosen)}")
        clients = {*choice.clients, *chain.from_iterable(choice.by_layer.values())}
        if choice.state is not None:
            self._state = self._checked_state(choice.state, "select")
        similarity = choice.mean_similarity
        if similarity is not None and not math.isfinite(similarity):
            raise ValueError(
                f"the rule {self.rule} gave the mean_similarity {similarity} in round "
                f"{now.number}, but it must be finite, or None"
            )
        return replace(
            choice,
            clients=tuple(sorted(clients, key=client_order)),
            mean_similarity=None if similarity is None else float(similarity),
            optimal=None if choice.optimal is None else bool(choice.optimal),
        )

    def observe(self, plan: Plan, chosen: Iterable[str], delivered: Mapping[str, Metrics]) -> None:
        """Take note of who was chosen, and of those whose update was used: only they cool down."""
        self._last_chosen |= dict.fromkeys(chosen, plan.now.number)
        self._queue.push(delivered, plan.now.number)
        self._num_examples |= {
            client: metrics[NUM_EXAMPLES]
            for client, metrics in delivered.items()
            if metrics.get(NUM_EXAMPLES, 0) > 0
        }
        with self._named("observe", plan.now):
            state = self.rule.observe(self._state, plan.now, delivered)
        self._state = self._checked_state(state, "observe")

    def end_round(
        self,
        plan: Plan,
        answered: Collection[str],
        trained: Collection[str],
        sound: Collection[str],
        empty: bool,
    ) -> None:
        """Take note of who failed in which phase, and steps back from now on."""
        self._doubted |= set(trained).difference(sound)
        self._doubted -= set(sound)
        self._backoff.end_round(
            plan.now.number,
            {"pre-round": plan.candidates, "training": trained},
            {"pre-round": answered, "training": sound},
            empty or not sound,
        )

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on."""
        return {
            "queue": self._queue.state(),
            "backoff": self._backoff.state(),
            "num-examples": dict(self._num_examples),
            "num-examples-said": dict(self._said),
            "num-examples-doubted": sorted(self._doubted),
            "rule": dict(self._state),
            "last-chosen": dict(self._last_chosen),
            "last-asked": dict(self._last_asked),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._queue.restore(state["queue"])
        self._backoff.restore(state["backoff"])
        self._num_examples = dict(state["num-examples"])
        self._said = dict(state["num-examples-said"])
        self._doubted = set(state["num-examples-doubted"])
        self._state = dict(state["rule"])
        self._last_chosen = dict(state["last-chosen"])
        self._last_asked = dict(state["last-asked"])

    def _candidates(self, now: Round) -> tuple[str, ...]:
        with self._named("candidates", now):
            asked = tuple(self.rule.candidates(self._state, now))
        if len(set(asked)) < len(asked) or not set(asked) <= set(now.clients):
            raise ValueError(
                f"the rule {self.rule} asks {list(asked)} in round {now.number}, but must ask "
                f"different clients of {list(now.clients)}"
            )
        return asked

    def _checked_state(self, state: RuleState, function: str) -> RuleState:
        if not isinstance(state, Mapping):
            raise TypeError(
                f"{function} of the rule {self.rule} returned the state {state!r}, want a mapping "
                "of names to JSON values and NumPy arrays"
            )
        return state

    def _named(self, function: str, now: Round) -> AbstractContextManager[None]:
        return named(function, f"the rule {self.rule}", now.number)
