"""The base strategy's aggregation, and what it remembers of it where the result is of no use."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from ..base_strategy import named_base, unwrap
from .model import Model

__all__ = ["aggregate"]

# Where Flower's adaptive strategies keep the moments of past changes, and their own model.
_MOMENTS = ("m_t", "v_t", "momentum_vector")
_MEMORY = (*_MOMENTS, "current_arrays")


def aggregate(
    base: Strategy, number: int, messages: list[Message], model: Model
) -> tuple[ArrayRecord | None, MetricRecord | None, str | None]:
    """Have the base strategy aggregate sound updates: its model, its metrics, and what is wrong.

    Where no finite model comes of it, or the moments that an adaptive strategy keeps are finite no
    more, its memory is put back: it would give no other model in any later round either.
    """
    strategies = list(unwrap(base))
    if not messages and any(hasattr(s, "clipped_count_stddev") for s in strategies):
        return None, None, None  # adaptive clipping would divide by the number of updates
    memory = [
        (strategy, name, getattr(strategy, name))
        for strategy in strategies
        for name in _MEMORY
        if name in getattr(strategy, "__dict__", {})
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
        if all(
            _is_finite(getattr(strategy, name))
            for strategy, name, before in memory
            if name in _MOMENTS and _is_finite(before)
        ):
            return arrays, metrics, None
        problem = (
            f"the moments that {type(base).__name__} keeps are not finite in this precision, so "
            "its model is not used"
        )
    for strategy, name, before in memory:
        setattr(strategy, name, before)
    return None, metrics, problem


def _is_finite(value: Any) -> bool:
    return all(bool(np.isfinite(values).all()) for values in _floats(value))


def _floats(value: Any) -> Iterator[np.ndarray]:
    """Yield all arrays of floating point in what a strategy remembers."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _floats(entry)
    elif isinstance(value, Array):
        yield from _floats(value.numpy())
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "f":
        yield np.asarray(value)
