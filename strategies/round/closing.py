"""The end of a round's training: check what was delivered, and have the base aggregate it."""

from collections.abc import Sequence

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from ..errors import EmptyRoundsError
from ..options import SelectionOptions
from ..record import RoundRecord
from ..replies.aggregation import aggregate, share_layers
from ..replies.updates import SketchCheck, UpdateChecks
from .open_round import OpenRound

__all__ = ["close", "stop_after_empty_rounds"]


def close(
    round: OpenRound,
    received: list[Message],
    base: Strategy,
    checks: UpdateChecks,
    options: SelectionOptions,
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Drop the updates that cannot be used, and have the base strategy aggregate the others."""
    record, before, sketches = round.record, round.pre_round, None
    if options.verify_sketches and before is not None and before.keeps_update:
        sketches = SketchCheck(before.request, before.summaries, options.seed, round.number)
    delivery = checks.sort_out(round.model, round.sent, received, record, sketches)
    round.sound, round.liars, round.used = list(delivery.sound), delivery.liars, delivery.metrics
    updates = delivery.sound
    if 0 < len(updates) < options.min_updates:
        record.notes.append(
            f"{len(updates)} updates are fewer than min_updates = {options.min_updates}, so "
            "they are not used"
        )
        record.delivered.clear()
        updates, round.used = {}, {}
    contents = {client: message.content for client, message in updates.items()}
    record.notes += share_layers(
        contents, record.chosen_by_layer, round.model.weights, checks.metrics.weights(contents)
    )
    arrays, metrics, problem = aggregate(base, round.number, list(updates.values()), round.model)
    if problem is not None:
        record.notes.append(problem)
        round.sound, round.used = [], {}  # one of these is to blame, so all of them step back
    if arrays is None:
        record.notes.append("no new model came out of this round: the last one is kept")
    return arrays, metrics


def stop_after_empty_rounds(history: Sequence[RoundRecord], most: int) -> None:
    """Raise `EmptyRoundsError` if this was the last of too many in a row without an update."""
    last = history[-most:]
    if len(last) < most or any(record.delivered for record in last):
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
