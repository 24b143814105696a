"""Turns what strategies remember into JSON and arrays, and back; nothing is ever pickled.

What is written comes back as it was, also its type and what is one object in two places. What
cannot is refused when it is written. Reading runs no code but this: an object of a user's class is
made without its constructor, and its class and functions must be there already.
"""

import json
from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from ..errors import UnsavableError
from ..kept_arrays import KeptArray
from .functions import fingerprint
from .kinds import KINDS, is_setting, kind_of

_DEEPEST = 100
_SMALL = 2**63
_PLAIN = {type(None), bool, int, float, str}
# Classes that are there in any process, such as the factory of a defaultdict.
_BUILT_IN = {kind.__name__: kind for kind in (list, dict, set, deque, int, float, str, bool)}
# A name for these says nothing, since two of the same value may be one object.
_SHARED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)


class Encoder:
    """Writes values as JSON with arrays beside it."""

    # What is outside is not written: whoever reads has it under these names. A survey, whose
    # result is compared and never read back, takes functions, classes, loggers and the like to be
    # outside as well, and notes what it has found; else they are refused.

    def __init__(self, outside: Mapping[str, Any] | None = None, survey: bool = False) -> None:
        self.arrays: dict[str, np.ndarray] = {}  # what the JSON refers to
        self.files: set[KeptArray] = set()  # that the JSON refers to
        self.kinds: set[str] = set()  # of what was written
        self.found: dict[str, Any] = {}
        there = {**_BUILT_IN, **(outside or {})}
        self._outside = {id(v): name for name, v in there.items() if not isinstance(v, _SHARED)}
        self._survey = survey
        # By id; the value is kept, so that no other gets its id meanwhile.
        self._written: dict[int, tuple[int, Any]] = {}
        self._spans: list[tuple[int, int, bool, str]] = []
        self._depth = 0

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as JSON, or raise `UnsavableError`, which names the part by its path."""
        if type(value) is int and abs(value) >= _SMALL:
            return {"int": hex(value)}
        if type(value) in _PLAIN:
            return value
        key = id(value)
        if is_setting(value) and key not in self._outside:
            if not self._survey:
                raise UnsavableError(
                    f"{path} is the {type(value).__name__} "
                    f"{getattr(value, '__qualname__', value)!r}, which was not there when the run "
                    "started: make it part of the strategy before that"
                )
            self._outside[key] = path
            self.found[path] = value
        if key in self._outside:
            name = getattr(value, "__qualname__", None) or type(value).__qualname__
            made = [fingerprint(value)] if self._survey else []
            return {"outside": [self._outside[key], name, *made]}
        if key in self._written:
            return {"same": self._written[key][0]}
        if self._depth == _DEEPEST:
            raise UnsavableError(
                f"{path[:80]}... contains itself or is nested more than {_DEEPEST} deep, which a "
                "checkpoint cannot hold"
            )
        self._depth += 1
        kind = kind_of(value)
        if isinstance(value, KeptArray):
            self.files.add(value)
        if kind == "array":
            content = self._array(value, path)
        elif kind == "dict" and (plain := _plain_content(value)) is not None:
            content = plain
        else:
            try:
                parts = [*KINDS[kind].parts(value)]
            except UnsavableError as error:
                raise UnsavableError(f"{path} {error}") from None
            content = [self.encode(part, path + of) for of, part in parts]
        self._depth -= 1
        self._written[key] = len(self._written), value
        self.kinds.add(kind)
        if self._survey and kind in ("set", "frozenset"):
            content = sorted(content, key=json.dumps)
        return {kind: content}

    def _array(self, value: np.ndarray, path: str) -> list[Any]:
        """Put an array beside the JSON, in the order of its axes in memory: sums depend on it."""
        dtype = value.dtype
        if dtype.kind not in "biufcSUMm" or np.dtype(dtype.str) != dtype or dtype.metadata:
            raise UnsavableError(
                f"{path} has the dtype {dtype}: a checkpoint holds arrays of numbers and text"
            )
        if value.size:
            start = value.__array_interface__["data"][0]
            reach = [(n - 1) * s for n, s in zip(value.shape, value.strides, strict=True)]
            low = start + sum(step for step in reach if step < 0)
            high = start + sum(step for step in reach if step > 0) + value.itemsize
            if value.flags.writeable and high - low < value.nbytes:
                raise UnsavableError(f"{path} has memory twice, as as_strided makes it: copy it")
            self._spans.append((low, high, value.flags.writeable, path))
        axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
        name = f"array-{len(self.arrays)}"
        # Not NumPy's ascontiguousarray, which gives an array without dimensions one.
        self.arrays[name] = np.asarray(value.transpose(axes), order="C")
        return [name, axes, bool(value.flags.writeable)]

    def check(self) -> None:
        """Refuse arrays that are parts of one another: they would be apart when they are read."""
        end_of_any = end_of_writeable = (0, "")
        for low, high, writeable, path in sorted(self._spans):
            end, other = end_of_any if writeable else end_of_writeable
            if low < end:
                raise UnsavableError(
                    f"{other} and {path} share memory, so that to change one is to change the "
                    "other: a checkpoint cannot hold that. Make one of them a copy"
                )
            end_of_any = max(end_of_any, (high, path))
            if writeable:
                end_of_writeable = max(end_of_writeable, (high, path))

    def digest(self, node: Any) -> str:
        """Return a checksum of what this has written: of the JSON, and of the arrays."""
        digest = blake2b(json.dumps(node).encode(), digest_size=16)
        for values in self.arrays.values():
            digest.update(f"{values.dtype}{values.shape}".encode() + values.tobytes())
        return digest.hexdigest()


def _plain_content(value: dict[Any, Any]) -> list[Any] | None:
    """Return a dict's keys and values if each is written as it is; else None."""
    # Such as the last rounds of thousands of clients, which would take long one by one.
    content = [*chain.from_iterable(value.items())]
    numbers = [part for part in content if type(part) is int]
    plain = _PLAIN.issuperset(map(type, content)) and max(map(abs, numbers), default=0) < _SMALL
    return content if plain else None


class Decoder:
    """Reads what an `Encoder` has written, given what it took to be outside."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], outside: Mapping[str, Any] | None = None
    ) -> None:
        self._arrays = arrays
        self._outside = {**_BUILT_IN, **(outside or {})}
        self._values: list[Any] = []

    def decode(self, node: Any) -> Any:
        """Return a value, or raise ValueError if it cannot be made: its class may not be there."""
        if not isinstance(node, dict):
            return node
        ((kind, content),) = node.items()
        if kind == "int":
            return int(content, 16)
        if kind == "same":
            return self._values[content]
        if kind == "outside":
            if content[0] not in self._outside:
                raise ValueError(f"{content[0]}, a {content[1]}, is not there any more")
            return self._outside[content[0]]
        if kind == "array":
            name, axes, writeable = content
            value = self._arrays[name]
            if axes != sorted(axes):
                value = value.transpose(np.argsort(axes))
            value.flags.writeable = writeable
        elif kind in KINDS:
            value = KINDS[kind].make(*[self.decode(part) for part in content])
        else:
            raise ValueError(f"unknown kind of value {kind!r} in a checkpoint")
        self._values.append(value)
        return value
