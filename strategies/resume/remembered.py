"""What a base strategy and a rule come to remember, such as FedAdam's moments."""

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..errors import UnsavableError
from .kinds import CHANGING
from .objects import attributes, set_attribute
from .snapshot import Encoder

__all__ = ["SKIP", "Remembered", "Setting", "setting"]

SKIP = "not_in_checkpoint"
"""An attribute of a strategy or rule that names those which a resumed run does without."""

Setting = list[str]
"""A value as a person reads it, and a checksum of all of it."""

_ARRAYS = {"array", "tensor"}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_ADDRESS = re.compile(" at 0x[0-9a-f]+")
# A name for these says nothing, since two of the same value may be one object.
_SHARED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)


def setting(value: Any) -> Setting:
    """Return a value as a setting: runs of the same one have the same text and checksum."""
    return _surveyed(Encoder(survey=True), value, "value")


class Remembered:
    """The attributes of strategies and rules.

    Flower has no interface for what a strategy remembers, so all of its attributes are taken to be
    that. As they were made, they are its settings too.

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
    made : dict of str to str
        Checksums of those of them that hold arrays, and no generators, times or paths.
    there : dict of str to object
        What a run finds when it is taken up, by name, and so is not written.

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
        self.made: dict[str, str] = {}
        self.there: dict[str, Any] = {f"<{name}>": owner for name, owner in self._owners.items()}
        self.there |= self._attributes(skipped=True)
        for path, value in self._attributes().items():
            encoder = Encoder(self.ids(), survey=True)
            with _remedy(path):
                found = _surveyed(encoder, value, path)
            self.there |= encoder.found
            changing = encoder.kinds & CHANGING
            if not changing:
                self.settings[path] = found
            elif changing <= _ARRAYS:
                self.made[path] = found[1]

    def ids(self) -> dict[int, str]:
        """Return the names of what is not written, by its id, for an `Encoder`."""
        return {
            id(value): path for path, value in self.there.items() if not isinstance(value, _SHARED)
        }

    def state(self, encoder: Encoder) -> dict[str, Any]:
        """Return the attributes as JSON.

        Raises
        ------
        UnsavableError
            If something has turned up since that a checkpoint cannot hold; names it.
        """
        nodes = {}
        for path, value in self._attributes().items():
            with _remedy(path):
                nodes[path] = encoder.encode(value, path)
                encoder.check()
        return nodes

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the attributes to what `state` was, and remove those that were not there."""
        for path in self._attributes().keys() - state.keys():
            owner, _, name = path.partition(".")
            object.__delattr__(self._owners[owner], name)
        for path, value in state.items():
            owner, _, name = path.partition(".")
            set_attribute(self._owners[owner], name, value)

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

    def _attributes(self, skipped: bool = False) -> dict[str, Any]:
        return {
            f"{name}.{attribute}": value
            for name, owner in self._owners.items()
            for attribute, value in attributes(owner)
            if (attribute in _skipped(owner)) is skipped
        }


@contextmanager
def _remedy(path: str) -> Iterator[None]:
    """Have an error about an attribute say how to do without it."""
    try:
        yield
    except UnsavableError as error:
        owner, _, name = path.partition(".")
        raise UnsavableError(
            f"{error}. checkpoint= saves what {owner} remembers; if a run that is taken up may "
            f"find {name} as it was made, say so: {SKIP} = ({name!r},) in {owner}"
        ) from None


def _surveyed(encoder: Encoder, value: Any, path: str) -> Setting:
    digest = encoder.digest(json.dumps(encoder.encode(value, path)))
    return [_ADDRESS.sub("", _SHORT.repr(value)), digest]


def _skipped(owner: Any) -> set[str]:
    # Not getattr(owner, ...), which a class may answer itself.
    names = dict(attributes(owner)).get(SKIP, getattr(type(owner), SKIP, ()))
    if isinstance(names, str):
        raise TypeError(f"{SKIP} of {type(owner).__name__} is {names!r}, want names: ({names!r},)")
    return {SKIP, *names}
