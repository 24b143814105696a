"""The kinds of values that a checkpoint holds: what each is made of, and how it is made of it."""

import logging
import random
import re
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..errors import UnsavableError
from .objects import (
    CONTAINERS,
    Parts,
    content_of,
    fill,
    make_enum,
    make_object,
    parts_of_enum,
    parts_of_object,
    problem_of,
)

__all__ = ["CHANGING", "KINDS", "is_setting", "kind_of"]

CHANGING = {
    *("array", "tensor", "generator", "bit-generator", "random-state", "random"),
    *("datetime", "path"),
}
"""Kinds that may differ from start to start: they are saved in any case, and no settings."""

_SETTINGS = (
    *(FunctionType, type, ModuleType, logging.Logger, np.ufunc, re.Pattern),
    *(type(threading.Lock()), type(threading.RLock())),
)
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, deque, int, float, str, bool)}
_RECORDS = (ArrayRecord, ConfigRecord, MetricRecord, RecordDict)
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_WITH_ATTRIBUTES = (OrderedDict, Counter, partial)  # which they may have, as a state_dict has


class Kind(NamedTuple):
    """How the values of a kind are written and read.

    Attributes
    ----------
    parts : callable
        Returns the parts of a value, each with what its name adds to the value's.
    make : callable
        Makes a value of a list of its parts.
    exact : type or None
        The type of its values, where one says it all.
    """

    parts: Callable[[Any], Parts]
    make: Callable[[list[Any]], Any]
    exact: type | None = None


def is_setting(value: Any) -> bool:
    """Tell whether a value is what a strategy is made with, and remembers nothing itself."""
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return isinstance(value, _SETTINGS) and not _is_factory(value)


def kind_of(value: Any, path: str) -> str:
    """Return the kind of a value, a key of `KINDS` or ``"array"``.

    Raises
    ------
    UnsavableError
        If there is none.
    """
    kind = _BY_TYPE.get(type(value))
    if kind and not (type(value) in _WITH_ATTRIBUTES and vars(value)):
        if problem := _problem(value):
            raise UnsavableError(f"{path} {problem}")
        return kind
    if _is_factory(value):
        return "factory"
    if is_setting(value):
        raise UnsavableError(
            f"{path} is the {type(value).__name__} {getattr(value, '__qualname__', value)!r}, "
            "which was not there when the run started: make it part of the strategy before that"
        )
    if isinstance(value, np.generic) and _is_scalar(value):
        return "scalar"
    if type(value) in [getattr(np.random, name) for name in _BIT_GENERATORS]:
        return "bit-generator"
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.UntypedStorage):
        return "storage"
    if torch is not None and isinstance(value, torch.Tensor):
        if problem := _problem_of_tensor(torch, value):
            raise UnsavableError(f"{path} is a tensor that {problem}")
        return "tensor"
    if problem := problem_of(value):
        raise UnsavableError(f"{path} {problem}")
    return "enum" if isinstance(value, Enum) else "object"


def _is_factory(value: Any) -> bool:
    return any(value is kind for kind in _FACTORIES.values())


def _is_scalar(value: np.generic) -> bool:
    return value.dtype.kind in "biufcU" and np.dtype(value.dtype.char).type is type(value)


def _problem(value: Any) -> str:
    if type(value) is np.ndarray:
        plain = value.dtype.kind in "biufcSUMm" and np.dtype(value.dtype.str) == value.dtype
        if not plain or value.dtype.metadata:
            return f"has the dtype {value.dtype}: a checkpoint holds arrays of numbers and text"
    if type(value) is datetime and value.tzinfo not in (None, UTC):
        return f"has the time zone {value.tzinfo!r}: use UTC"
    return ""


def _problem_of_tensor(torch: Any, value: Any) -> str:
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(value).__name__}: keep plain tensors and parameters"
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        return f"has the layout {value.layout} on {value.device}"
    if not value.is_leaf or value.grad is not None:
        return "belongs to a computation: keep its .detach().clone()"
    if value.is_conj() or value.is_neg():
        return "is a conjugate or negative view: keep its .resolve_conj().resolve_neg()"
    if vars(value):
        return f"has attributes of its own: {', '.join(vars(value))}"
    return ""


def _plain(*parts: Any) -> Parts:
    return [("", part) for part in parts]


def _parts_of_scalar(value: Any) -> Parts:
    # Text as it is, for an array cuts zeros off its end.
    content = "".join(value) if value.dtype.kind == "U" else value.tobytes().hex()
    return _plain(value.dtype.char, content)


def _make_scalar(parts: list[Any]) -> Any:
    code, content = parts
    if code == "U":
        return np.str_(content)
    return np.frombuffer(bytes.fromhex(content), np.dtype(code))[0]


def _parts_of_bit_generator(value: Any) -> Parts:
    # With the seed that it spawns others from, which has another name before NumPy 1.25.
    seed = getattr(value, "seed_seq", None) or getattr(value, "_seed_seq", None)
    spawning = None
    if type(seed) is np.random.SeedSequence:
        spawning = [seed.entropy, seed.spawn_key, seed.pool_size, seed.n_children_spawned]
    return _plain(type(value).__name__, value.state, spawning)


