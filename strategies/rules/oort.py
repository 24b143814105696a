"""Oort: clients whose loss promises much, who are fast enough, or not yet known."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..checks import check_not_negative, check_seconds, check_share, check_text, given
from ..reports import draw, reported, round_half_up, sizes
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary
from ..rule_strategy import RuleStrategy

__all__ = ["Oort", "OortRule"]

_DECAY = 0.98
_LEAST_EXPLORED = 0.2
_CUT_OFF = 0.95
_PACE = 20
_MOST = 1e300  # of a utility, so that a broken client's leaves the quantile a number


@dataclass(frozen=True)
class OortRule(SelectionRule):
    """See `Oort`; it remembers utilities and seconds as last reported, T, and each round's gain."""

    num_selected: int = 2
    explored_share: float = 0.9
    clip_quantile: float = 0.95
    penalty: float = 2.0
    pacer_step: float = 5.0
    loss_key: str = "train-loss"
    duration_key: str | None = None

    def __post_init__(self) -> None:
        check_share(explored_share=self.explored_share, clip_quantile=self.clip_quantile)
        check_not_negative(penalty=self.penalty)
        check_seconds(pacer_step=self.pacer_step)
        check_text(loss_key=self.loss_key, **given(duration_key=self.duration_key))

    def initial_state(self) -> RuleState:
        """Nobody is known, and T is one step."""
        return {"utilities": {}, "seconds": {}, "preferred": self.pacer_step, "gains": []}

    def utilities(self, state: RuleState, now: Round) -> dict[str, float]:
        """Return the utility of each available client that was chosen before, also if it failed."""
        known = [c for c in now.available if c in state["utilities"] or now.last_rounds[c]]
        if not known:
            return {}
        statistical = np.array([state["utilities"].get(client, 0.0) for client in known])
        clipped = np.minimum(statistical, np.quantile(statistical, self.clip_quantile))
        result = {}
        for client, value in zip(known, clipped.tolist(), strict=True):
            # At least 1: a client that is known was chosen in an earlier round.
            last = now.last_rounds[client]
            score = value + math.sqrt(0.1 * math.log(now.number) / last)
            seconds = state["seconds"].get(client, 0.0)
            if seconds > state["preferred"]:
                score *= (state["preferred"] / seconds) ** self.penalty
            result[client] = score
        return result

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Draw the known by utility and the unknown uniformly; either fills up for the other."""
        utilities = self.utilities(state, now)
        unknown = [client for client in now.available if client not in utilities]
        decayed = self.explored_share * _DECAY ** (now.number - 1)
        share = min(self.explored_share, max(_LEAST_EXPLORED, decayed))
        exploited = min(round_half_up((1 - share) * now.num_selected), len(utilities))
        exploited = max(exploited, now.num_selected - len(unknown))
        chosen = self._exploit(utilities, exploited, now)
        explored, equal = now.num_selected - len(chosen), dict.fromkeys(unknown, 0.0)
        return Choice((*chosen, *draw(equal, explored, now.generator("explore"))))

    def _exploit(self, utilities: Mapping[str, float], count: int, now: Round) -> tuple[str, ...]:
        if count == 0:
            return ()
        bar = _CUT_OFF * sorted(utilities.values(), reverse=True)[count - 1]
        admitted = {client: value for client, value in utilities.items() if value >= bar}
        # Above 0 whatever the losses, for the known are chosen from the second round on, and then
        # ln R > 0; but a client so slow that nothing is left of it must not stop the run.
        weights = {c: math.log(max(value, sys.float_info.min)) for c, value in admitted.items()}
        return draw(weights, count, now.generator("exploit"))

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Note utilities and durations, and let the pacer move T."""
        losses = reported(delivered, self.loss_key, "loss_key", now, known=bool(state["utilities"]))
        fresh = {
            client: min(float(size) * abs(losses[client]), _MOST)
            for client, size in zip(losses, sizes(list(losses), now, delivered), strict=True)
        }
        after = {**state, "utilities": {**state["utilities"], **fresh}}
        known, seconds = bool(state["seconds"]), now.seconds
        if self.duration_key is not None:
            seconds = reported(delivered, self.duration_key, "duration_key", now, known)
        elif not known and not seconds:
            return after  # a simulation without devices has no durations
        gains = [*state["gains"], sum(fresh.values())][-2 * _PACE :]
        if now.number % _PACE == 0 and sum(gains[:-_PACE]) > sum(gains[-_PACE:]):
            after["preferred"] = state["preferred"] + self.pacer_step
        return {**after, "seconds": {**state["seconds"], **seconds}, "gains": gains}


class Oort(RuleStrategy):
    """Select clients by Oort (Lai et al., OSDI 2021, section 4 and algorithm 1).

    The utility of a client that has taken part is the number of its examples times the root mean
    square of their losses (clipped at a quantile over all clients), plus sqrt(0.1 ln R / L_k) in
    round R, where L_k is the round in which it was last chosen, and all of it times
    (T / t_k)^penalty if it took t_k > T seconds, in the order of the authors' code. A client that
    was chosen and failed has the bonus alone. A share of the chosen is drawn from clients never
    chosen, the rest from those whose utility is at least 0.95 of what would just suffice, with
    probability proportional to it.

    One departure: the authors draw clients that were never chosen by size and known speed; here
    they are drawn uniformly, since nothing tells how fast a client is before it has trained.

    How long a client took, from the message to its update, is simulated with ``devices``, of one
    that was too late as long as it was waited for. In a deployment it is measured: how it chooses
    then depends on real time. A simulation without devices has no durations, and speed plays no
    part: penalty, pacer_step and T are without effect.

    Parameters
    ----------
    explored_share : float (default: 0.9)
        Share of the chosen that never took part, in the first round; times 0.98 from round to
        round, down to 0.2. The others are rounded to the nearest number, halves up.
    clip_quantile : float (default: 0.95)
        Utilities above this quantile count as the quantile, against outliers.
    penalty : float (default: 2.0)
        Exponent of the penalty on slow clients (alpha in the paper), at least 0.
    pacer_step : float (default: 5.0)
        Seconds; T starts at it, and grows by it every 20 rounds if the last 20 gained less utility
        than the 20 before.
    loss_key : str (default: "train-loss")
        The metric with which clients report the root mean square of their losses, or else the mean,
        which is at most that, as the reference PyTorch client does; ``train_loss`` is taken too.
    duration_key : str, optional (default: None)
        The metric with which clients report how many seconds they took. If None, it is what the
        server knows of it.
    """

    rule_type = OortRule
