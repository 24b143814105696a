"""A choice for each layer of its own, carried out through a base strategy that averages models."""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from pncs_flower.layers import choose_layers

from ..base_strategy import unwrap
from .arrays import read_array

__all__ = ["check_averages", "share_layers"]

_NO_MEAN = (Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum, QFedAvg)


def check_averages(base: Strategy) -> None:
    """Refuse a base strategy that takes no weighted mean, or adds noise for a number of clients."""
    for strategy in unwrap(base):
        if isinstance(strategy, _NO_MEAN):
            raise ValueError(
                f"per_layer is True, but {type(strategy).__name__} takes no weighted mean, and a "
                "layer's value of a client that was not chosen for it is the mean of those that "
                "were: use FedAvg or a strategy built on it, or per_layer=False"
            )
        if hasattr(strategy, "num_sampled_clients"):
            raise ValueError(
                f"per_layer is True, but {type(strategy).__name__} adds noise for "
                "num_sampled_clients clients, and how many train differs from round to round: use "
                "per_layer=False"
            )


def share_layers(
    updates: Mapping[str, RecordDict],
    by_layer: Mapping[str, Sequence[str]],
    model: ArrayRecord,
    weight_of: Mapping[str, float],
) -> list[str]:
    """Let each layer of all updates, in place, be the mean over the clients chosen for that layer.

    The weighted mean over all clients that a base strategy takes is then that of the chosen,
    whatever it does afterwards. Returned are notes on layers of which no chosen client delivered.
    """
    if not by_layer:
        return []
    arrays_of = choose_layers(model, [*by_layer])
    notes = []
    for layer, chosen in by_layer.items():
        members = [client for client in updates if client in chosen]
        if not members:
            notes.append(f"no client chosen for layer {layer} delivered: all that did count")
            continue
        shares = np.array([weight_of[client] for client in members])
        shares /= shares.sum()
        for name in arrays_of[layer]:
            values = [read_array(_arrays(updates[client])[name]) for client in members]
            mean = sum(
                share * value.astype(np.float64)
                for share, value in zip(shares, values, strict=True)
            )
            shared = Array(np.asarray(mean).astype(values[0].dtype))
            for client in updates.keys() - members:
                _arrays(updates[client])[name] = shared
    return notes


def _arrays(update: RecordDict) -> ArrayRecord:
    (arrays,) = update.array_records.values()
    return arrays
