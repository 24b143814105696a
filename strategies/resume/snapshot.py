"""Turns what strategies remember into JSON and arrays, and back; nothing is ever pickled.

What is written comes back as it was, also its type and what is one object in two places. What
cannot is refused when it is written. Reading runs no code but this: an object of a user's class is
made without its constructor, and its class and functions must be there already.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from ..errors import UnsavableError
from .kinds import BLANKS, FILLERS, GETTERS, Arrays, describe, is_setting
from .numpy_kinds import bytes_of, shared_memory

__all__ = ["Decoder", "Encoder", "decode", "encode"]

_DEEPEST = 100
_SMALL = 2**63


def encode(value: Any, arrays: Arrays, name: str = "value") -> Any:
    """Return a value as JSON, with its arrays moved to a dictionary; see `Encoder`."""
    encoder = Encoder()
    node = encoder.encode(value, name)
    encoder.check()
    arrays.update(encoder.arrays)
    return node


def decode(node: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return what `encode` was given."""
    return Decoder(arrays).decode(node)


class Encoder:
    """Writes values as JSON with arrays beside it.

    Parameters
    ----------
    outside : mapping of int to str, optional (default: None)
        Objects that are not written, by their id: whoever reads has them under these names.
    survey : bool (default: False)
        Take functions, classes, loggers and the like to be outside as well, and note them in
        ``found``; else they are refused.
    canonical : bool (default: False)
        Write sets in one order: the result is compared, not read.

    Attributes
    ----------
    arrays : dict of str to np.ndarray
        What the JSON refers to.
    kinds : set of str
        Kinds of values that were written.
    found : dict of str to object
        What a survey has found, by name.
    """

    def __init__(
        self,
        outside: Mapping[int, str] | None = None,
        survey: bool = False,
        canonical: bool = False,
    ) -> None:
        self.arrays: Arrays = {}
        self.kinds: set[str] = set()
        self.found: dict[str, Any] = {}
        self._outside = dict(outside or {})
        self._survey = survey
        self._canonical = canonical
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is given to another object meanwhile
        self._unfinished: set[int] = set()
        self._originals: Arrays = {}
        self._paths: dict[str, str] = {}
        self._memory: dict[int, str] = {}
        self._depth = 0

    def encode(self, value: Any, path: str) -> Any:
        """Return a value as JSON.

        Parameters
        ----------
        value : object
            What `snapshot_kinds` knows, and objects of classes that can be found by their name.
        path : str
            What an error calls it.

        Raises
        ------
        UnsavableError
            If it could not be read back as it is; names the part and its type.
        """
        if value is None or type(value) in (bool, float, str):
            return value
        if type(value) is int:
            return value if abs(value) < _SMALL else {"int": hex(value)}
        key = id(value)
        if key not in self._outside and self._survey and is_setting(value):
            self._outside[key] = path
            self.found[path] = value
        if key in self._outside:
            name = getattr(value, "__qualname__", None) or type(value).__qualname__
            return {"outside": [self._outside[key], name]}
        if key in self._numbers:
            if key in self._unfinished:
                raise UnsavableError(f"{path} contains itself, which a checkpoint cannot hold")
            return {"same": self._numbers[key]}
        if self._depth == _DEEPEST:
            raise UnsavableError(f"{path} is nested more than {_DEEPEST} deep")
        self._numbers[key] = len(self._numbers)
        self._kept.append(value)
        kind, put = describe(value, path)
        if kind not in BLANKS:
            self._unfinished.add(key)
        self._depth += 1
        content = put(self, value, path)
        self._depth -= 1
        self._unfinished.discard(key)
        self.kinds.add(kind)
        if self._canonical and kind in ("set", "frozenset"):
            content = sorted(content, key=json.dumps)
        return {kind: content}

    def array(self, values: np.ndarray, original: np.ndarray, path: str) -> str:
        """Put an array beside the JSON, and return its name."""
        name = f"array-{len(self.arrays)}"
        self.arrays[name] = values
        self._originals[name], self._paths[name] = original, path
        return name

    def first(self, memory: int, path: str) -> str:
        """Return who came first with memory that can be only one's."""
        return self._memory.setdefault(memory, path)

    def check(self) -> None:
        """Refuse arrays that are parts of one another: they would be apart when they are read.

        Raises
        ------
        UnsavableError
            Names two of them.
        """
        pair = shared_memory(self._originals)
        if pair is not None:
            one, other = (self._paths[name] for name in pair)
            raise UnsavableError(
                f"{one} and {other} share memory, so that to change one is to change the other: "
                "a checkpoint cannot hold that. Make one of them a copy"
            )

    def digest(self, text: str) -> str:
        """Return a checksum of what this has written: of the JSON as text, and of the arrays."""
        digest = blake2b(text.encode(), digest_size=16)
        for values in self.arrays.values():
            digest.update(f"{values.dtype}{values.shape}".encode())
            digest.update(bytes_of(values))
        return digest.hexdigest()


class Decoder:
    """Reads what an `Encoder` has written.

    Parameters
    ----------
    arrays : mapping of str to np.ndarray
        Its arrays.
    outside : mapping of str to object, optional (default: None)
        What it took to be outside, by name.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], outside: Mapping[str, Any] | None = None
    ) -> None:
        self.arrays = arrays
        self._outside = outside or {}
        self._values: list[Any] = []

    def decode(self, node: Any) -> Any:
        """Return a value.

        Raises
        ------
        ValueError
            If it cannot be made, such as of a class that is not loaded.
        """
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
        number = len(self._values)
        self._values.append(None)
        if kind in BLANKS:
            value = BLANKS[kind](self, content)
            self._values[number] = value
            FILLERS[kind](self, value, content)
        elif kind in GETTERS:
            value = self._values[number] = GETTERS[kind](self, content)
        else:
            raise ValueError(f"unknown kind of value {kind!r} in a checkpoint")
        return value
