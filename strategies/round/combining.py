"""The change of the model: what a combination makes of the updates, given to the base strategy."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp.strategy import Strategy

from pncs_flower.fit import SketchFit
from pncs_flower.protocol import NUM_EXAMPLES

from ..base_strategy import unwrap
from ..combination import Change, Delivery
from ..combinations import Mean, parse_combination
from ..combinations.store import norm
from ..kept_arrays import FOLDER
from ..options import SelectionOptions
from ..replies.aggregation import check_averages
from ..replies.vectors import Vectors
from ..rule import Round, SelectionRule
from .open_round import OpenRound


class Combiner:
    """A strategy's combination, and the weights that it takes clients to have."""

    def __init__(self, options: SelectionOptions, rule: SelectionRule, base: Strategy) -> None:
        self._given, folder = options.combine, options.checkpoint_folder
        self.combination = deepcopy(parse_combination(self._given))
        self.averages = isinstance(self.combination, Mean)
        verify = options.verify_sketches
        self.verifies = self.combination.asks_update if verify is None else verify
        self.request = self.combination.request(rule.request)
        if not self.averages:
            check_averages(base, f"combine is {self._given!r}", 'combine="mean"')
        self.combination.begin(folder and folder / FOLDER)
        keys = [getattr(strategy, "weighted_by_key", None) for strategy in unwrap(base)]
        self._by_examples = NUM_EXAMPLES in keys
        self._clip_norm = options.clip_norm
        self._weights: dict[str, float] = {}  # as they last came with an update

    def check_by_layer(self) -> None:
        """Refuse a choice for each layer, unless the mean is taken."""
        if not self.averages:
            raise ValueError(
                f"combine is {self._given!r}, but the rule chooses for each layer, whose mean it "
                'is: use combine="mean", or a rule that does not (per_layer=False)'
            )

    def fit(self, round: OpenRound) -> SketchFit | None:
        """Return what a rule may choose for, with the sketches of the pre-round."""
        if self.averages:
            return None
        now = round.plan.now
        return self.combination.fit(now, self._shares(now), self._sketches(round))

    def combine(
        self, round: OpenRound, contents: Mapping[str, RecordDict], weights: Mapping[str, float]
    ) -> tuple[Delivery, Change] | None:
        """Put the combined change into all updates, in place, as if each client had made it."""
        # The mean that the base strategy takes is then this change, whatever it does afterwards.
        if self.averages or not contents:
            return None
        self._weights |= weights
        now, vectors = round.plan.now, Vectors(round.model.weights)
        updates = {client: vectors.update(content) for client, content in contents.items()}
        delivery = Delivery(now, updates, self._shares(now), self._sketches(round))
        with round.timed("combination"):
            change = self.combination.combine(delivery)
        if change is None:
            return None
        changed = vectors.changed(change.values)
        for content in contents.values():
            next(iter(content.array_records.values())).update(changed)
        round.record.combined = dict(change.record)
        return delivery, change

    def forget(self, client: str) -> None:
        """Forget all that is a client's."""
        self._weights.pop(client, None)
        self.combination.forget(client)

    def state(self) -> dict[str, Any]:
        """Return all that later changes depend on."""
        return {"weights": dict(self._weights), "memory": self.combination.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._weights = dict(state["weights"])
        self.combination.restore(state["memory"])

    def _sketches(self, round: OpenRound) -> Mapping[str, np.ndarray]:
        """Return the sketches of updates, as they are clipped before they are combined."""
        most = self._clip_norm
        if most is None:
            return round.sketches
        return {c: s * min(1.0, most / (norm(s) or most)) for c, s in round.sketches.items()}

    def _shares(self, now: Round) -> dict[str, float]:
        """Return the weight of each client in the mean of all; the unknown are as the known."""
        known = {**(now.num_examples if self._by_examples else {}), **self._weights}
        weights = {client: known[client] for client in now.clients if client in known}
        usual = sum(weights.values()) / len(weights) if weights else 1.0
        weights = {client: weights.get(client, usual) for client in now.clients}
        total = sum(weights.values())
        return {client: weight / total for client, weight in weights.items()}