def _make_bit_generator(parts: list[Any]) -> Any:
    name, state, spawning = parts
    if name not in _BIT_GENERATORS:
        raise ValueError(f"unknown bit generator {name!r} in a checkpoint")
    seed: Any = None
    if spawning is not None:
        names = ("entropy", "spawn_key", "pool_size", "n_children_spawned")
        seed = np.random.SeedSequence(**dict(zip(names, spawning, strict=True)))
    generator = getattr(np.random, name)(seed)
    generator.state = state
    return generator


def _parts_of_random_state(value: Any) -> Parts:
    state = value.get_state(legacy=False)  # it may keep a second normal number
    return _plain(value._bit_generator, state.get("has_gauss", 0), state.get("gauss", 0.0))


def _make_random_state(parts: list[Any]) -> np.random.RandomState:
    bits, has_gauss, gauss = parts
    generator = np.random.RandomState(bits)
    state: Any = generator.get_state(legacy=False)
    generator.set_state({**state, "has_gauss": has_gauss, "gauss": gauss})
    return generator


def _make_random(parts: list[Any]) -> random.Random:
    generator = random.Random()
    generator.setstate(parts[0])
    return generator


def _parts_of_storage(value: Any) -> Parts:
    torch: Any = sys.modules["torch"]
    whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)
    return _plain(str(value.device), whole.cpu().numpy())


def _make_storage(parts: list[Any]) -> Any:
    device, values = parts
    torch: Any = import_module("torch")
    try:
        return torch.from_numpy(values).to(device).untyped_storage()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"a tensor of the checkpoint was on {device}: {error}") from None


def _parts_of_tensor(value: Any) -> Parts:
    place = (value.storage_offset(), [*value.shape], [*value.stride()])
    dtype = str(value.dtype).removeprefix("torch.")
    kind = type(value).__name__
    # Tensors that are parts of one another have one storage.
    return _plain(kind, dtype, value.requires_grad, value.untyped_storage(), *place)


def _make_tensor(parts: list[Any]) -> Any:
    kind, dtype, requires_grad, storage, *place = parts
    torch: Any = import_module("torch")
    value = torch.empty(0, dtype=getattr(torch, dtype), device=storage.device)
    value.set_(storage, *place)
    if kind == "Parameter":
        return torch.nn.Parameter(value, requires_grad=requires_grad)
    return value.requires_grad_(requires_grad)


def _parts_of_flower_array(value: Array) -> Parts:
    # Its data are arrays to the checkpoint, too.
    return _plain(
        value.dtype, [*value.shape], value.stype, np.frombuffer(value.data, dtype=np.uint8)
    )


def _make_flower_array(parts: list[Any]) -> Array:
    dtype, shape, stype, data = parts
    return Array(dtype, tuple(shape), stype, data.tobytes())


def _container(kind: type) -> Kind:
    return Kind(partial(content_of, kind), partial(fill, kind, kind), kind)


def _record(kind: Any) -> Kind:
    return Kind(
        lambda value: content_of(dict, dict(value)),
        lambda parts: kind(fill(dict, dict, parts)),
        kind,
    )


KINDS: dict[str, Kind] = {
    **{kind.__name__: _container(kind) for kind in CONTAINERS},
    "bytes": Kind(lambda v: _plain(v.hex()), lambda parts: bytes.fromhex(parts[0]), bytes),
    "factory": Kind(lambda v: _plain(v.__name__), lambda parts: _FACTORIES[parts[0]]),
    "path": Kind(lambda v: _plain(str(v)), lambda parts: Path(*parts), type(Path())),
    "datetime": Kind(
        lambda v: _plain(v.isoformat(), v.fold),
        lambda parts: datetime.fromisoformat(parts[0]).replace(fold=parts[1]),
        datetime,
    ),
    "method": Kind(
        lambda v: [(".__func__", v.__func__), (".__self__", v.__self__)],
        lambda parts: MethodType(*parts),
        MethodType,
    ),
    "partial": Kind(
        lambda v: [(".func", v.func), (".args", v.args), (".keywords", v.keywords)],
        lambda parts: partial(parts[0], *parts[1], **parts[2]),
        partial,
    ),
    "enum": Kind(parts_of_enum, make_enum),
    "object": Kind(parts_of_object, make_object),
    "random": Kind(lambda v: _plain(v.getstate()), _make_random, random.Random),
    "scalar": Kind(_parts_of_scalar, _make_scalar),
    "bit-generator": Kind(_parts_of_bit_generator, _make_bit_generator),
    "generator": Kind(
        lambda v: _plain(v.bit_generator),
        lambda parts: np.random.Generator(*parts),
        np.random.Generator,
    ),
    "random-state": Kind(_parts_of_random_state, _make_random_state, np.random.RandomState),
    "storage": Kind(_parts_of_storage, _make_storage),
    "tensor": Kind(_parts_of_tensor, _make_tensor),
    "flower-array": Kind(_parts_of_flower_array, _make_flower_array, Array),
    **{kind.__name__: _record(kind) for kind in _RECORDS},
}
"""All but NumPy's arrays, which lie beside the JSON."""

_BY_TYPE: dict[type, str] = {kind.exact: name for name, kind in KINDS.items() if kind.exact}
_BY_TYPE[np.ndarray] = "array"
