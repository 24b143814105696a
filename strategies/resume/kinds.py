"""The kinds of values that a checkpoint holds, and how each is written and read."""

import logging
import random
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..errors import UnsavableError
from . import numpy_kinds
from .object_kinds import (
    fill_object,
    get_factory,
    new_object,
    object_kind,
    put_enum,
    put_factory,
    put_object,
    read_enum,
    read_fixed,
)
from .torch_kinds import get_tensor, get_torch_generator, torch_kind

if TYPE_CHECKING:
    from .snapshot import Decoder, Encoder

__all__ = ["BLANKS", "CHANGING", "FILLERS", "GETTERS", "Arrays", "describe", "is_setting"]

Arrays = dict[str, np.ndarray]
Put = Callable[["Encoder", Any, str], Any]
Get = Callable[["Decoder", Any], Any]

CHANGING = {
    *("array", "flower-array", "torch", "torch-generator"),
    *("generator", "bit-generator", "random-state", "random"),
    *("datetime", "date", "path", "uuid"),
}
"""Kinds that may differ from start to start: they are saved in any case, and never compared."""

_SETTINGS = (
    *(FunctionType, type, ModuleType, logging.Logger, np.ufunc, re.Pattern, random.SystemRandom),
    *(type(threading.Lock()), type(threading.RLock()), threading.Thread),
)
_PATHS = (type(Path()), PurePosixPath, PureWindowsPath)
_WITH_ATTRIBUTES = (OrderedDict, Counter, partial)  # which they may have, as a state_dict has
_LARGE = 256


def is_setting(value: Any) -> bool:
    """Tell whether a value is what a strategy is made with, and remembers nothing itself."""
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return isinstance(value, _SETTINGS)


def describe(value: Any, path: str) -> tuple[str, Put]:
    """Return the kind of a value, and how it is written.

    Raises
    ------
    UnsavableError
        If there is none.
    """
    found = _PUTTERS.get(type(value)) or torch_kind(value, path)
    if found and not (type(value) in _WITH_ATTRIBUTES and vars(value)):
        return found
    if isinstance(value, np.generic):
        return "scalar", numpy_kinds.put_scalar
    if isinstance(value, np.random.BitGenerator):
        return "bit-generator", numpy_kinds.put_bit_generator
    if is_setting(value):
        raise UnsavableError(
            f"{path} is the {type(value).__name__} {getattr(value, '__qualname__', value)!r}, "
            "which was not there when the run started: make it part of the strategy before that"
        )
    enum = put_enum(value)
    return ("enum", enum) if enum else (object_kind(value), put_object)


# --- what holds others ------------------------------------------------------------------------


