"""Turns what strategies remember into JSON and arrays, and back; nothing is ever pickled."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

__all__ = ["StrategyState", "decode", "encode"]

Arrays = dict[str, np.ndarray]

_RECORDS = {
    "array-record": ArrayRecord,
    "config-record": ConfigRecord,
    "metric-record": MetricRecord,
}


def encode(value: Any, arrays: Arrays) -> Any:
    """Return a value as JSON, with its arrays moved to a dictionary.

    Parameters
    ----------
    value : object
        None, bool, int, float, str, bytes, a NumPy array or scalar, a Flower record, or a list,
        tuple or mapping of these.
    arrays : dict of str to np.ndarray
        Takes the arrays, under names that the JSON refers to.

    Raises
    ------
    TypeError
        If there is anything else in it.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return {"scalar": encode(np.asarray(value), arrays)}
    if isinstance(value, bytes):
        return {"bytes": encode(np.frombuffer(value, np.uint8), arrays)}
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("a masked array would lose its mask in a checkpoint")
        if value.dtype.hasobject:
            raise TypeError("an array of objects cannot be written without pickle")
        name = f"array-{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Array):
        fields = [value.dtype, list(value.shape), value.stype, value.data]
        return {"flower-array": [encode(field, arrays) for field in fields]}
    for kind, record in _RECORDS.items():
        if isinstance(value, record):
            return {kind: [[key, encode(entry, arrays)] for key, entry in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [encode(entry, arrays) for entry in value]}
    if isinstance(value, Mapping):
        return {"mapping": [_encode_entry(key, entry, arrays) for key, entry in value.items()]}
    raise TypeError(
        f"a {type(value).__name__} cannot be written to a checkpoint: use None, numbers, text, "
        "bytes, NumPy arrays, and lists, tuples and mappings of these"
    )


def _encode_entry(key: Any, value: Any, arrays: Arrays) -> list[Any]:
    try:
        return [encode(key, arrays), encode(value, arrays)]
    except TypeError as error:
        raise TypeError(f"{key}: {error}") from None


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return what `encode` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return decode(content, arrays)[()]
    if kind == "bytes":
        return decode(content, arrays).tobytes()
    if kind == "flower-array":
        dtype, shape, stype, data = (decode(field, arrays) for field in content)
        return Array(dtype, tuple(decode(shape, arrays)), stype, data)
    if kind in _RECORDS:
        return _RECORDS[kind]({key: decode(entry, arrays) for key, entry in content})
    if kind in ("list", "tuple"):
        entries = [decode(entry, arrays) for entry in content]
        return entries if kind == "list" else tuple(entries)
    if kind == "mapping":
        return {decode(k, arrays): decode(v, arrays) for k, v in content}
    raise ValueError(f"unknown kind of value {kind!r} in a checkpoint")


class StrategyState:
    """What a base strategy has come to remember since it was made, such as FedAdam's moments.

    Flower has no interface for it, so the attributes that have changed are taken to be the state;
    the others are settings, and stay those of the strategy that the caller made.

    Parameters
    ----------
    strategy : Strategy
        A strategy as it was made, before its first round.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._inner = {
            name: StrategyState(value)
            for name, value in vars(strategy).items()
            if isinstance(value, Strategy)
        }
        self._initial = {name: _fingerprint(value) for name, value in vars(strategy).items()}

    def changed(self) -> dict[str, Any]:
        """Return the attributes that have changed, also of wrapped strategies."""
        state: dict[str, Any] = {}
        for name, value in vars(self._strategy).items():
            if name in self._inner:
                state[name] = self._inner[name].changed()
            elif (now := _fingerprint(value)) is not None and now != self._initial.get(name):
                state[name] = value
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the attributes that `changed` returned."""
        for name, value in state.items():
            if name in self._inner:
                self._inner[name].restore(value)
            else:
                setattr(self._strategy, name, value)


def _fingerprint(value: Any) -> str | None:
    """Return a text that tells values apart, or None for what a checkpoint cannot hold."""
    arrays: Arrays = {}
    try:
        text = repr(encode(value, arrays))
    except TypeError:
        return None
    return text + "".join(f"{a.dtype}{a.shape}{hash(a.tobytes())}" for a in arrays.values())
