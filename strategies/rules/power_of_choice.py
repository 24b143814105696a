"""Power-of-Choice: of a few clients drawn by size, those with the highest loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pncs_flower.protocol import LOSS, SummaryRequest

from ..checks import check_one_of, check_text, check_whole
from ..reports import draw, order_by_value, reported, sizes
from ..rule import Choice, Metrics, Round, RuleState, SelectionRule, Summary
from ..rule_strategy import RuleStrategy
from ..sketch_rule import check_candidates

__all__ = ["PowerOfChoice", "PowerOfChoiceRule"]


@dataclass(frozen=True)
class PowerOfChoiceRule(SelectionRule):
    """See `PowerOfChoice`; as rpow-d it remembers the last loss that each client reported."""

    num_selected: int = 2
    num_candidates: int = field(default=5, metadata={"name": "candidates"})
    variant: Literal["pow-d", "cpow-d", "rpow-d"] = "pow-d"
    batch_size: int = 32
    loss_key: str = "train-loss"

    def __post_init__(self) -> None:
        check_candidates(self.num_candidates, self.num_selected)
        check_text(loss_key=self.loss_key)
        check_whole(least=1, batch_size=self.batch_size)
        check_one_of(("pow-d", "cpow-d", "rpow-d"), variant=self.variant)

    @property
    def request(self) -> SummaryRequest | None:
        """The loss on all examples, on one mini-batch of them, or nothing."""
        if self.variant == "rpow-d":
            return None
        most = self.batch_size if self.variant == "cpow-d" else 0
        return SummaryRequest("loss", max_examples=most)

    def initial_state(self) -> RuleState:
        """No loss is known."""
        return {"losses": {}}

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Draw without replacement, with probability proportional to a client's examples."""
        log_sizes = np.log(sizes(now.available, now)).tolist()
        weights = dict(zip(now.available, log_sizes, strict=True))
        return draw(weights, self.num_candidates, now.generator("candidates"))

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose the highest losses; the first among equals."""
        if self.variant == "rpow-d":
            # In one order: the last bit of a sum depends on it.
            candidates = self.candidates(state, now)
            drawn = [client for client in now.available if client in candidates]
            known = [state["losses"][client] for client in drawn if client in state["losses"]]
            # A client that failed has had its turn, and is then one like the others.
            usual = sum(known) / len(known) if known else 0.0
            losses = {
                client: state["losses"].get(client, usual if now.last_rounds[client] else math.inf)
                for client in drawn
            }
        else:
            losses = {client: float(summary[LOSS][0]) for client, summary in summaries.items()}
        ranked = order_by_value((c for c in now.available if c in losses), losses)
        return Choice(tuple(ranked[: now.num_selected]))

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Remember the losses reported, if the variant needs them."""
        if self.variant != "rpow-d":
            return state
        losses = reported(delivered, self.loss_key, "loss_key", now, known=bool(state["losses"]))
        return {"losses": {**state["losses"], **losses}}


class PowerOfChoice(RuleStrategy):
    """Select clients by Power-of-Choice (Cho, Wang and Joshi 2022, arXiv:2010.01243).

    Candidates are drawn without replacement with probability proportional to their number of
    examples; those with the highest local loss at the current weights are chosen.

    Parameters
    ----------
    candidates : int (default: 5)
        How many candidates are drawn (d), at least ``num_selected``. With as many as are selected,
        clients are drawn by size alone; with all clients, the choice is greedy.
    variant : {"pow-d", "cpow-d", "rpow-d"} (default: "pow-d")
        Candidates evaluate their loss on all their examples, or on one mini-batch (``"cpow-d"``);
        or nobody is asked, and the last reported loss counts (``"rpow-d"``): infinite for a client
        never chosen, the candidates' mean for one that was chosen but did not deliver.
    batch_size : int (default: 32)
        Examples in the mini-batch of ``"cpow-d"``. An app must read
        `pncs_flower.protocol.MAX_EXAMPLES` to heed it, as the reference PyTorch client does.
    loss_key : str (default: "train-loss")
        The metric of the training loss, for ``"rpow-d"``; ``train_loss`` is taken too.

    Notes
    -----
    A client of unknown size counts as the mean of the known; sizes are known once clients introduce
    themselves with them (`pncs_flower.clients.SummaryMod`), else from their first update on.
    """

    rule_type = PowerOfChoiceRule
