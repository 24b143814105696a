"""What is handed to the base strategy, and what it remembers where the result is of no use."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from pncs_flower.layers import choose_layers
from pncs_flower.messages.records import of_kind

from ..base_strategy import named_base, unwrap, unwrap_all
from .arrays import read_doubles
from .model import Model

# Where Flower's adaptive strategies keep the moments of past changes, and their own model.
_MOMENTS = ("m_t", "v_t", "momentum_vector")
_MEMORY = (*_MOMENTS, "current_arrays")
# By name: Flower's older interface has its own of each, and not every release has all.
_NO_MEAN = frozenset(
    {
        *("Bulyan", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"),
        *("QFedAvg", "FedXgbBagging", "FedXgbCyclic"),
    }
)


def check_averages(base: Strategy, option: str, otherwise: str) -> None:
    """Refuse a base strategy that counts on independent updates: no mean, or noise for so many."""
    for strategy in unwrap_all(base):
        if not _NO_MEAN.isdisjoint(kind.__name__ for kind in type(strategy).__mro__):
            raise ValueError(
                f"{option}, but {type(strategy).__name__} takes no weighted mean, and is to be "
                "given updates that are not the clients' own, of which only the mean is right: use "
                f"FedAvg or a strategy built on it, or {otherwise}"
            )
        if hasattr(strategy, "num_sampled_clients"):
            raise ValueError(
                f"{option}, but {type(strategy).__name__} adds noise for num_sampled_clients "
                "updates, each of which tells of one client alone, and here it is given others: "
                f"use {otherwise}"
            )


def share_layers(
    updates: Mapping[str, RecordDict],
    by_layer: Mapping[str, Sequence[str]],
    model: ArrayRecord,
    weight_of: Mapping[str, float],
) -> list[str]:
    """Let each layer of all updates, in place, be the mean over the clients chosen for it."""
    # The weighted mean over all clients that a base strategy takes is then that of the chosen,
    # whatever it does afterwards. Returned are notes on layers of which no chosen client
    # delivered.
    if not by_layer:
        return []
    notes, arrays_of = [], choose_layers(model, [*by_layer])
    sent = {client: next(iter(of_kind(c, ArrayRecord).values())) for client, c in updates.items()}
    for layer, chosen in by_layer.items():
        members = [client for client in updates if client in chosen]
        if not members:
            notes.append(f"no client chosen for layer {layer} delivered: all that did count")
            continue
        shares = np.array([weight_of[client] for client in members])
        shares /= shares.sum()
        for name in arrays_of[layer]:
            values = [read_doubles(sent[client][name]) for client in members]
            mean = sum(share * value for share, value in zip(shares, values, strict=True))
            shared = Array(np.asarray(mean).astype(sent[members[0]][name].dtype))
            for client in updates.keys() - members:
                sent[client][name] = shared
    return notes


def aggregate(
    base: Strategy, number: int, messages: list[Message], model: Model
) -> tuple[ArrayRecord | None, MetricRecord | None, str | None]:
    """Have the base strategy aggregate sound updates: its model, its metrics, and what is wrong."""
    # Where no finite model comes of it, or the moments that an adaptive strategy keeps are finite
    # no more, its memory is put back: it would give no other model in any later round either.
    strategies = list(unwrap(base))
    if not messages and any(hasattr(s, "clipped_count_stddev") for s in strategies):
        return None, None, None  # adaptive clipping would divide by the number of updates
    memory = [
        (strategy, name, vars(strategy)[name])
        for strategy in strategies
        for name in _MEMORY
        if name in vars(strategy)
    ]
    with named_base("aggregate_train", base, number):
        arrays, metrics = base.aggregate_train(number, messages)
    if arrays is None:
        return None, metrics, None
    try:
        arrays = model.like(arrays)
    except ValueError:
        problem = "the aggregated model is not finite, so it is not used"
    else:
        moments = [kept for kept in memory if kept[1] in _MOMENTS and _is_finite(kept[2])]
        if all(_is_finite(getattr(strategy, name)) for strategy, name, _ in moments):
            return arrays, metrics, None
        problem = (
            f"the moments that {type(base).__name__} keeps are not finite in this precision, so "
            "its model is not used"
        )
    for strategy, name, before in memory:
        setattr(strategy, name, before)
    return None, metrics, problem


def _is_finite(moments: Any) -> bool:
    """Tell whether arrays, by name or in a list, hold finite values alone."""
    arrays = moments.values() if isinstance(moments, Mapping) else moments
    return not isinstance(arrays, Iterable) or all(
        bool(np.isfinite(values).all())
        for values in arrays
        if isinstance(values, np.ndarray) and values.dtype.kind == "f"
    )
