"""Full updates: what is let through to the base strategy, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from pncs_flower.layers import ALL_LAYERS, choose_vectors
from pncs_flower.messages.arrays import read_array
from pncs_flower.messages.records import make_record, of_kind
from pncs_flower.plain_text import shortened
from pncs_flower.protocol import SUMMARY, WHOLE, SummaryRequest
from pncs_flower.sketches.kinds import parse_sketch

from ..base_strategy import unwrap
from ..errors import SelectionError
from ..grids.exchange import sort_replies
from ..options import SelectionOptions
from ..record import RoundRecord
from ..rule import Metrics, Summary
from .arrays import CheckedRecords, read_doubles
from .metrics import ReplyMetrics, numbers
from .model import Model, OtherUpdateError
from .vectors import local_update

# What recomputing a sketch may differ by, relative to its norm: another machine rounds otherwise.
_TOLERANCE = 1e-2
# Clients whose updates have another form than the model: one alone may be at fault itself.
_ENOUGH = 2


class UntruthfulSketchError(ValueError):
    """A client's sketch is not that of the update that it delivered."""


@dataclass(frozen=True)
class SketchCheck:
    """Compares updates with the sketches that their clients sent before they were chosen."""

    request: SummaryRequest
    summaries: Mapping[str, Summary]
    sketches: Mapping[str, np.ndarray]  # of the whole update, where one is asked for besides
    seed: int
    round: int

    def check(self, client: str, weights: ArrayRecord, content: RecordDict) -> None:
        """Raise `UntruthfulSketchError` if a client's sketch is not that of its update."""
        if client not in self.summaries:
            return
        (arrays,) = of_kind(content, ArrayRecord).values()
        sent: dict[str, Summary] = {SUMMARY: self.summaries[client]}
        if self.request.besides:
            sent[WHOLE] = {ALL_LAYERS: self.sketches[client]}
        worst = 0.0  # relative difference of a sketch
        for record, part in self.request.parts.items():
            sketch = parse_sketch(part.sketch)
            for layer, names in choose_vectors(weights, part.layers, part.whole).items():
                before = {name: read_array(weights[name]) for name in names}
                update = local_update(before, arrays)
                expected = sketch.of(update, seed=self.seed, round=self.round, layer=layer)
                difference = float(np.linalg.norm(expected - sent[record][layer]))
                worst = max(worst, difference / (float(np.linalg.norm(expected)) or 1.0))
        if not worst <= _TOLERANCE:
            raise UntruthfulSketchError(
                f"its sketch is not that of its update (relative difference {worst:.2g}, at most "
                f"{_TOLERANCE:g} is allowed): left out for the rest of the run. (Where "
                "clients add noise to their sketches, SketchNoise, use verify_sketches=False.)"
            )


class UpdateChecks:
    """How an update is checked, and perhaps clipped to an L2 norm, before it is aggregated."""

    def __init__(
        self, base: Strategy, options: SelectionOptions, history: Sequence[RoundRecord]
    ) -> None:
        self.metrics = ReplyMetrics("training", base, options.max_weight)
        self._base, self._clip_norm, self._history = base, options.clip_norm, history
        self._other_forms: dict[str, str] = {}  # before there was an update of the model's form

    def sort_out(
        self,
        model: Model,
        sent: Mapping[str, Message],
        received: list[Message],
        record: RoundRecord,
        sketches: SketchCheck | None = None,
    ) -> tuple[dict[str, Message], dict[str, Metrics], dict[str, str]]:
        """Sort out the replies to the clients' training messages; the record takes who and why."""
        # Returned are the sound replies, the numbers that came with them, and, with the reason,
        # the clients whose sketch is not that of their update; each in the order of the clients.
        replies = sort_replies(sent.values(), received, "no reply in time")
        record.bytes_up["training"] = replies.bytes_up
        sound: dict[str, RecordDict] = {}
        unfit: dict[str, ValueError] = {}
        for client, message in sent.items():
            try:
                content = replies.content_of(message.metadata.dst_node_id)
                fitted = model.fit(content)
                if sketches is not None:  # of what the client made, in whatever precision
                    sketches.check(client, model.weights, content)
                arrays = dict.fromkeys(of_kind(content, ArrayRecord), fitted)
                content = make_record(CheckedRecords, {**content, **arrays})
                self.metrics.check(content)
                sound[client] = content
            except ValueError as error:
                unfit[client] = error
        odd = self.metrics.odd_weights(sound)
        for client, reason in (unfit | odd).items():
            record.rejected[client] = f"training: {shortened(str(reason))}"
            log(INFO, "Update of client %s is not used: %s", client, shortened(str(reason)))
        sound = {client: content for client, content in sound.items() if client not in odd}
        metrics = {client: numbers(content) for client, content in sound.items()}
        record.notes += self.metrics.unify(sound)
        record.delivered += sound
        for client, content in sound.items():
            if self._clip_norm is not None and _clip(content, model, self._clip_norm):
                record.notes.append(f"the update of client {client} was clipped")
        self._check_forms(unfit)
        first = {reply.metadata.reply_to_message_id: reply for reply in reversed(received)}
        messages = {client: first[sent[client].metadata.message_id] for client in sound}
        for client, content in sound.items():
            messages[client].content = content
        liars = {c: str(e) for c, e in unfit.items() if isinstance(e, UntruthfulSketchError)}
        return messages, metrics, liars

    def _check_forms(self, unfit: Mapping[str, ValueError]) -> None:
        """Tell early of a base strategy whose clients send something else than the model."""
        # Flower's own strategies all take models, so there it is the clients that are at fault.
        of_flower = all(type(each).__module__.startswith("flwr.") for each in unwrap(self._base))
        if of_flower or any(record.delivered for record in self._history):
            return
        self._other_forms |= {
            client: shortened(str(error))
            for client, error in unfit.items()
            if isinstance(error, OtherUpdateError)
        }
        reasons = set(self._other_forms.values())
        if len(self._other_forms) >= _ENOUGH and len(reasons) == 1:
            raise SelectionError(
                f"the updates of clients {', '.join(self._other_forms)} have not the form of the "
                f"model: {reasons.pop()}. If {type(self._base).__name__} takes something else from "
                "its clients than the model that it sends (control variates, compressed updates), "
                "it cannot be used with a selection strategy, which compares each update with the "
                "model. What fits into numbers can be sent beside the model, in the metrics"
            )


def _clip(content: RecordDict, model: Model, norm: float) -> bool:
    """Shorten an update, in place, to an L2 norm; tell whether it was longer."""
    (arrays,) = of_kind(content, ArrayRecord).values()
    floating = [name for name, (dtype, _) in model.forms.items() if dtype.kind == "f"]
    before = {name: read_doubles(model.weights[name]) for name in floating}
    with np.errstate(invalid="ignore"):
        changes = {name: read_doubles(arrays[name]) - before[name] for name in floating}
    # What is not finite is so in the model, and stays.
    changes = {n: np.where(np.isfinite(change), change, 0.0) for n, change in changes.items()}
    length = float(np.sqrt(sum(float((change**2).sum()) for change in changes.values())))
    if length <= norm:
        return False
    for name, change in changes.items():
        value = np.asarray(before[name] + change * (norm / length))
        arrays[name] = Array(value.astype(model.forms[name][0]))
    return True
