"""The change of the model: what a combination makes of the updates, given to the base strategy."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from pncs_flower.fit import SketchFit
from pncs_flower.messages.records import of_kind

from ..combination import Change, Combination, Delivery
from ..combinations import Mean, parse_combination
from ..combinations.store import norm
from ..errors import SelectionError, named
from ..kept_arrays import FOLDER
from ..options import SelectionOptions
from ..replies.aggregation import check_averages
from ..replies.vectors import Vectors
from ..rule import Choice, SelectionRule
from .open_round import OpenRound
from .weights import Weights

_BY_LAYER = "the rule chooses for each layer", "a rule that does not (per_layer=False)"
_DRAWS = "the rule draws some clients more often than others", "a rule that does not"


class Combiner:
    """A strategy's combination, with all that is its own."""

    def __init__(
        self, options: SelectionOptions, rule: SelectionRule, base: Strategy, weights: Weights
    ) -> None:
        self._given, folder = options.combine, options.checkpoint_folder
        self.combination = deepcopy(parse_combination(self._given))
        self.averages = type(self.combination) is Mean
        verify = options.verify_sketches
        self.verifies = self.combination.asks_update if verify is None else verify
        self.request = self.combination.request(rule.request)
        if not self.averages:
            remedy = 'combine="mean", with another strategy than SketchedMean'
            check_averages(base, f"combine is {self._given!r}", remedy)
        self._base, self._draws = base, rule.draws
        self._check_choices(rule.per_layer, rule.draws)
        self.combination.begin(folder and folder / FOLDER)
        self._clip_norm = options.clip_norm
        self._weights = weights

    @property
    def asks_besides(self) -> Combination | None:
        """The combination if it asks for a sketch of its own."""
        return self.combination if self.request and self.request.besides else None

    def check_model(self, round: OpenRound) -> None:
        """Refuse a model of which nothing can be combined, before anybody is asked."""
        if not self.averages:
            _check_arrays(round, f"combine is {self._given!r}", 'combine="mean"')
        elif self._draws:
            _check_arrays(round, *_DRAWS)

    def check(self, round: OpenRound, choice: Choice) -> None:
        """Refuse a choice from which the base strategy or the combination can make nothing."""
        self._check_choices(bool(choice.by_layer), bool(choice.chances))
        if choice.chances and self.averages:  # else it was done without a choice
            _check_arrays(round, *_DRAWS)

    def check_sum(self) -> None:
        """Refuse a sum of updates in place of each of them, where that is not enough."""
        if not self.averages:
            what, remedy = f"combine is {self._given!r}, which", 'combine="mean"'
        elif self.verifies:
            what, remedy = "verify_sketches=True", "verify_sketches=False"
        elif self._draws:
            what, remedy = f"{_DRAWS[0]}, which", _DRAWS[1]
        else:
            return
        raise SelectionError(
            "the server is given the sum of the updates alone (secure aggregation), but "
            f"{what} needs each of them: use {remedy}"
        )

    def _check_choices(self, by_layer: bool, draws: bool) -> None:
        """Refuse choices of a kind that the base strategy or the combination cannot use."""
        if by_layer:
            check_averages(self._base, *_BY_LAYER)
        if by_layer and not self.averages:
            raise ValueError(
                f"combine is {self._given!r}, but {_BY_LAYER[0]}, whose mean it is: use "
                f'combine="mean", or {_BY_LAYER[1]}'
            )
        if draws and self.averages:
            check_averages(self._base, *_DRAWS)

    def fit(self, round: OpenRound) -> SketchFit | None:
        """Return what a rule may choose for, with the sketches of the pre-round."""
        if self.averages:
            return None
        with self._named("fit", round):
            return self.combination.fit(round.plan.now, self._sketches(round))

    def combine(
        self, round: OpenRound, contents: Mapping[str, RecordDict], weights: Mapping[str, float]
    ) -> tuple[Delivery, Change] | None:
        """Put the combined change into all updates, in place, as if each client had made it."""
        # The mean that the base strategy takes is then this change, whatever it does afterwards.
        for client in round.liars:
            self.forget(client)
        if not contents or (self.averages and not round.chances):
            return None
        now, vectors = round.plan.now, Vectors(round.model.weights)
        updates = {client: vectors.update(content) for client, content in contents.items()}
        honest = [client for client in now.clients if client not in round.liars]
        now = replace(now, shares=self._weights.shares(honest, now.num_examples, weights))
        missing = [client for client in round.record.chosen if client not in contents]
        delivery = Delivery(now, updates, self._sketches(round), missing, round.chances)
        with round.timed("combination"), self._named("combine", round):
            change = self.combination.combine(delivery)
            if change is None:
                return None
            if not isinstance(change, Change):
                raise TypeError(f"combine returned {change!r}, want a Change or None")
            changed = vectors.changed(change.values)
        for content in contents.values():
            next(iter(of_kind(content, ArrayRecord).values())).update(changed)
        return delivery, change

    def keep(
        self,
        round: OpenRound,
        combined: tuple[Delivery, Change] | None,
        weights: Mapping[str, float],
    ) -> None:
        """Remember a round whose model was accepted."""
        self._weights.note(weights)
        if combined is None:
            return
        delivery, change = combined
        round.record.combined = dict(change.record)
        with self._named("keep", round):
            round.record.notes += self.combination.keep(delivery, change)

    def forget(self, client: str) -> None:
        """Forget all that is a client's."""
        self._weights.forget(client)
        self.combination.forget(client)

    def state(self) -> dict[str, Any]:
        """Return all that later changes depend on."""
        return {"weights": self._weights.state(), "memory": self.combination.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        self._weights.restore(state["weights"])
        self.combination.restore(state["memory"])

    def _sketches(self, round: OpenRound) -> Mapping[str, np.ndarray]:
        """Return the sketches of updates, clipped as these are, without those found to be false."""
        sketches = {c: s for c, s in round.sketches.items() if c not in round.liars}
        most = self._clip_norm
        if most is None:
            return sketches
        return {c: s * min(1.0, most / (norm(s) or most)) for c, s in sketches.items()}

    def _named(self, function: str, round: OpenRound) -> AbstractContextManager[None]:
        return named(function, f"the combination {self.combination}", round.number)


def _check_arrays(round: OpenRound, option: str, otherwise: str) -> None:
    """Refuse a model of which nothing can be combined."""
    try:
        Vectors(round.model.weights)
    except ValueError:
        raise ValueError(
            f"{option}, but the model has no floating-point array with a value, so there is "
            f"nothing to combine: use {otherwise}"
        ) from None
