"""What a base strategy and a rule come to remember, such as FedAdam's moments."""

from collections.abc import Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..errors import UnsavableError
from .objects import attributes, set_attribute
from .snapshot import Encoder

SKIP = "not_in_checkpoint"
"""An attribute of a strategy or rule that names those which a resumed run does without."""


class Remembered:
    """The attributes of strategies and rules: Flower has no interface for what they remember."""

    # What is `there`, by name, a run finds when it is taken up, and so is not written.

    def __init__(self, *roots: Any) -> None:
        self._owners: dict[str, Any] = {}
        for root in roots:
            self._add(root)
        self.there: dict[str, Any] = {f"<{name}>": owner for name, owner in self._owners.items()}
        self.there |= self.attributes(skipped=True)

    def attributes(self, skipped: bool = False) -> dict[str, Any]:
        """Return the attributes by name, such as ``"FedAdam.eta"``; or those to be skipped."""
        return {
            f"{name}.{attribute}": value
            for name, owner in self._owners.items()
            for attribute, value in attributes(owner).items()
            if (attribute in _skipped(owner)) is skipped
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Set the attributes to what they were, and remove those that were not there."""
        for path in self.attributes().keys() - values.keys():
            owner, _, name = path.partition(".")
            object.__delattr__(self._owners[owner], name)
        for path, value in values.items():
            owner, _, name = path.partition(".")
            set_attribute(self._owners[owner], name, value)

    def _add(self, owner: Any) -> None:
        """Add a strategy or a rule, and strategies that are attributes of it, as in a wrapper."""
        if any(owner is other for other in self._owners.values()):
            return
        name = type(owner).__name__
        if name in self._owners:
            name += f"#{len(self._owners) + 1}"
        self._owners[name] = owner
        for value in attributes(owner).values():
            if isinstance(value, Strategy):
                self._add(value)


def encoded(encoder: Encoder, value: Any, path: str) -> Any:
    """Return an attribute as JSON, or say how to do without it."""
    try:
        node = encoder.encode(value, path)
        encoder.check()
    except UnsavableError as error:
        owner, _, name = path.partition(".")
        raise UnsavableError(
            f"{error}. checkpoint= saves what {owner} remembers; if a run that is taken up may "
            f"find {name} as it was made, say so: {SKIP} = ({name!r},) in {owner}"
        ) from None
    return node


def _skipped(owner: Any) -> set[str]:
    # Not getattr(owner, ...), which a class may answer itself.
    names = attributes(owner).get(SKIP, getattr(type(owner), SKIP, ()))
    if isinstance(names, str):
        raise TypeError(f"{SKIP} of {type(owner).__name__} is {names!r}, want names: ({names!r},)")
    return {SKIP, *names}
