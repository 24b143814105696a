"""Full updates: what is let through to the base strategy, and in which order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from pncs_flower.layers import choose_layers, local_change
from pncs_flower.protocol import SummaryRequest
from pncs_flower.sketches import parse_sketch

from ..grids.exchange import shortened, sort_replies
from ..record import RoundRecord
from ..rule import Metrics, Summary
from .arrays import check_update, read_array
from .metrics import CommonMetrics, Required, numbers
from .model import Model, OtherUpdateError
from .trees import check_trees, joins_trees

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
    others : dict of str to str
        Clients whose update has not the form of the model, with the reason.
    """

    messages: list[Message]
    metrics: dict[str, Metrics]
    liars: dict[str, str]
    others: dict[str, str] = field(default_factory=dict)


@dataclass
class UpdateChecks:
    """How an update is checked, and perhaps clipped, before it is aggregated.

    Attributes
    ----------
    model : Model
        The model that the clients were sent.
    required : Required
        The metrics that the base strategy lives on.
    common : CommonMetrics
        Makes the replies alike in all others.
    clip_norm : float or None
        Updates (weights after minus weights before) are scaled down to this L2 norm.
    trees : bool
        Whether the model is a tree ensemble that the base strategy joins.
    """

    model: Model
    required: Required
    common: CommonMetrics
    clip_norm: float | None
    trees: bool = False

    @classmethod
    def for_base(
        cls,
        base: Strategy,
        model: Model,
        common: CommonMetrics,
        max_weight: float,
        clip_norm: float | None,
    ) -> "UpdateChecks":
        """Return the checks for what a base strategy is going to aggregate."""
        required = Required.by(base, max_weight)
        return cls(model, required, common, clip_norm, joins_trees(base))

    @property
    def weighted_by(self) -> str | None:
        """Name of the metric that the base strategy weighs updates by."""
        return self.required.weighted_by

    @property
    def weights(self) -> ArrayRecord:
        """The model's arrays."""
        return self.model.weights

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
        sound: dict[str, RecordDict] = {}
        for client, message in sent.items():
            try:
                node_id = message.metadata.dst_node_id
                if node_id in replies.failures:
                    raise ValueError(replies.failures[node_id])
                self._check(client, replies.contents[node_id], sketches)
            except ValueError as error:
                _reject(client, str(error), record)
                if isinstance(error, UntruthfulSketchError):
                    delivery.liars[client] = str(error)
                if isinstance(error, OtherUpdateError) and replies.contents[node_id].array_records:
                    delivery.others[client] = shortened(str(error))
            else:
                sound[client] = replies.contents[node_id]
        for client, reason in self.required.odd_weights(sound).items():
            _reject(client, reason, record)
            del sound[client]
        delivery.metrics.update({client: numbers(content) for client, content in sound.items()})
        record.notes += self.common.unify(sound, self.weighted_by)
        for client, content in sound.items():
            record.delivered.append(client)
            message_id = sent[client].metadata.message_id
            delivery.messages.append(
                next(r for r in received if r.metadata.reply_to_message_id == message_id)
            )
            if self.clip_norm is not None and self._clip(content, self.clip_norm):
                record.notes.append(f"the update of client {client} was clipped")
        return delivery

    def _check(self, client: str, content: RecordDict, sketches: "SketchCheck | None") -> None:
        others = check_update(content, self.model)
        if self.trees:
            (arrays,) = content.array_records.values()
            for array in arrays.values():
                check_trees(read_array(array).tobytes())
        if sketches is not None:  # of what the client made, in whatever precision
            sketches.check(client, self.weights, content)
        self._convert(content, others)
        self.required.check(content)

    def _convert(self, content: RecordDict, others: Mapping[str, np.ndarray]) -> None:
        """Give an update the model's precision, which would else take on its, and its order.

        Some of Flower's strategies go by the places of arrays, not by their names.
        """
        ((name, arrays),) = content.array_records.items()
        if others or list(arrays) != list(self.weights):
            content[name] = ArrayRecord(
                {
                    key: Array(np.asarray(others[key])) if key in others else arrays[key]
                    for key in self.weights
                }
            )

    def _clip(self, content: RecordDict, norm: float) -> bool:
        (name, arrays), *_ = content.array_records.items()
        with np.errstate(invalid="ignore"):
            changes = {
                key: np.asarray(_double(array) - _double(self.weights[key]))
                for key, array in arrays.items()
                if self.model.dtypes[key].kind == "f"
            }
        for change in changes.values():
            change[~np.isfinite(change)] = 0  # what is not finite is so in the model, and stays
        length = float(np.sqrt(sum(float((change**2).sum()) for change in changes.values())))
        if length <= norm:
            return False
        clipped = dict(arrays)
        for key, change in changes.items():
            value = np.asarray(_double(self.weights[key]) + change * (norm / length))
            clipped[key] = Array(value.astype(self.model.dtypes[key]))
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
                f"{_TOLERANCE:g} is allowed): left out for the rest of the run. (With "
                "verify_sketches, clients must not add noise to their sketches: SketchNoise.)"
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
    layers = choose_layers(before, request.layers)
    for layer, names in layers.items():
        update = np.concatenate(
            [
                local_change(read_array(before[name]), read_array(after[name])).ravel()
                for name in names
            ]
        )
        wire = sketch.encode(update, seed=seed, round=round, layer=layer)
        expected = sketch.decode(wire, len(update)).astype(np.float64)
        scale = float(np.linalg.norm(expected))
        difference = float(np.linalg.norm(expected - summary[layer]))
        worst = max(worst, difference / scale if scale > 0 else difference)
    return worst


def _double(array: Array) -> np.ndarray:
    return read_array(array).astype(np.float64)


def _reject(client: str, reason: str, record: RoundRecord) -> None:
    reason = shortened(reason)
    record.rejected[client] = f"training: {reason}"
    log(INFO, "Update of client %s is not used: %s", client, reason)
