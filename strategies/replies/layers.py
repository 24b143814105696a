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
    """Refuse a base strategy that takes no weighted mean, or adds noise for a number of clients.

    Raises
    ------
    ValueError
        If it is one of Flower's robust or fair strategies, or of its differential-privacy wrappers,
        which must know beforehand how many clients will train.
    """
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
    """Let each layer of all updates be the mean over the clients chosen for that layer.

    A client that was not chosen for a layer gets the mean of those that were, in place of its own
    values. The weighted mean over all clients that a base strategy takes is then that of the
    chosen, whatever it does afterwards (a server's momentum, say).

    Parameters
    ----------
    delivery : Delivery
        The updates to aggregate; changed in place.
    by_layer : mapping of str to sequence of str
        The clients chosen for each layer. Other layers are left as they are.
    weights : ArrayRecord
        The model that the clients were sent: it tells which arrays a layer has.
    weighted_by : str or None
        Name of the metric that the base strategy weighs updates by; equal weights if None.

    Returns
    -------
    list of str
        Notes: layers of which no chosen client delivered, so that all that delivered count.
    """
    if not by_layer:
        return []
    arrays_of = choose_layers(weights, [*by_layer])
    notes = []
    for layer, chosen in by_layer.items():
        members = [client in chosen for client in delivery.metrics]
        if not any(members):
            notes.append(f"no client chosen for layer {layer} delivered: all that did count")
            continue
        shares = np.array(
            [
                metrics.get(weighted_by, 1.0) if weighted_by is not None else 1.0
                for metrics, member in zip(delivery.metrics.values(), members, strict=True)
                if member
            ]
        )
        shares /= shares.sum()
        replies = list(zip(delivery.messages, members, strict=True))
        for name in arrays_of[layer]:
            values = [
                read_array(next(iter(reply.content.array_records.values()))[name])
                for reply, member in replies
                if member
            ]
            mean = sum(
                share * value.astype(np.float64)
                for share, value in zip(shares, values, strict=True)
            )
            shared = Array(np.asarray(mean).astype(values[0].dtype))
            for reply, member in replies:
                if not member:
                    (record_name, arrays), *_ = reply.content.array_records.items()
                    reply.content[record_name] = ArrayRecord({**arrays, name: shared})
    return notes
