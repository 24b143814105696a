"""SketchedMean: the clients whose updates fit best what all clients together would apply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.serverapp.strategy import Strategy

from pncs_flower.layers import ALL_LAYERS
from pncs_flower.protocol import SummaryRequest
from pncs_flower.sampling import inclusion_chances, systematic_sample
from pncs_flower.sketches.kinds import parse_sketch

from ..rule import Choice, Round, RuleState, SelectionRule, Summary, replaced
from ..rule_strategy import RuleStrategy
from ..sketch_rule import check_candidates

__all__ = ["SketchedMean", "SketchedMeanRule"]

_COMBINE = "sketched-mean"


@dataclass(frozen=True)
class SketchedMeanRule(SelectionRule):
    """Choose for the fit of the combination, which remembers; see `SketchedMean`."""

    num_selected: int = 2
    sketch: str = "count:256"
    num_candidates: int | None = field(default=None, metadata={"name": "candidates"})

    def __post_init__(self) -> None:
        replaced(self, sketch=parse_sketch(self.sketch).spec)
        if self.num_candidates is not None:
            check_candidates(self.num_candidates, self.num_selected, ", or leave it out to ask all")

    @property
    def request(self) -> SummaryRequest:
        """A sketch of the whole local update."""
        return SummaryRequest("update", self.sketch, whole=True)

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Ask all, also those that cool down; or some at random."""
        chances = self.chances(now)
        if not chances:
            return now.clients
        return systematic_sample(chances, now.generator("candidates"))

    def chances(self, now: Round) -> dict[str, float]:
        """Ask clients in proportion to their weight in the mean; empty if all are asked."""
        if self.num_candidates is None or self.num_candidates >= len(now.clients):
            return {}
        weights = {client: now.shares.get(client, 1.0) for client in now.clients}
        return inclusion_chances(weights, self.num_candidates)

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose by matching pursuit."""
        if now.fit is None:
            raise ValueError(
                f"the rule chooses for a combination that fits sketches: use combine={_COMBINE!r}"
            )
        sketches = np.stack([summaries[client][ALL_LAYERS] for client in now.available])
        chosen = now.fit.pursue(now.available, sketches, now.num_selected)
        return Choice(tuple(now.available[index] for index in chosen))


class SketchedMean(RuleStrategy):
    """Select and combine the updates that are nearest to the mean of all clients' updates.

    Each client that is asked sends a small sketch of its whole update. The mean of these is the
    sketch of what full participation would apply, and the updates of earlier rounds, which the
    server stores, fit it in part. The clients chosen are, one after the other, those whose sketch
    is best aligned with what is left over (orthogonal matching pursuit). What they deliver is
    combined with what is stored; see `pncs_flower.strategies.combinations.SketchedFit`, whose
    parameters are given by ``combine``, such as ``combine="sketched-mean:store=50"``.

    Parameters
    ----------
    sketch : str or Sketch (default: "count:256")
        What a client sends of its whole update: ``"count:R"``, R numbers whatever the size of the
        model, or ``"layers"``, all of it.
    candidates : int, optional (default: None)
        Ask so many clients each round, at least ``num_selected``: drawn at random, by their weight
        in the mean. Of the others the last sketches count. With a queue, ask more than that: those
        that rest are drawn too, but not chosen. All are asked if None.
    """

    rule_type = SketchedMeanRule

    def __init__(self, base: Strategy, **arguments: Any) -> None:
        super().__init__(base, **{"combine": _COMBINE, **arguments})
        if not self._combiner.combination.asks_update:  # told before anybody trains
            raise ValueError(
                f"combine is {self.options.combine!r}, but SketchedMean chooses for a combination "
                f"that fits sketches: use combine={_COMBINE!r}, or another strategy"
            )
