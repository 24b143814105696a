"""Containers and objects of users' classes: by content and attributes, without constructors."""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, Flag
from functools import partial
from types import MemberDescriptorType
from typing import Any, NamedTuple

from ..errors import UnsavableError

Parts = Iterable[tuple[str, Any]]
"""The parts of a value, each after what its name adds to the value's."""


class Kind(NamedTuple):
    """The types whose values are of a kind; how they are taken apart, or refused, and made."""

    types: Sequence[type | str]  # by name, where to import it takes long
    parts: Callable[[Any], Parts]
    make: Callable[..., Any]


# Classes of Python's that hold others, those before their bases; and what some are made with.
_CONTAINERS = (OrderedDict, defaultdict, Counter, dict, deque, list, set, tuple, frozenset)
_MADE_WITH = {defaultdict: "default_factory", deque: "maxlen"}
# Whose own ways of copying do nothing that matters: dataclasses with slots, networks.
_HARMLESS = ("dataclasses", "torch.nn.modules.")
_HIDDEN = "the class cannot be found by its name, so it must stand outside of functions"
_POINTER = object.__basicsize__ // 2  # an object is a count and the address of its class


def attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes by name, also those in slots."""
    slots = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
    return getattr(value, "__dict__", {}) | slots


def set_attribute(value: Any, name: str, to: Any) -> None:
    """Set an object's attribute, past whatever its class does when one is set."""
    own = getattr(value, "__dict__", None)
    if own is None or name in _slots(type(value)):
        object.__setattr__(value, name, to)
    else:
        own[name] = to


def _content_of(base: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container holds, past whatever a class of a user does when it is asked."""
    if base in _MADE_WITH:
        yield f".{_MADE_WITH[base]}", getattr(value, _MADE_WITH[base])
    if issubclass(base, dict):
        for key, entry in base.items(value):
            yield f"[{key!r}]", key
            yield f"[{key!r}]", entry
    elif base is not object:
        for place, entry in enumerate(base.__iter__(value)):
            yield f"[{place}]", entry


def _fill(base: Any, kind: type, *parts: Any) -> Any:
    """Make a container, or an object of a class of a user that is one, with what it holds."""
    if base in (tuple, frozenset):
        return base.__new__(kind, parts)
    made_with = parts[: base in _MADE_WITH]
    content = parts[len(made_with) :]
    value = base.__new__(kind)
    if base in (list, set, deque):
        base.__init__(value, content, *made_with)
    elif base is defaultdict:
        base.__init__(value, *made_with)
    if issubclass(base, dict):
        for key, entry in zip(content[::2], content[1::2], strict=True):
            base.__setitem__(value, key, entry)
    return value


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's class by name, the size of its content, this, and its attributes."""
    kind = type(value)
    if problem := _problem_of_class(kind):
        raise _refusal(kind, problem)
    content = list(_content_of(_base(kind), value))
    yield from (("", kind.__module__), ("", kind.__qualname__), ("", len(content)))
    yield from content
    for name, entry in attributes(value).items():
        yield from (("", name), (f".{name}", entry))


def _make_object(module: str, name: str, size: int, *rest: Any) -> Any:
    """Make an object of its parts, or raise ValueError if its class is not there or not allowed."""
    kind = _find(module, name)
    if kind is None:
        raise ValueError(
            f"the class {module}.{name} of an object in the checkpoint is not there: import its "
            "module before the run starts"
        )
    if problem := _problem_of_class(kind):
        raise ValueError(f"the class {module}.{name} of an object in the checkpoint: {problem}")
    value = _fill(_base(kind), kind, *rest[:size])
    for attribute, entry in zip(rest[size::2], rest[size + 1 :: 2], strict=True):
        set_attribute(value, attribute, entry)
    return value


def _parts_of_enum(value: Any) -> Parts:
    """Return the class of a member of an enumeration by name, and which it is."""
    kind = type(value)
    if _find(kind.__module__, kind.__qualname__) is not kind:
        raise _refusal(kind, _HIDDEN)
    if not isinstance(value, Flag) and kind.__members__.get(value.name) is not value:
        raise _refusal(kind, "it is no member of that")
    which = value.value if isinstance(value, Flag) else value.name
    return [("", kind.__module__), ("", kind.__qualname__), ("", which)]


def _make_enum(module: str, name: str, which: Any) -> Any:
    """Return a member of an enumeration."""
    kind: Any = _find(module, name)
    if kind is None or not issubclass(kind, Enum):
        raise ValueError(f"the enumeration {module}.{name} is not there")
    return kind(which) if issubclass(kind, Flag) else kind.__members__[which]


def _find(module: str, name: str) -> type | None:
    """Return a class by its name. Nothing is imported: that would run what a file names."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _base(kind: type) -> Any:
    """Return the class of Python's own that holds an object's content."""
    return next((base for base in _CONTAINERS if issubclass(kind, base)), object)


def _problem_of_class(kind: type) -> str:
    """Return why an object of a class could not be made again from its attributes; else nothing."""
    if kind is object:
        return "it is nothing but itself"
    if _find(kind.__module__, kind.__qualname__) is not kind:
        return _HIDDEN
    base = _base(kind)
    for method in ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"):
        own = getattr(kind, method, None)
        harmless = str(getattr(own, "__module__", "")).startswith(_HARMLESS)
        if own is not getattr(base, method, None) and not harmless:
            return f"its class has a {method} of its own"
    try:
        base.__new__(kind)
    except TypeError:
        return "it is not made of attributes"
    places = len(_slots(kind)) + bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__)
    if kind.__basicsize__ > base.__basicsize__ + places * _POINTER:
        return "there is more to it than attributes"
    return ""


def _refusal(kind: type, problem: str) -> UnsavableError:
    return UnsavableError(
        f"is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: {problem}. "
        "Nothing is pickled: keep numbers, text, NumPy arrays or torch tensors, lists, "
        "dictionaries and the like of these, and objects of classes that have no more than such "
        "attributes"
    )


def _slots(kind: type) -> list[str]:
    """Return the names of all slots of a class, as they are known outside of it."""
    owners = [owner for owner in kind.__mro__ if "__slots__" in vars(owner)]
    members = [member for owner in owners for member in vars(owner).items()]
    return [name for name, member in members if isinstance(member, MemberDescriptorType)]


KINDS = {
    **{k.__name__: Kind([k], partial(_content_of, k), partial(_fill, k, k)) for k in _CONTAINERS},
    "enum": Kind([], _parts_of_enum, _make_enum),
    "object": Kind([], _parts_of_object, _make_object),
}
"""Containers, members of enumerations, and objects of all other classes."""
