"""The end of a round's training: check what was delivered, and have the base aggregate it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from ..errors import EmptyRoundsError
from ..options import SelectionOptions
from ..record import RoundRecord
from ..replies.aggregation import aggregate
from ..replies.layers import check_averages, share_layers
from ..replies.updates import SketchCheck, UpdateChecks
from ..rule import Choice, Metrics
from .open_round import OpenRound

__all__ = ["Closing", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What came of a round's training."""

    arrays: ArrayRecord | None
    metrics: MetricRecord | None
    used: Mapping[str, Metrics]  # the numbers that came with each update in the new model
    sound: Sequence[str]  # clients whose update was as it should be
    liars: Mapping[str, str]  # clients whose sketch is not that of their update, and why


class Closing:
    """Drops the updates that cannot be used, and has the base strategy aggregate the others."""

    def __init__(
        self, base: Strategy, options: SelectionOptions, history: Sequence[RoundRecord]
    ) -> None:
        self._base = base
        self._options = options
        self._history = history
        self._checks = UpdateChecks(base, options.max_weight, options.clip_norm, history)
        self.common = self._checks.metrics

    def check_choice(self, choice: Choice) -> None:
        """Refuse, before anybody trains, a choice that the base strategy cannot carry out."""
        if choice.by_layer:
            check_averages(self._base)

    def close(self, round: OpenRound, received: list[Message]) -> Outcome:
        """Sort out the replies and aggregate; the record takes who delivered and the rest."""
        with round.timed("aggregation"):
            return self._close(round, received)

    def _close(self, round: OpenRound, received: list[Message]) -> Outcome:
        record, options = round.record, self._options
        sketches = self._sketches(round)
        delivery = self._checks.sort_out(round.model, round.sent, received, record, sketches)
        sound, updates, used = list(delivery.sound), delivery.sound, delivery.metrics
        if 0 < len(updates) < options.min_updates:
            record.notes.append(
                f"{len(updates)} updates are fewer than min_updates = {options.min_updates}, so "
                "they are not used"
            )
            record.delivered.clear()
            updates, used = {}, {}
        contents = {client: message.content for client, message in updates.items()}
        record.notes += share_layers(
            contents, record.chosen_by_layer, round.model.weights, self.common.weights(contents)
        )
        arrays, metrics, problem = aggregate(
            self._base, round.number, list(updates.values()), round.model
        )
        if problem is not None:
            record.notes.append(problem)
            sound, used = [], {}  # one of these is to blame, so all of them step back
        if arrays is None:
            record.notes.append("no new model came out of this round: the last one is kept")
        return Outcome(arrays, metrics, used, sound, delivery.liars)

    def stop_after_empty_rounds(self) -> None:
        """Raise `EmptyRoundsError` if this was the last of too many in a row without an update."""
        last = self._history[-self._options.max_empty_rounds :]
        if len(last) < self._options.max_empty_rounds or any(r.delivered for r in last):
            return
        reasons = [f"{who}: {why}" for who, why in last[-1].reasons("training").items()]
        if not reasons:
            reasons = last[-1].notes if last[-1].chosen else ["no client was asked to train"]
        untried = set(last[-1].clients).difference(*(record.chosen for record in last))
        raise EmptyRoundsError(
            f"no client delivered an update in {len(last)} rounds in a row. In round "
            f"{last[-1].round}: {'; '.join(reasons[:3])}. "
            f"{len(untried)} of {len(last[-1].clients)} clients were not chosen in these "
            "rounds: with a larger max_empty_rounds, more would have been tried"
        )

    def _sketches(self, round: OpenRound) -> SketchCheck | None:
        """Return what the updates are compared with, if they are."""
        if not self._options.verify_sketches or round.pre_round is None:
            return None
        if not round.pre_round.keeps_update:
            return None
        return SketchCheck(
            round.pre_round.request, round.summaries, self._options.seed, round.number
        )