def _put_items(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    return [encoder.encode(entry, f"{path}[{place}]") for place, entry in enumerate(value)]


def _put_members(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    return [encoder.encode(entry, f"{path}[{entry!r}]") for entry in value]


def _put_entries(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    return [
        [encoder.encode(key, f"{path}[{key!r}]"), encoder.encode(entry, f"{path}[{key!r}]")]
        for key, entry in value.items()
    ]


def _put_deque(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    return [value.maxlen, _put_items(encoder, value, path)]


def _put_defaults(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    return [put_factory(encoder, value, path), _put_entries(encoder, value, path)]


def _blank_defaults(decoder: "Decoder", content: Any) -> Any:
    return defaultdict(get_factory(decoder, content[0]))


def _fill_list(decoder: "Decoder", value: Any, content: Any) -> None:
    value.extend(decoder.decode(node) for node in content)


def _fill_set(decoder: "Decoder", value: Any, content: Any) -> None:
    value.update([decoder.decode(node) for node in content])


def _fill_entries(decoder: "Decoder", value: Any, content: Any) -> None:
    for key, entry in content:
        name = decoder.decode(key)
        value[name] = decoder.decode(entry)


def _put_method(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    return [
        encoder.encode(value.__func__, f"{path}.__func__"),
        encoder.encode(value.__self__, f"{path}.__self__"),
    ]


def _get_method(decoder: "Decoder", content: Any) -> Any:
    function, owner = (decoder.decode(node) for node in content)
    if not isinstance(function, FunctionType):
        raise ValueError(f"{function!r} in a checkpoint is no function")
    return MethodType(function, owner)


def _put_partial(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    parts = (value.func, value.args, value.keywords)
    return [
        encoder.encode(part, f"{path}.{name}")
        for part, name in zip(parts, ("func", "args", "keywords"), strict=True)
    ]


def _get_partial(decoder: "Decoder", content: Any) -> Any:
    function, positional, keywords = (decoder.decode(node) for node in content)
    return partial(function, *positional, **keywords)


# --- what is a value itself -------------------------------------------------------------------


def _put_bytes(encoder: "Encoder", value: Any, path: str) -> Any:
    if len(value) <= _LARGE:
        return value.hex()
    values = np.frombuffer(bytes(value), np.uint8)
    return [encoder.array(values, values, path)]


def _get_bytes(decoder: "Decoder", content: Any) -> bytes:
    return (
        bytes.fromhex(content) if isinstance(content, str) else decoder.arrays[content[0]].tobytes()
    )


def _as_text(encoder: "Encoder", value: Any, path: str) -> str:
    return str(value)


def _put_time(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone:
        raise UnsavableError(f"{path} has the time zone {zone!r}: use UTC")
    return [
        value.replace(tzinfo=None).isoformat(),
        value.fold,
        encoder.encode(value.utcoffset(), path),
    ]


def _get_time(decoder: "Decoder", content: Any) -> datetime:
    offset = decoder.decode(content[2])
    zone = None if offset is None else timezone(offset)
    return datetime.fromisoformat(content[0]).replace(fold=content[1], tzinfo=zone)


def _put_random(encoder: "Encoder", value: Any, path: str) -> Any:
    return encoder.encode(value.getstate(), path)


def _get_random(decoder: "Decoder", content: Any) -> random.Random:
    generator = random.Random()
    generator.setstate(decoder.decode(content))
    return generator


def _put_flower_array(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    fields = (value.dtype, tuple(value.shape), value.stype, value.data)
    return [encoder.encode(field, path) for field in fields]


def _get_flower_array(decoder: "Decoder", content: Any) -> Array:
    return Array(*(decoder.decode(node) for node in content))


def _record(kind: Any) -> Get:
    def get(decoder: "Decoder", content: Any) -> Any:
        return kind({decoder.decode(key): decoder.decode(entry) for key, entry in content})

    return get


_RECORDS = {
    "array-record": ArrayRecord,
    "config-record": ConfigRecord,
    "metric-record": MetricRecord,
    "record-dict": RecordDict,
}

_PUTTERS: dict[type, tuple[str, Put]] = {
    list: ("list", _put_items),
    dict: ("dict", _put_entries),
    OrderedDict: ("ordered-dict", _put_entries),
    Counter: ("counter", _put_entries),
    defaultdict: ("default-dict", _put_defaults),
    deque: ("deque", _put_deque),
    set: ("set", _put_members),
    frozenset: ("frozenset", _put_members),
    tuple: ("tuple", _put_items),
    bytes: ("bytes", _put_bytes),
    bytearray: ("bytearray", _put_bytes),
    complex: ("complex", lambda encoder, value, path: [value.real, value.imag]),
    range: (
        "range",
        lambda e, value, path: [hex(n) for n in (value.start, value.stop, value.step)],
    ),
    Decimal: ("decimal", _as_text),
    Fraction: ("fraction", _as_text),
    UUID: ("uuid", _as_text),
    date: ("date", _as_text),
    datetime: ("datetime", _put_time),
    timedelta: (
        "timedelta",
        lambda e, value, path: [value.days, value.seconds, value.microseconds],
    ),
    **{
        kind: ("path", lambda encoder, value, path: [type(value).__name__, str(value)])
        for kind in _PATHS
    },
    MethodType: ("method", _put_method),
    partial: ("partial", _put_partial),
    random.Random: ("random", _put_random),
    np.ndarray: ("array", numpy_kinds.put_array),
    np.random.Generator: ("generator", numpy_kinds.put_generator),
    np.random.RandomState: ("random-state", numpy_kinds.put_random_state),
    Array: ("flower-array", _put_flower_array),
    **{kind: (name, _put_entries) for name, kind in _RECORDS.items()},
}

BLANKS: dict[str, Get] = {
    "list": lambda decoder, content: [],
    "dict": lambda decoder, content: {},
    "ordered-dict": lambda decoder, content: OrderedDict(),
    "counter": lambda decoder, content: Counter(),
    "default-dict": _blank_defaults,
    "deque": lambda decoder, content: deque(maxlen=content[0]),
    "set": lambda decoder, content: set(),
    "object": new_object,
}
"""Kinds that may contain themselves: how each is made empty, before what is in it is read."""

FILLERS: dict[str, Callable[["Decoder", Any, Any], None]] = {
    "list": _fill_list,
    "dict": _fill_entries,
    "ordered-dict": _fill_entries,
    "counter": _fill_entries,
    "default-dict": lambda decoder, value, content: _fill_entries(decoder, value, content[1]),
    "deque": lambda decoder, value, content: _fill_list(decoder, value, content[1]),
    "set": _fill_set,
    "object": fill_object,
}
"""How they are filled."""

GETTERS: dict[str, Get] = {
    "frozenset": lambda decoder, content: frozenset([decoder.decode(node) for node in content]),
    "tuple": lambda decoder, content: tuple([decoder.decode(node) for node in content]),
    "bytes": _get_bytes,
    "bytearray": lambda decoder, content: bytearray(_get_bytes(decoder, content)),
    "complex": lambda decoder, content: complex(*content),
    "range": lambda decoder, content: range(*(int(number, 16) for number in content)),
    "decimal": lambda decoder, content: Decimal(content),
    "fraction": lambda decoder, content: Fraction(content),
    "uuid": lambda decoder, content: UUID(content),
    "date": lambda decoder, content: date.fromisoformat(content),
    "datetime": _get_time,
    "timedelta": lambda decoder, content: timedelta(*content),
    "path": lambda d, content: {kind.__name__: kind for kind in _PATHS}[content[0]](content[1]),
    "enum": read_enum,
    "fixed-object": read_fixed,
    "method": _get_method,
    "partial": _get_partial,
    "random": _get_random,
    "array": numpy_kinds.get_array,
    "scalar": numpy_kinds.get_scalar,
    "generator": numpy_kinds.get_generator,
    "bit-generator": numpy_kinds.get_bit_generator,
    "random-state": numpy_kinds.get_random_state,
    "torch-generator": get_torch_generator,
    "torch": get_tensor,
    "flower-array": _get_flower_array,
    **{name: _record(kind) for name, kind in _RECORDS.items()},
}
"""How all others are read."""
