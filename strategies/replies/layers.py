"""A choice for each layer of its own, carried out through a base strategy that averages models."""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord
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
from .updates import Delivery

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
    delivery: Delivery,
    by_layer: Mapping[str, Sequence[str]],
    weights: ArrayRecord,
    weighted_by: str | None,
) -> list[str]:
    """Let each layer of all updates, in place, be the mean over the clients chosen for that layer.

    A client that was not chosen for a layer gets the mean of those that were, in place of its own
    values. The weighted mean over all clients that a base strategy takes is then that of the
    chosen, whatever it does afterwards (a server's momentum, say). Returned are notes on layers of
    which no chosen client delivered.
    """
    if not by_layer:
        return []
    arrays_of = choose_layers(weights, [*by_layer])
    contents = dict(zip(delivery.metrics, (m.content for m in delivery.messages), strict=True))
    notes = []
    for layer, chosen in by_layer.items():
        members = [client for client in contents if client in chosen]
        if not members:
            notes.append(f"no client chosen for layer {layer} delivered: all that did count")
            continue
        shares = np.ones(len(members))
        if weighted_by is not None:
            shares = np.array([delivery.metrics[c].get(weighted_by, 1.0) for c in members])
        shares /= shares.sum()
        for name in arrays_of[layer]:
            values = [
                read_array(next(iter(contents[client].array_records.values()))[name])
                for client in members
            ]
            mean = sum(
                share * value.astype(np.float64)
                for share, value in zip(shares, values, strict=True)
            )
            shared = Array(np.asarray(mean).astype(values[0].dtype))
            for client in contents.keys() - members:
                ((record_name, arrays),) = contents[client].array_records.items()
                contents[client][record_name] = ArrayRecord({**arrays, name: shared})
    return notes
