"""FedCor: clients whose training is expected to lower everybody's loss, by a Gaussian process."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from pncs_flower.gaussian_process import condition, covariance, fit
from pncs_flower.protocol import LOSS, SummaryRequest
from pncs_flower.randomness import generator

from ..checks import check_factor, check_whole
from ..reports import sizes
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary, replaced
from ..rule_strategy import RuleStrategy
from .uniform import UniformRule

__all__ = ["FedCor", "FedCorRule"]

_DIMENSION = 15
_NOISE = 0.01
_FIRST_STEPS = 1000
_LATER_STEPS = 100
_LEARNING_RATE = 1e-2
_LEAST_WEIGHT = 1e-6  # a sample that weighs less has no part in a fit
_LARGEST_CHANGE = 1e6  # of a loss; more comes from a broken client, and would drown all others
_TIE = 1e-9  # scores that differ by less are equal: their last bits depend on the terms' order


@dataclass(frozen=True)
class Schedule:
    """When FedCor learns, and how fast it forgets."""

    warm_up: int  # first rounds with uniform selection, after which the process is fitted
    # Rounds from one later sample of loss changes to the next; a round that is sampled selects
    # uniformly, so with fewer than 2 none would be left to choose in.
    interval: int
    annealing: float  # factor of a score for each selection since the last fit (beta)
    discount: float  # factor of a sample's weight for each round of its age (gamma)

    def __post_init__(self) -> None:
        check_whole(least=0, warm_up=self.warm_up)
        check_whole(least=2, interval=self.interval)
        check_factor(annealing=self.annealing, discount=self.discount)

    def samples(self, number: int) -> bool:
        """Return whether a round selects uniformly, to see how the losses change by it."""
        later = number - self.warm_up
        return number >= 1 and (later <= 0 or later % self.interval == 0)


SCHEDULES: dict[str, Schedule] = {
    "fashion-mnist": Schedule(warm_up=15, interval=10, annealing=0.95, discount=0.95),
    "cifar-10": Schedule(warm_up=20, interval=50, annealing=0.9, discount=0.99),
    "short": Schedule(warm_up=5, interval=5, annealing=0.9, discount=0.95),
}
"""The schedules of the paper's code for its two data sets, and one for runs of about 20 rounds, in
which those would hardly select by anything but chance."""


@dataclass(frozen=True)
class FedCorRule(SelectionRule):
    """See `FedCor`; it remembers losses, samples of their changes, embeddings, selections."""

    num_selected: int = 2
    schedule: Schedule | str = "fashion-mnist"

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str) and self.schedule in SCHEDULES:
            replaced(self, schedule=SCHEDULES[self.schedule])
        if not isinstance(self.schedule, Schedule):
            error = ValueError if isinstance(self.schedule, str) else TypeError
            raise error(
                f"schedule is {self.schedule!r}, but must be a Schedule or one of "
                f"{', '.join(SCHEDULES)}"
            )

    @property
    def _schedule(self) -> Schedule:
        return cast(Schedule, self.schedule)

    @property
    def request(self) -> SummaryRequest:
        """The loss at the current weights."""
        return SummaryRequest("loss")

    def initial_state(self) -> RuleState:
        """Nothing is known."""
        return {
            "losses": {},
            "losses-round": 0,
            "samples": [],  # rounds and the clients' loss changes in them
            "embeddings": {},
            "times-selected": {},  # since the last fit
            "fitted": False,
        }

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Ask all clients before and after a round that is sampled, and nobody else."""
        samples = self._schedule.samples
        return now.clients if samples(now.number) or samples(now.number - 1) else ()

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Learn from the losses told; then draw uniformly, or choose by the process."""
        after = self._learn(state, now, summaries)
        if self._schedule.samples(now.number):
            chosen = UniformRule(now.num_selected).select({}, now, {}).clients
            return Choice(chosen, state=after)
        chosen = self._by_process(after, now)
        times = after["times-selected"]
        times = {**times, **{client: times.get(client, 0) + 1 for client in chosen}}
        return Choice(chosen, state={**after, "times-selected": times})

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Forget the losses where no update came: the next ones are no consequence of a choice."""
        return state if delivered else {**state, "losses": {}, "losses-round": 0}

    def _learn(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> RuleState:
        """Take in the losses, and fit if they complete a sample and warm-up is over."""
        schedule, last_round = self._schedule, now.number - 1
        losses = {client: float(summary[LOSS][0]) for client, summary in summaries.items()}
        before = state["losses"] if state["losses-round"] == last_round else {}
        changes = {c: loss - before[c] for c, loss in losses.items() if c in before}
        changes = {c: by for c, by in changes.items() if abs(by) <= _LARGEST_CHANGE}
        embeddings = dict(state["embeddings"])
        for client in now.clients:
            if client not in embeddings:
                # By its key, so that a client that joins later changes nobody else's.
                draw = generator(now.seed, "fedcor embedding", client).normal(size=_DIMENSION)
                embeddings[client] = draw / math.sqrt(_DIMENSION)
        samples = list(state["samples"])
        if changes and schedule.samples(last_round):
            samples.append((last_round, changes))
        weights = {number: schedule.discount ** (last_round - number) for number, _ in samples}
        samples = [(number, row) for number, row in samples if weights[number] >= _LEAST_WEIGHT]
        after = {
            **state,
            "losses": losses,
            "losses-round": now.number if losses else 0,
            "samples": samples,
            "embeddings": embeddings,
        }
        if not samples or samples[-1][0] < last_round or now.number <= schedule.warm_up:
            return after
        told = [[row.get(client, math.nan) for client in embeddings] for _, row in samples]
        fitted = fit(
            np.column_stack(list(embeddings.values())),
            np.array(told),
            np.array([weights[number] for number, _ in samples]),
            noise=_NOISE,
            steps=_LATER_STEPS if state["fitted"] else _FIRST_STEPS,
            learning_rate=_LEARNING_RATE,
        )
        embeddings = dict(zip(embeddings, map(np.array, fitted.T), strict=True))
        return {**after, "embeddings": embeddings, "fitted": True, "times-selected": {}}

    def _by_process(self, state: RuleState, now: Round) -> tuple[str, ...]:
        # All clients count in the sum, also those that cannot be chosen.
        embeddings = np.stack([state["embeddings"][client] for client in now.clients]).T
        size = sizes(now.clients, now)
        times = [state["times-selected"].get(client, 0) for client in now.clients]
        chosen = greedy(
            covariance(embeddings, _NOISE),
            size / size.sum(),
            self._schedule.annealing ** np.array(times),
            [now.clients.index(client) for client in now.available],
            now.num_selected,
        )
        return tuple(now.clients[index] for index in chosen)


def greedy(
    sigma: np.ndarray, shares: np.ndarray, annealing: np.ndarray, eligible: Sequence[int], size: int
) -> list[int]:
    """Choose one after the other by sum_i p_i sigma_ik / sqrt(sigma_kk), times annealing."""
    left, chosen = list(eligible), []
    for _ in range(size):
        variances = np.diag(sigma)[left]
        if not ((variances > 0) & np.isfinite(variances)).all():
            raise ValueError(
                f"the loss changes have the variances {variances}, but must have some above 0: the "
                "fit has diverged, are all losses of an ordinary size?"
            )
        scores = annealing[left] * (shares @ sigma[:, left]) / np.sqrt(variances)
        best = left[int(np.argmax(scores >= scores.max() - _TIE * abs(scores).max()))]
        sigma = condition(sigma, best)
        left.remove(best)
        chosen.append(best)
    return chosen


class FedCor(RuleStrategy):
    """Select clients by the correlation of their losses (FedCor, Tang et al., CVPR 2022).

    The changes of all clients' losses in a round are taken for a Gaussian process of mean 0 and
    covariance X^T X + 0.01^2 I, with a trained embedding of 15 numbers for each client. Clients are
    chosen one after the other: the one whose loss change, given those before, goes together most
    with that of all clients, each weighted by its examples.

    Parameters
    ----------
    schedule : Schedule or {"fashion-mnist", "cifar-10", "short"} (default: "fashion-mnist")
        When the process is fitted; ``"short"`` is for runs of about 20 rounds.

    Notes
    -----
    In warm-up, and in a round every ``interval`` rounds after it, clients are selected uniformly,
    and all are asked for their loss before and after; other rounds ask nobody. The first fit, 1000
    steps of Adam, comes after warm-up; each later sample brings another 100. The paper throws away
    the model of a later sample's round; here it is kept, so that a sample costs no extra round.

    A client that sends no loss, or one that changes by more than a million, is left out of that
    round's sample. One that joins after the last fit is uncorrelated in expectation.
    """

    rule_type = FedCorRule
