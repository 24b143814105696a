"""Full updates: what is let through to the base strategy, and in which order."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from pncs_flower.layers import choose_layers
from pncs_flower.protocol import SummaryRequest
from pncs_flower.sketches import parse_sketch

from .base import unwrap
from .decoding import check_update, read_array
from .exchange import sort_replies
from .history import RoundRecord
from .rule import Metrics, Summary

__all__ = ["Delivery", "SketchCheck", "UntruthfulSketchError", "UpdateChecks", "sketch_mismatch"]

# What recomputing a sketch may differ by, relative to its norm: another machine rounds otherwise.
_TOLERANCE = 1e-2


class UntruthfulSketchError(ValueError):
    """A client's sketch is not that of the update that it delivered."""


@dataclass(frozen=True)
class Delivery:
    """What came of a round's training.

    Attributes
    ----------
    messages : list of Message
        The replies that can be aggregated, sorted by client.
    metrics : dict of str to mapping of str to float
        The numbers that came with each, by client.
    liars : dict of str to str
        Clients whose sketch is not that of their update, with the reason.
    """

    messages: list[Message]
    metrics: dict[str, Metrics]
    liars: dict[str, str]


@dataclass(frozen=True)
class UpdateChecks:
    """How an update is checked, and perhaps clipped, before it is aggregated.

    Attributes
    ----------
    weights : ArrayRecord
        The model that the clients were sent.
    weighted_by : str or None
        Name of the metric that the base strategy weighs updates by.
    max_weight : float
        The most that it may be.
    clip_norm : float or None
        Updates (weights after minus weights before) are scaled down to this L2 norm.
    """

    weights: ArrayRecord
    weighted_by: str | None
    max_weight: float
    clip_norm: float | None

    @classmethod
    def for_base(
        cls, base: Strategy, weights: ArrayRecord, max_weight: float, clip_norm: float | None
    ) -> "UpdateChecks":
        """Return the checks for what a base strategy is going to aggregate."""
        keys = (getattr(strategy, "weighted_by_key", None) for strategy in unwrap(base))
        weighted_by = next((key for key in keys if isinstance(key, str)), None)
        return cls(weights, weighted_by, max_weight, clip_norm)

    def sort_out(
        self,
        sent: Mapping[str, Message],
        received: list[Message],
        record: RoundRecord,
        sketches: "SketchCheck | None" = None,
    ) -> Delivery:
        """Sort out the replies to the training messages.

        Parameters
        ----------
        sent : mapping of str to Message
            The training message of each chosen client, in the order of clients.
        received : list of Message
            All replies.
        record : RoundRecord
            Takes who delivered, who was rejected and why, and the bytes received.
        sketches : SketchCheck, optional (default: None)
            What the clients sent in the pre-round, if it is to be compared.

        Returns
        -------
        Delivery
            What can be aggregated.
        """
        replies = sort_replies(sent.values(), received, "no reply in time")
        record.bytes_up["training"] = replies.bytes_up
        delivery = Delivery([], {}, {})
        contents = {c: replies.contents.get(m.metadata.dst_node_id) for c, m in sent.items()}
        usual = _usual_layout([content for content in contents.values() if content is not None])
        for client, message in sent.items():
            content = contents[client]
            try:
                if content is None:
                    raise ValueError(replies.failures[message.metadata.dst_node_id])
                self._check(content)
                if _layout(content) != usual:
                    raise ValueError(f"its records are {_layout(content)}, those of most {usual}")
                if sketches is not None:
                    sketches.check(client, self.weights, content)
            except ValueError as error:
                record.rejected[client] = f"training: {error}"
                log(INFO, "Update of client %s is not used: %s", client, error)
                if isinstance(error, UntruthfulSketchError):
                    delivery.liars[client] = str(error)
                continue
            record.delivered.append(client)
            delivery.metrics[client] = _numbers(content)
            delivery.messages.append(
                next(
                    reply
                    for reply in received
                    if reply.metadata.reply_to_message_id == message.metadata.message_id
                )
            )
            if self.clip_norm is not None and self._clip(content, self.clip_norm):
                record.notes.append(f"the update of client {client} was clipped")
        return delivery

    def _check(self, content: RecordDict) -> None:
        check_update(content, self.weights)
        if self.weighted_by is None:
            return
        weight = _numbers(content).get(self.weighted_by)
        if weight is None:
            raise ValueError(f"its metrics lack {self.weighted_by!r}, the weight of an update")
        if not 0 < weight <= self.max_weight:
            raise ValueError(
                f"{self.weighted_by} is {weight:g}, but must be above 0 and at most "
                f"{self.max_weight:g}"
            )

    def _clip(self, content: RecordDict, norm: float) -> bool:
        (name, arrays), *_ = content.array_records.items()
        changes = {
            key: read_array(array).astype(np.float64) - read_array(self.weights[key])
            for key, array in arrays.items()
            if array.dtype.startswith("float")
        }
        length = float(np.sqrt(sum(float((change**2).sum()) for change in changes.values())))
        if length <= norm:
            return False
        clipped = dict(arrays)
        for key, change in changes.items():
            value = read_array(self.weights[key]) + change * (norm / length)
            clipped[key] = Array(value.astype(arrays[key].dtype))
        content[name] = ArrayRecord(clipped)
        return True


