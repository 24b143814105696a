"""The kinds of values that a checkpoint holds: what each is made of, and how it is made of it."""

import logging
import random
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..errors import UnsavableError
from ..kept_arrays import KeptArray
from ..replies.arrays import CheckedArray
from . import objects
from .objects import Kind, Parts

CHANGING = {
    *("array", "tensor", "generator", "bit-generator", "random-state", "random"),
    *("datetime", "path"),
}
"""Kinds that may differ from start to start: they are saved in any case, and no settings."""

_SETTINGS = (
    *(FunctionType, type, ModuleType, logging.Logger, np.ufunc, re.Pattern),
    *(type(threading.Lock()), type(threading.RLock())),
)
_RECORDS: tuple[Any, ...] = (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_NUMBERS = [np.dtype(code).type for code in "?bBhHiIlLqQefdgFDG"]
_WITH_ATTRIBUTES = (OrderedDict, Counter, partial)  # which they may have, as a state_dict has


def is_setting(value: Any) -> bool:
    """Tell whether a value is what a strategy is made with, and remembers nothing itself."""
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return isinstance(value, _SETTINGS)


def kind_of(value: Any) -> str:
    """Return the kind of a value, a key of `KINDS` or ``"array"``."""
    kind = type(value)
    found = _BY_TYPE.get(kind) or _BY_TYPE.get(f"{kind.__module__}.{kind.__qualname__}")
    if found and not (kind in _WITH_ATTRIBUTES and vars(value)):
        return found
    return "enum" if isinstance(value, Enum) else "object"


def _plain(*parts: Any) -> Parts:
    return [("", part) for part in parts]


def _named(*names: str) -> Callable[[Any], Parts]:
    return lambda value: [(f".{name}", getattr(value, name)) for name in names]


def _parts_of_bit_generator(value: Any) -> Parts:
    seed = value.seed_seq  # that it spawns others from
    spawning = seed.state if type(seed) is np.random.SeedSequence else None
    return _plain(type(value).__name__, value.state, spawning)


def _make_bit_generator(name: str, state: Any, spawning: dict[str, Any] | None) -> Any:
    if name not in _BIT_GENERATORS:
        raise ValueError(f"unknown bit generator {name!r} in a checkpoint")
    generator = getattr(np.random, name)(spawning and np.random.SeedSequence(**spawning))
    generator.state = state
    return generator


def _parts_of_datetime(value: datetime) -> Parts:
    if value.tzinfo not in (None, UTC):
        raise UnsavableError(f"has the time zone {value.tzinfo!r}: use UTC")
    return _plain(value.isoformat(), value.fold)


def _make_random_state(bits: Any, state: Any) -> np.random.RandomState:
    generator = np.random.RandomState(bits)
    generator.set_state(state)  # again, for it may keep a second normal number
    return generator


def _make_random(state: Any) -> random.Random:
    generator = random.Random()
    generator.setstate(state)
    return generator


def _parts_of_storage(value: Any) -> Parts:
    torch: Any = import_module("torch")
    whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)
    return _plain(str(value.device), whole.cpu().numpy())


def _make_storage(device: str, values: np.ndarray) -> Any:
    torch: Any = import_module("torch")
    try:
        return torch.from_numpy(values).to(device).untyped_storage()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"a tensor of the checkpoint was on {device}: {error}") from None


def _parts_of_tensor(value: Any) -> Parts:
    if str(value.layout) != "torch.strided" or value.is_quantized or value.device.type == "meta":
        raise UnsavableError(f"is a tensor that has the layout {value.layout} on {value.device}")
    if not value.is_leaf or value.grad is not None:
        raise UnsavableError(
            "is a tensor that belongs to a computation: keep its .detach().clone()"
        )
    if value.is_conj() or value.is_neg():
        raise UnsavableError(
            "is a conjugate or negative view of a tensor: keep its .resolve_conj().resolve_neg()"
        )
    if vars(value):
        raise UnsavableError(f"is a tensor with attributes: {', '.join(vars(value))}")
    place = (value.storage_offset(), [*value.shape], [*value.stride()])
    dtype = str(value.dtype).removeprefix("torch.")
    # Tensors that are parts of one another have one storage.
    storage = value.untyped_storage()
    return _plain(type(value).__name__, dtype, value.requires_grad, storage, *place)


def _make_tensor(kind: str, dtype: str, requires_grad: bool, storage: Any, *place: Any) -> Any:
    torch: Any = import_module("torch")
    value = torch.empty(0, dtype=getattr(torch, dtype), device=storage.device)
    value.set_(storage, *place)
    if kind == "Parameter":
        return torch.nn.Parameter(value, requires_grad=requires_grad)
    return value.requires_grad_(requires_grad)


KINDS: dict[str, Kind] = {
    **objects.KINDS,
    **{k.__name__: Kind([k], lambda v: _plain(dict(v)), k) for k in _RECORDS},
    "bytes": Kind([bytes], lambda v: _plain(v.hex()), bytes.fromhex),
    "kept-array": Kind([KeptArray], lambda v: _plain(v.checksum), KeptArray),
    "path": Kind([type(Path())], lambda v: _plain(str(v)), Path),
    "datetime": Kind(
        [datetime],
        _parts_of_datetime,
        lambda text, fold: datetime.fromisoformat(text).replace(fold=fold),
    ),
    "method": Kind([MethodType], _named("__func__", "__self__"), MethodType),
    "partial": Kind(
        [partial],
        _named("func", "args", "keywords"),
        lambda function, args, keywords: partial(function, *args, **keywords),
    ),
    # Not as an array, which cuts zeros off its end.
    "text": Kind([np.str_], lambda v: _plain("".join(v)), np.str_),
    "number": Kind(
        _NUMBERS,
        lambda v: _plain(v.dtype.char, v.tobytes().hex()),
        lambda code, content: np.frombuffer(bytes.fromhex(content), code)[0],
    ),
    "random": Kind([random.Random], lambda v: _plain(v.getstate()), _make_random),
    "bit-generator": Kind(
        [getattr(np.random, name) for name in _BIT_GENERATORS],
        _parts_of_bit_generator,
        _make_bit_generator,
    ),
    "generator": Kind([np.random.Generator], _named("bit_generator"), np.random.Generator),
    "random-state": Kind(
        [np.random.RandomState],
        lambda v: _plain(v._bit_generator, v.get_state(legacy=False)),
        _make_random_state,
    ),
    "storage": Kind(["torch.storage.UntypedStorage"], _parts_of_storage, _make_storage),
    "tensor": Kind(
        ["torch.Tensor", "torch.nn.parameter.Parameter"], _parts_of_tensor, _make_tensor
    ),
    "flower-array": Kind(
        [Array, CheckedArray],
        # Its data are arrays to the checkpoint, too.
        lambda v: _plain(v.dtype, tuple(v.shape), v.stype, np.frombuffer(v.data, np.uint8)),
        lambda dtype, shape, stype, data: Array(dtype, shape, stype, data.tobytes()),
    ),
}
"""All but NumPy's arrays, which lie beside the JSON."""

_BY_TYPE: dict[type | str, str] = {np.ndarray: "array"}
_BY_TYPE |= {kind: name for name, made in KINDS.items() for kind in made.types}
