"""Carries a rule from round to round: the queue in front of it, and the state behind it."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pncs_flower.protocol import NUM_EXAMPLES, client_order
from pncs_flower.queue import AgeOfUpdateQueue

from ..errors import named
from ..record import RoundRecord
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary
from .backoff import Backoff

__all__ = ["Plan", "Selector"]


@dataclass(frozen=True)
class Plan:
    """Who may be chosen in a round, and who is to be asked.

    Attributes
    ----------
    now : Round
        The round as the rule sees it.
    candidates : tuple of str
        Clients to ask in the pre-round; empty if the rule asks nobody.
    cooling : tuple of str
        Clients that the queue holds back.
    released : tuple of str
        Clients that leave the queue early, because too few others are left.
    backing_off : tuple of str
        Clients that failed and step back: they are neither asked nor chosen.
    returned : tuple of str
        Clients that would step back, but are needed, because even with those released too few
        others are left.
    """

    now: Round
    candidates: tuple[str, ...]
    cooling: tuple[str, ...]
    released: tuple[str, ...]
    backing_off: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def note(self, record: RoundRecord) -> None:
        """Put into a round's record who is held back, and who is not although it should be."""
        record.cooling, record.released = list(self.cooling), list(self.released)
        record.backing_off = list(self.backing_off)
        if self.released:
            record.notes.append(
                f"too few clients were free, so {', '.join(self.released)} left the queue early"
            )
        if self.returned:
            record.notes.append(
                f"too few others are left, so {', '.join(self.returned)} may be chosen in spite of "
                "earlier failures"
            )


class Selector:
    """A selection rule with an Age-of-Update queue in front, and what both remember.

    Parameters
    ----------
    rule : SelectionRule
        The rule.
    queue_length : int
        Length of the queue in clients; 0 holds nobody back.
    seed : int
        Seed of all choices.
    """

    def __init__(self, rule: SelectionRule, queue_length: int, seed: int) -> None:
        self._rule = rule
        self._seed = seed
        self._queue = AgeOfUpdateQueue(queue_length, rule.num_selected)
        self._backoff = Backoff()
        self._state: RuleState = rule.initial_state()
        self._num_examples: dict[str, float] = {}
        # What clients only say of their size, and those that said it and then did not deliver.
        self._said: dict[str, float] = {}
        self._doubted: set[str] = set()
        self._last_chosen: dict[str, int] = {}
        self._last_asked: dict[str, int] = {}

    def learn_sizes(self, num_examples: Mapping[str, float]) -> None:
        """Note how many examples clients say to have; what came with an update counts for more.

        The word of a client that was to deliver and did not counts for nothing until it does.
        """
        self._said |= num_examples

    def note_without_examples(self, clients: Iterable[str], number: int) -> None:
        """Have clients step back that say to have no example, from this round on."""
        self._backoff.note_without_examples(sorted(clients, key=client_order), number)

    def plan(self, number: int, clients: Sequence[str]) -> Plan:
        """Plan a round.

        Parameters
        ----------
        number : int
            The round, from 1.
        clients : sequence of str
            Keys of the clients that take part; at least as many as the rule selects.

        Returns
        -------
        Plan
            Who may be chosen and who is to be asked.
        """
        ordered = sorted(clients, key=client_order)
        failed = self._backoff.holds_back(ordered)
        cooling = set(ordered).difference(self._queue.available(ordered, number))
        free = set(ordered).difference(cooling, failed)
        # By their last turn, not by their last update: a client that failed has had its turn.
        turn = self._last_chosen
        missing = max(0, self._rule.num_selected - len(free))
        held = [client for client in ordered if client in cooling and client not in failed]
        released = self._queue.longest_waiting(held, missing)
        returned = failed[: missing - len(released)]
        may = free.union(released, returned)
        available = sorted((c for c in ordered if c in may), key=lambda c: turn.get(c, 0))
        now = Round(
            number=number,
            seed=self._seed,
            num_selected=self._rule.num_selected,
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
        if self._rule.request:
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
        """Have the rule choose, among those that answered if any were asked.

        Raises
        ------
        ValueError
            If the rule chooses other clients, or another number of them, than it was offered.
        TypeError
            If what it returns is no `Choice`.
        """
        self.note_asked(plan)
        asked = set(plan.candidates)
        offered = tuple(
            client
            for client in plan.now.available
            if not asked
            or client in summaries
            or (client not in asked and self._rule.chooses_unasked)
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
            choice = self._rule.select(self._state, now, answers)
        if not isinstance(choice, Choice):
            raise TypeError(f"select of the rule {self._rule} returned {choice!r}, want a Choice")
        for chosen in choice.by_layer.values() if choice.by_layer else (choice.clients,):
            clients = set(chosen)
            if len(chosen) != now.num_selected or not clients <= set(offered):
                raise ValueError(
                    f"the rule {self._rule} chose {list(chosen)} in round {now.number}, but must "
                    f"choose {now.num_selected} different clients of {list(offered)}"
                )
            if len(clients) != len(chosen):
                raise ValueError(f"the rule {self._rule} chose a client twice: {list(chosen)}")
        clients = {*choice.clients, *chain.from_iterable(choice.by_layer.values())}
        if choice.state is not None:
            self._state = self._checked_state(choice.state, "select")
        similarity = choice.mean_similarity
        if similarity is not None and not math.isfinite(similarity):
            raise ValueError(
                f"the rule {self._rule} gave the mean_similarity {similarity} in round "
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
            state = self._rule.observe(self._state, plan.now, delivered)
        self._state = self._checked_state(state, "observe")

    def end_round(
        self,
        plan: Plan,
        answered: Collection[str],
        trained: Collection[str],
        sound: Collection[str],
        empty: bool,
    ) -> None:
        """Take note of who failed, and steps back from now on.

        Parameters
        ----------
        plan : Plan
            The round's plan: whom it asked.
        answered : collection of str
            Clients whose summary could be used.
        trained : collection of str
            Clients that were asked for their full update.
        sound : collection of str
            Those whose update was as it should be.
        empty : bool
            Whether no update was used: nothing has changed for the rule.
        """
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
        self._backoff.restore(state.get("backoff", {}))  # absent from older checkpoints
        self._num_examples = dict(state["num-examples"])
        self._said = dict(state.get("num-examples-said", {}))  # absent from older checkpoints
        self._doubted = set(state.get("num-examples-doubted", ()))
        self._state = dict(state["rule"])
        self._last_chosen = dict(state["last-chosen"])
        self._last_asked = dict(state["last-asked"])

    def _candidates(self, now: Round) -> tuple[str, ...]:
        with self._named("candidates", now):
            asked = tuple(self._rule.candidates(self._state, now))
        if len(set(asked)) < len(asked) or not set(asked) <= set(now.clients):
            raise ValueError(
                f"the rule {self._rule} asks {list(asked)} in round {now.number}, but must ask "
                f"different clients of {list(now.clients)}"
            )
        return asked

    def _checked_state(self, state: RuleState, function: str) -> RuleState:
        if not isinstance(state, Mapping):
            raise TypeError(
                f"{function} of the rule {self._rule} returned the state {state!r}, want a mapping "
                "of names to JSON values and NumPy arrays"
            )
        return state

    def _named(self, function: str, now: Round) -> AbstractContextManager[None]:
        return named(function, f"the rule {self._rule}", now.number)
