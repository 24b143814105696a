"""What a base strategy and a rule come to remember, such as FedAdam's moments."""

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..errors import UnsavableError
from .kinds import CHANGING
from .object_kinds import attributes, set_attribute
from .snapshot import Encoder

__all__ = ["SKIP", "Remembered", "Setting", "setting"]

SKIP = "not_in_checkpoint"
"""An attribute of a strategy or rule that names those which a resumed run does without."""

Setting = list[str]
"""A value as a person reads it, and a checksum of all of it."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
# A name for these says nothing, since two of the same value may be one object.
_SHARED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)


def setting(value: Any, outside: Mapping[int, str] | None = None) -> Setting:
    """Return a value as a setting: runs of the same one have the same text and checksum."""
    encoder = Encoder(outside, survey=True, canonical=True)
    return [_text(value), encoder.digest(json.dumps(encoder.encode(value, "value")))]


class Remembered:
    """The attributes of strategies and rules that have changed since they were made.

    Flower has no interface for what a strategy remembers, so the attributes that have changed are
    taken to be that; the others are settings, and stay those of the strategy that the caller made.

    Parameters
    ----------
    *roots : object
        A strategy or a rule as it was made, before its first round. Strategies that are attributes
        of it, as in a wrapper, are taken apart too.

    Attributes
    ----------
    settings : dict of str to Setting
        The attributes as they were made, by the name of the class and of the attribute, but for
        those that a run may begin with otherwise: arrays, random generators, times and paths.

    Raises
    ------
    UnsavableError
        If there is an attribute that a checkpoint cannot hold; names it.
    """

    def __init__(self, *roots: Any) -> None:
        self._owners: dict[str, Any] = {}
        for root in roots:
            self._add(root)
        self.settings: dict[str, Setting] = {}
        self._digests: dict[str, tuple[str, str]] = {}  # the JSON, and a checksum with the arrays
        self._always: set[str] = set()
        # By name: what is there again when a run is taken up, and so is not written.
        self._there: dict[str, Any] = {f"<{name}>": owner for name, owner in self._owners.items()}
        for path, value in self._attributes(skipped=True):
            self._there[path] = value
        for path, value in self._attributes():
            encoder = Encoder(self._ids(), survey=True, canonical=True)
            text = self._written(encoder, value, path)
            self._digests[path] = text, encoder.digest(text)
            self._there |= encoder.found
            if encoder.kinds & CHANGING:
                self._always.add(path)
            else:
                self.settings[path] = [_text(value), self._digests[path][1]]
        self._made = dict(self._attributes())

    def state(self) -> tuple[dict[str, Any], dict[int, str]]:
        """Return what has changed, and what an `Encoder` is to take as being outside.

        Raises
        ------
        UnsavableError
            If something has turned up since that a checkpoint cannot hold; names it.
        """
        changed: dict[str, Any] = {}
        there = self._ids()
        outside = dict(there)
        now = dict(self._attributes())
        for path, value in now.items():
            encoder = Encoder(there, canonical=True)
            text = self._written(encoder, value, path)
            before, checksum = self._digests.get(path, ("", ""))
            # Arrays are read only if all else is the same.
            same = text == before and encoder.digest(text) == checksum
            if not same or path in self._always:
                changed[path] = value
            elif not isinstance(value, _SHARED):
                outside[id(value)] = path
        gone = [path for path in self._digests if path not in now]
        return {"changed": changed, "gone": gone}, outside

    def outside(self) -> dict[str, Any]:
        """Return what a `Decoder` needs to know, by name."""
        return self._made | self._there

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the attributes that `state` returned."""
        for path, value in state["changed"].items():
            owner, _, name = path.partition(".")
            set_attribute(self._owners[owner], name, value)
        for path in state["gone"]:
            owner, _, name = path.partition(".")
            object.__delattr__(self._owners[owner], name)

    def _add(self, owner: Any) -> None:
        if any(owner is other for other in self._owners.values()):
            return
        name, number = type(owner).__name__, 1
        while name in self._owners:
            number += 1
            name = f"{type(owner).__name__}#{number}"
        self._owners[name] = owner
        for _, value in attributes(owner):
            if isinstance(value, Strategy):
                self._add(value)

    def _attributes(self, skipped: bool = False) -> Iterator[tuple[str, Any]]:
        for name, owner in self._owners.items():
            skip = _skipped(owner)
            for attribute, value in attributes(owner):
                if (attribute in skip) is skipped:
                    yield f"{name}.{attribute}", value

    def _ids(self) -> dict[int, str]:
        return {
            id(value): path for path, value in self._there.items() if not isinstance(value, _SHARED)
        }

    def _written(self, encoder: Encoder, value: Any, path: str) -> str:
        """Return an attribute as JSON, without its arrays, or say that it cannot be saved."""
        try:
            node = encoder.encode(value, path)
            encoder.check()
        except UnsavableError as error:
            owner, _, name = path.partition(".")
            raise UnsavableError(
                f"{error}. checkpoint= saves what {owner} remembers; if a run that is taken up may "
                f"find {name} as it was made, say so: {SKIP} = ({name!r},) in {owner}"
            ) from None
        return json.dumps(node)


def _text(value: Any) -> str:
    """Return a value as a person reads it."""
    return _ADDRESS.sub("", _SHORT.repr(value))


def _skipped(owner: Any) -> set[str]:
    # Not getattr(owner, ...), which a class may answer itself.
    names = dict(attributes(owner)).get(SKIP, getattr(type(owner), SKIP, ()))
    if isinstance(names, str):
        raise TypeError(f"{SKIP} of {type(owner).__name__} is {names!r}, want names: ({names!r},)")
    return {SKIP, *names}
