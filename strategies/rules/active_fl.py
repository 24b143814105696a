"""Active federated learning: clients whose last loss was high are likely to be chosen again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..checks import check_not_negative, check_one_of, check_share, check_text
from ..reports import draw, order_by_value, reported, round_down, round_half_up, sizes
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary
from ..rule_strategy import RuleStrategy

__all__ = ["ActiveFL", "ActiveFLRule"]


@dataclass(frozen=True)
class ActiveFLRule(SelectionRule):
    """See `ActiveFL`; it remembers the valuation of each client that ever delivered an update."""

    num_selected: int = 2
    suppressed_share: float = 0.75
    sharpness: float = 0.01
    uniform_share: float = 0.1
    unseen: Literal["uniform", "first"] = "uniform"
    loss_key: str = "train-loss"

    def __post_init__(self) -> None:
        check_share(suppressed_share=self.suppressed_share, uniform_share=self.uniform_share)
        check_not_negative(sharpness=self.sharpness)
        check_text(loss_key=self.loss_key)
        check_one_of(("uniform", "first"), unseen=self.unseen)

    def initial_state(self) -> RuleState:
        """Nobody has a valuation."""
        return {"valuations": {}}

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Draw by valuation, and then uniformly from all that are left."""
        # Kept apart from the state: who is suppressed now may be drawn by its valuation later.
        values = {client: state["valuations"].get(client, -math.inf) for client in now.available}
        unseen = [c for c in now.available if values[c] == -math.inf and not now.last_rounds[c]]
        chosen = tuple(unseen[: now.num_selected]) if self.unseen == "first" else ()
        suppressed = round_down(self.suppressed_share * len(now.available))
        kept = order_by_value(now.available, values)[: len(now.available) - suppressed]
        by_value = round_half_up((1 - self.uniform_share) * (now.num_selected - len(chosen)))
        weights = {c: self.sharpness * values[c] for c in kept if values[c] > -math.inf}
        chosen += draw(weights, by_value, now.generator("draw by valuation"))
        left = {client: 0.0 for client in now.available if client not in chosen}
        missing = now.num_selected - len(chosen)
        return Choice((*chosen, *draw(left, missing, now.generator("uniform draw"))))

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Set the valuation of those that trained: the root of the size times the mean loss."""
        known = bool(state["valuations"])
        losses = reported(delivered, self.loss_key, "loss_key", now, known)
        roots = (sizes(list(losses), now, delivered) ** 0.5).tolist()
        fresh = {c: root * losses[c] for c, root in zip(losses, roots, strict=True)}
        return {"valuations": {**state["valuations"], **fresh}}


class ActiveFL(RuleStrategy):
    """Select clients by active federated learning (AFL, Goetz et al. 2019, arXiv:1909.12641).

    The valuation of a client with n examples is the sum of its losses over them, when it last
    trained, divided by sqrt(n). The lowest valuations are suppressed; most clients are drawn by
    exp(sharpness * valuation), without replacement, the rest uniformly from all that are left.
    Nobody is asked for anything.

    Parameters
    ----------
    suppressed_share : float (default: 0.75)
        Share of the available clients, rounded down, that cannot be drawn by valuation (alpha_1 in
        the paper).
    sharpness : float (default: 0.01)
        Factor of the valuations, at least 0 (alpha_2).
    uniform_share : float (default: 0.1)
        Share of the chosen drawn uniformly (alpha_3). The others are rounded, halves up.
    unseen : {"uniform", "first"} (default: "uniform")
        Draw those without a valuation in the uniform part only, or choose them before all others.
    loss_key : str (default: "train-loss")
        The metric by which clients report their mean loss; ``train_loss`` is taken too.

    Notes
    -----
    With a uniform share of 0.1 and fewer than six clients per round, none is drawn uniformly once
    enough have a valuation: the first clients are then chosen for ever, unless ``unseen="first"``,
    a larger share, or a queue (``queue_length``) brings in others.

    The paper's loss is that at the weights received; the reference PyTorch client's, averaged over
    local training, is close to it for few steps.
    """

    rule_type = ActiveFLRule
