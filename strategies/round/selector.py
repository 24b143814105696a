"""The choice: the rule behind the Age-of-Update queue, and what both remember."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from logging import INFO, WARNING
from typing import Any

from flwr.common import log

from pncs_flower.fit import SketchFit
from pncs_flower.plain_text import counted
from pncs_flower.protocol import NUM_EXAMPLES, client_order
from pncs_flower.queue import AgeOfUpdateQueue
from pncs_flower.tags import Tags

from ..errors import NoSummariesError, named
from ..record import RoundRecord
from ..replies.metrics import LEAST_WEIGHT
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary
from .backoff import Backoff
from .open_round import OpenRound, Plan
from .roster import Roster
from .weights import Weights

_MOST = 1e18  # examples, where the base strategy does not weigh, and check, by them


def choose(
    round: OpenRound,
    selector: "Selector",
    history: Sequence[RoundRecord],
    fit: SketchFit | None = None,
) -> Choice:
    """Choose among the clients whose summaries came; by waiting time where too few came."""
    plan, record = round.plan, round.record
    with round.timed("selection"):
        answered = len(selector.offered(plan, round.summaries))
        if plan.candidates and answered < round.options.min_summaries:
            choice = _without_summaries(round, answered, history)
        else:
            choice = selector.choose(plan, round.summaries, fit)
            if len(choice.clients) < selector.rule.num_selected:
                record.notes.append(
                    f"{_answered(plan, answered)}, so {len(choice.clients)} in place of "
                    f"{selector.rule.num_selected} can be chosen"
                )
    record.chosen, round.chances = list(choice.clients), choice.chances
    record.chosen_by_layer = {
        layer: sorted(clients, key=client_order) for layer, clients in choice.by_layer.items()
    }
    record.mean_similarity, record.optimal = choice.mean_similarity, choice.optimal
    return choice


def _without_summaries(round: OpenRound, answers: int, history: Sequence[RoundRecord]) -> Choice:
    """Choose the longest waiting, unless it is plain that no summary will ever come."""
    now, record, options = round.plan.now, round.record, round.options
    what = (
        f"in round {now.number}, {_answered(round.plan, answers)}, fewer than min_summaries = "
        f"{options.min_summaries}"
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


def _answered(plan: Plan, number: int) -> str:
    """Say how many of those asked answered and may be chosen, and how many cannot as they rest."""
    resting = len({*plan.candidates}.difference(plan.now.available))
    asked = counted(len(plan.candidates), "client") + " asked"
    asked += f" ({resting} of them resting)" if resting else ""
    return f"of {asked}, {number} answered and may be chosen"


@dataclass
class _Memory:
    """What later choices depend on, beside the queue and who has failed."""

    rule: RuleState
    last_chosen: dict[str, int] = field(default_factory=dict)
    last_asked: dict[str, int] = field(default_factory=dict)
    num_examples: dict[str, float] = field(default_factory=dict)  # as they came with updates
    # What clients only say of their size, and those that said it and then did not deliver.
    said: dict[str, float] = field(default_factory=dict)
    doubted: list[str] = field(default_factory=list)


class Selector:
    """A selection rule with an Age-of-Update queue in front, and what both remember."""

    def __init__(
        self,
        rule: SelectionRule,
        queue_length: int | None,
        seed: int,
        weights: Weights | None = None,
        *,
        asks_resting: bool = False,
        extra: int = 0,
    ) -> None:
        self.rule = rule
        self._extra = extra  # chosen beyond what the rule selects, for the first to arrive count
        self._asks_resting = asks_resting
        self._weights = weights or Weights()
        self._seed = seed
        self._told = False
        self._tags: Mapping[str, Tags] = {}
        self._queue = AgeOfUpdateQueue(queue_length, rule.num_selected)
        self._backoff = Backoff()
        self._memory = _Memory(self._checked_state(rule.initial_state(), "initial_state"))
        # The last plan, and for whom, until something that it depends on has changed: the one that
        # was made to ask ahead is then the one of the round.
        self._planned: tuple[int, list[str], Plan] | None = None

    def open(self, round: OpenRound, roster: Roster) -> None:
        """Plan a round for the clients on the roster."""
        self._tell_what_has_no_effect(round.number, len(round.met) + len(roster.excluded))
        if self._tags != (tags := roster.tags()):
            self._tags, self._planned = tags, None
        sizes = roster.sizes()
        self.learn_sizes({client: size for client, size in sizes.items() if size})
        without = sorted((c for c, size in sizes.items() if not size), key=client_order)
        if self._backoff.note_without_examples(without, round.number):
            self._planned = None
        round.plan = self.plan(round.number, list(round.clients))
        round.plan.note(round.record)
        if round.number == 1 and self._queue.length is None:
            log(
                INFO,
                "With %s, each that is chosen rests for %s: as long as leaves a choice. It is "
                "worked out anew in each round (rest_rounds of its record).",
                counted(len(round.clients), "client"),
                counted(round.plan.rest_rounds, "round"),
            )
        if not round.plan.candidates:
            round.pre_round = None  # a rule may ask in some rounds only

    def close(self, round: OpenRound) -> None:
        """Take note of what came of a round in which somebody was chosen."""
        record, memory = round.record, self._memory
        if not record.chosen:
            return
        plan = round.plan
        if round.took:
            plan = replace(plan, now=replace(plan.now, seconds=round.took))
        self.observe(plan, record.chosen, round.used)
        tried = set(round.sent).difference(round.surplus)  # who came after enough is not at fault
        memory.doubted = sorted({*memory.doubted, *tried}.difference(round.sound))
        self._backoff.end_round(
            round.number,
            {"pre-round": round.plan.candidates, "training": [c for c in round.sent if c in tried]},
            {"pre-round": record.answered, "training": round.sound},
            empty=not record.delivered or not round.sound,
        )

    def _tell_what_has_no_effect(self, number: int, num_clients: int) -> None:
        """Log, once a run, what a number is too small or too large for."""
        num_selected, length = self.rule.num_selected, self._queue.length
        if number == 1 and length is not None and 0 < length < num_selected:
            log(
                WARNING,
                "queue_length is %d and num_selected is %d: a client rests for queue_length / "
                "num_selected rounds, which is less than one, so nobody ever rests. Say it in "
                "rounds (rest_rounds), or have them rest as long as leaves a choice, by "
                "queue_length=None: of %s, for %s",
                *(length, num_selected, counted(num_clients, "client")),
                counted(AgeOfUpdateQueue(None, num_selected).rounds(num_clients), "round"),
            )
        candidates = getattr(self.rule, "num_candidates", None)
        if number == 1 and candidates is not None and candidates > num_clients:
            log(
                WARNING,
                "candidates is %d and %s, so all that may be chosen are asked in each round. "
                "To ask fewer, lower it",
                *(candidates, counted(num_clients, "client takes part", "clients take part")),
            )
        if num_clients <= num_selected + self._extra and not self._told:
            self._told = True
            log(
                WARNING,
                "num_selected is %d%s and %s, so all are chosen in each round: "
                "there is nothing to choose. (flwr run simulates 2 clients unless it is told "
                "otherwise, as by --federation-config num-supernodes=10)",
                num_selected,
                f", extra is {self._extra}" if self._extra else "",
                counted(num_clients, "client takes part", "clients take part"),
            )

    def learn_sizes(self, num_examples: Mapping[str, float]) -> None:
        """Note how many examples clients say to have; what came with an update counts for more."""
        # The word of a client that was to deliver and did not counts for nothing until it does.
        if not num_examples.items() <= self._memory.said.items():
            self._memory.said |= num_examples
            self._planned = None

    def plan(self, number: int, clients: Sequence[str]) -> Plan:
        """Plan a round for the clients that take part."""
        if self._planned is None or self._planned[:2] != (number, list(clients)):
            self._planned = number, list(clients), self._plan(number, clients)
        return self._planned[2]

    def _plan(self, number: int, clients: Sequence[str]) -> Plan:
        memory = self._memory
        ordered = sorted(clients, key=client_order)
        failed = self._backoff.holds_back(ordered)
        # Those that failed are not free either way, nor is there a choice among the `extra`.
        choice_of = len(ordered) - len(failed) - self._extra
        rested = set(self._queue.available(ordered, number, choice_of))
        step_back = set(failed)
        cooling = [client for client in ordered if client not in rested]
        free = rested - step_back
        missing = max(0, self.rule.num_selected - len(free))
        held = [client for client in cooling if client not in step_back]
        released = self._queue.longest_waiting(held, missing)
        returned = failed[: missing - len(released)]
        may = free.union(released, returned)
        # By their last turn, not by their last update: a client that failed has had its turn.
        turns = {client: memory.last_chosen.get(client, 0) for client in ordered if client in may}
        available = sorted(turns, key=turns.__getitem__)
        num_examples = dict(memory.said)
        for client in memory.doubted:
            num_examples.pop(client, None)
        num_examples |= memory.num_examples
        now = Round(
            number=number,
            seed=self._seed,
            num_selected=self.rule.num_selected + self._extra,
            available=tuple(available),
            last_rounds={client: turns[client] for client in available},
            num_examples=num_examples,
            clients=tuple(ordered),
            last_asked=dict(memory.last_asked),
            shares=self._weights.shares(ordered, num_examples),
            tags=self._tags,
        )
        backing_off = tuple(sorted(step_back - may, key=client_order))
        asked: tuple[str, ...] = ()
        resting: tuple[str, ...] = ()
        if self.rule.request:
            asked, chances = self._candidates(now, backing_off)
            now = replace(now, chances=chances)
        samples = now.chances or getattr(self.rule, "num_candidates", None) is not None
        if self._asks_resting and not samples and may <= set(asked):
            # The mean of all is known only if those are asked too that the rule leaves out. (A rule
            # that asks some of them has said how many are to train.)
            others = {*asked, *backing_off}
            resting = tuple(client for client in ordered if client not in others)
        return Plan(
            now=now,
            candidates=(*asked, *resting),
            resting=resting,
            rest_rounds=self._queue.rounds(choice_of),
            cooling=tuple(client for client in cooling if client not in may),
            released=tuple(released),
            backing_off=backing_off,
            returned=tuple(returned),
        )

    def _candidates(
        self, now: Round, backing_off: Collection[str]
    ) -> tuple[tuple[str, ...], Mapping[str, float]]:
        """Have the rule say whom to ask of those that do not step back."""
        held_back = set(backing_off)
        clients = tuple(client for client in now.clients if client not in held_back)
        with self._named("candidates", now):
            possible = replace(now, clients=clients)
            asked = tuple(self.rule.candidates(self._memory.rule, possible))
            chances = self.rule.chances(possible)
        if len(set(asked)) < len(asked) or not set(asked) <= set(clients):
            raise ValueError(
                f"the rule {self.rule} asks {list(asked)} in round {now.number}, but must ask "
                f"different clients of {list(clients)}"
            )
        return asked, chances

    def offered(self, plan: Plan, answered: Collection[str]) -> tuple[str, ...]:
        """Return who can be chosen: of those asked, if any were, only who answered."""
        available, asked = plan.now.available, plan.candidates
        if not asked:
            return available
        if self.rule.chooses_unasked:
            silent = set(asked).difference(answered)
            return tuple(client for client in available if client not in silent)
        return tuple(client for client in available if client in answered)

    def choose(
        self, plan: Plan, summaries: Mapping[str, Summary], fit: SketchFit | None = None
    ) -> Choice:
        """Have the rule choose, among those that answered if any were asked."""
        offered = self.offered(plan, summaries)
        number = min(plan.now.num_selected, len(offered))
        resting = set(plan.resting)
        asked = tuple(client for client in plan.candidates if client not in resting)
        now = replace(plan.now, available=offered, num_selected=number, asked=asked, fit=fit)
        others = summaries.keys() - set(offered) - resting
        order = (*offered, *sorted(others, key=client_order))
        answers = {client: summaries[client] for client in order if client in summaries}
        with self._named("select", now):
            choice = self.rule.select(self._memory.rule, now, answers)
        if not isinstance(choice, Choice):
            raise TypeError(f"select of the rule {self.rule} returned {choice!r}, want a Choice")
        for chosen in choice.by_layer.values() if choice.by_layer else (choice.clients,):
            clients = set(chosen)
            if not len(chosen) == len(clients) == number or not clients <= set(offered):
                raise ValueError(
                    f"the rule {self.rule} chose {list(chosen)} in round {now.number}, but must "
                    f"choose {number} different clients of {list(offered)}"
                )
        chances = [choice.chances.get(client, 0.0) for client in choice.clients]
        if choice.chances and (choice.by_layer or not all(0 < chance <= 1 for chance in chances)):
            raise ValueError(
                f"the rule {self.rule} gave the chances {dict(choice.chances)} in round "
                f"{now.number}, but must give one above 0 and at most 1 for each chosen client, "
                "and none in a choice by layer"
            )
        if choice.state is not None:
            self._memory.rule, self._planned = self._checked_state(choice.state, "select"), None
        similarity, optimal = choice.mean_similarity, choice.optimal
        if similarity is not None and not math.isfinite(similarity):
            raise ValueError(
                f"the rule {self.rule} gave the mean_similarity {similarity} in round "
                f"{now.number}, but it must be finite, or None"
            )
        clients = {*choice.clients, *chain.from_iterable(choice.by_layer.values())}
        return replace(
            choice,
            clients=tuple(sorted(clients, key=client_order)),
            mean_similarity=None if similarity is None else float(similarity),
            optimal=None if optimal is None else bool(optimal),
        )

    def observe(self, plan: Plan, chosen: Iterable[str], delivered: Mapping[str, Metrics]) -> None:
        """Note who was asked and chosen, and whose update was used: only they cool down."""
        memory, self._planned = self._memory, None
        memory.last_asked |= dict.fromkeys(plan.candidates, plan.now.number)
        memory.last_chosen |= dict.fromkeys(chosen, plan.now.number)
        self._queue.push(delivered, plan.now.number)
        sizes = {client: metrics.get(NUM_EXAMPLES, 0) for client, metrics in delivered.items()}
        memory.num_examples |= {
            client: size for client, size in sizes.items() if LEAST_WEIGHT <= size <= _MOST
        }
        with self._named("observe", plan.now):
            state = self.rule.observe(memory.rule, plan.now, delivered)
        memory.rule = self._checked_state(state, "observe")

    def forget(self, client: str) -> None:
        """Forget what a client has said and sent."""
        memory, self._planned = self._memory, None
        for known in (memory.last_chosen, memory.last_asked, memory.num_examples, memory.said):
            known.pop(client, None)
        memory.doubted = [other for other in memory.doubted if other != client]
        self._queue.forget(client)
        self._backoff.forget(client)
        memory.rule = self._checked_state(self.rule.forget(memory.rule, client), "forget")

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on."""
        memory = {name: copy(value) for name, value in vars(self._memory).items()}
        return {"queue": self._queue.state(), "backoff": self._backoff.state(), **memory}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._planned = None
        self._queue.restore(state["queue"])
        self._backoff.restore(state["backoff"])
        self._memory = _Memory(**{name: copy(state[name]) for name in vars(self._memory)})

    def _checked_state(self, state: RuleState, function: str) -> RuleState:
        if not isinstance(state, Mapping):
            raise TypeError(
                f"{function} of the rule {self.rule} returned the state {state!r}, want a mapping "
                "of names to JSON values and NumPy arrays"
            )
        return dict(state)

    def _named(self, function: str, now: Round) -> AbstractContextManager[None]:
        return named(function, f"the rule {self.rule}", now.number)
