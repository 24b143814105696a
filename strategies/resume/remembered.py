"""What a base strategy and a rule come to remember, such as FedAdam's moments."""

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

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


def setting(value: Any, encoder: Encoder | None = None, path: str = "value") -> Setting:
    """Return a value as a setting: runs of the same one have the same text and checksum."""
    encoder = encoder or Encoder(survey=True)
    return [_ADDRESS.sub("", _SHORT.repr(value)), encoder.digest(encoder.encode(value, path))]


class Remembered:
    """The attributes of strategies and rules: Flower has no interface for what they remember.

    As they were made, before the first round, they are settings too, but for those that a run may
    begin with otherwise: arrays, random generators, times and paths. Of those with arrays and none
    of the others, `made` has the checksums. What is `there`, by name, a run finds when it is taken
    up: it is not written.
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
            encoder = Encoder(self.there, survey=True)
            with _remedy(path):
                found = setting(value, encoder, path)
            self.there |= encoder.found
            changing = encoder.kinds & CHANGING
            if not changing:
                self.settings[path] = found
            elif changing <= {"array", "tensor"}:
                self.made[path] = found[1]

    def state(self, encoder: Encoder) -> dict[str, Any]:
        """Return the attributes as JSON; what cannot be saved may have turned up since."""
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
        """Add a strategy or a rule, and strategies that are attributes of it, as in a wrapper."""
        if any(owner is other for other in self._owners.values()):
            return
        name, number = type(owner).__name__, 1
        while name in self._owners:
            number += 1
            name = f"{type(owner).__name__}#{number}"
        self._owners[name] = owner
        for value in attributes(owner).values():
            if isinstance(value, Strategy):
                self._add(value)

    def _attributes(self, skipped: bool = False) -> dict[str, Any]:
        return {
            f"{name}.{attribute}": value
            for name, owner in self._owners.items()
            for attribute, value in attributes(owner).items()
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


def _skipped(owner: Any) -> set[str]:
    # Not getattr(owner, ...), which a class may answer itself.
    names = attributes(owner).get(SKIP, getattr(type(owner), SKIP, ()))
    if isinstance(names, str):
        raise TypeError(f"{SKIP} of {type(owner).__name__} is {names!r}, want names: ({names!r},)")
    return {SKIP, *names}