@dataclass(frozen=True)
class SketchCheck:
    """Compares updates with the sketches that their clients sent before they were chosen.

    Attributes
    ----------
    request : SummaryRequest
        What was asked for: a sketch of the local update.
    summaries : mapping of str to Summary
        What was answered, by client.
    seed : int
        The strategy's seed.
    round : int
        The round.
    """

    request: SummaryRequest
    summaries: Mapping[str, Summary]
    seed: int
    round: int

    def check(self, client: str, weights: ArrayRecord, content: RecordDict) -> None:
        """Raise `UntruthfulSketchError` if a client's sketch is not that of its update."""
        if client not in self.summaries:
            return
        (arrays,) = content.array_records.values()
        worst = sketch_mismatch(
            self.request, self.summaries[client], weights, arrays, self.seed, self.round
        )
        if not worst <= _TOLERANCE:
            raise UntruthfulSketchError(
                f"its sketch is not that of its update (relative difference {worst:.2g}, at most "
                f"{_TOLERANCE:g} is allowed): left out for the rest of the run"
            )


def sketch_mismatch(
    request: SummaryRequest,
    summary: Summary,
    before: ArrayRecord,
    after: ArrayRecord,
    seed: int,
    round: int,
) -> float:
    """Return how far a summary is from that of an update, relative to the latter; the worst layer.

    A sketch is a function of the update, the seed and the round, in every wire format, so for an
    honest client only rounding is left.
    """
    sketch = parse_sketch(request.sketch)
    worst = 0.0
    layers = choose_layers({name: a.dtype for name, a in before.items()}, request.layers)
    for layer, names in layers.items():
        update = np.concatenate(
            [(read_array(before[name]) - read_array(after[name])).ravel() for name in names]
        )
        wire = sketch.encode(update, seed=seed, round=round, layer=layer)
        expected = sketch.decode(wire, len(update)).astype(np.float64)
        scale = float(np.linalg.norm(expected))
        difference = float(np.linalg.norm(expected - summary[layer]))
        worst = max(worst, difference / scale if scale > 0 else difference)
    return worst


def _layout(content: RecordDict) -> tuple[object, ...]:
    """Return the names in a reply, and how long its lists of metrics are."""
    metrics = (
        (record, name, len(value) if isinstance(value, list) else "number")
        for record, entries in content.metric_records.items()
        for name, value in entries.items()
    )
    return (*sorted(content.array_records), *sorted(metrics, key=str))


def _usual_layout(contents: list[RecordDict]) -> tuple[object, ...]:
    """Return the layout of most replies, of the first client's where there is no majority.

    A base strategy refuses to aggregate replies that differ, so one odd client would end the run.
    """
    counts = Counter(_layout(content) for content in contents)
    return max(counts, key=lambda layout: counts[layout], default=())


def _numbers(content: RecordDict) -> Metrics:
    """Return all single numbers among a reply's metrics."""
    return {
        name: float(value)
        for metrics in content.metric_records.values()
        for name, value in metrics.items()
        if not isinstance(value, list)
    }
