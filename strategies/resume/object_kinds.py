"""Objects of users' classes in a checkpoint: attribute by attribute, without their constructors."""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any

from ..errors import UnsavableError

if TYPE_CHECKING:
    from .snapshot import Decoder, Encoder

__all__ = [
    "attributes",
    "fill_object",
    "get_factory",
    "new_object",
    "object_kind",
    "put_enum",
    "put_factory",
    "put_object",
    "read_enum",
    "read_fixed",
    "set_attribute",
]

_MAPPINGS = (OrderedDict, defaultdict, Counter, dict)
_MUTABLE = (*_MAPPINGS, deque, list, set)
# Of these, an object has its content from the moment that it is made.
_FIXED = (tuple, frozenset, str, int, float, complex, bytes)
_FACTORIES = (list, dict, set, tuple, int, float, str, bool, bytes, complex, deque, OrderedDict)
# Whose own ways of copying do nothing that matters: dataclasses with slots, networks.
_HARMLESS = ("dataclasses", "torch.nn.modules.module")
_POINTER = object.__basicsize__ // 2  # an object is a count and the address of its class
_USE = (
    "keep numbers, text, NumPy arrays or torch tensors, lists, dictionaries and the like of these, "
    "and objects of classes that have no more than such attributes"
)


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes by name, also those in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for name in _slots(type(value)):
        if hasattr(value, name):
            yield name, getattr(value, name)


def set_attribute(value: Any, name: str, to: Any) -> None:
    """Set an object's attribute, past whatever its class does when one is set."""
    own = getattr(value, "__dict__", None)
    if own is None or name in _slots(type(value)):
        object.__setattr__(value, name, to)
    else:
        own[name] = to


def put_object(encoder: "Encoder", value: Any, path: str) -> dict[str, Any]:
    """Write an object: its class by name, what it has of a class of Python's, its attributes.

    Raises
    ------
    UnsavableError
        If it could not be made again so.
    """
    kind = type(value)
    base = _base(kind)
    problem = _problem(kind, base)
    if problem:
        raise UnsavableError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: "
            f"{problem}. Nothing is pickled: {_USE}"
        )
    content: dict[str, Any] = {"class": [kind.__module__, kind.__qualname__]}
    if issubclass(base, _MAPPINGS):
        content["content"] = encoder.encode([list(entry) for entry in base.items(value)], path)
    elif base is not object:
        plain = (
            base(value) if base in (int, float, complex, str, bytes) else [*base.__iter__(value)]
        )
        content["content"] = encoder.encode(plain, path)
    if issubclass(base, defaultdict):
        content["factory"] = put_factory(encoder, value, path)
    if issubclass(base, deque):
        content["maxlen"] = value.maxlen
    content["attributes"] = [
        [name, encoder.encode(entry, f"{path}.{name}")] for name, entry in attributes(value)
    ]
    return content


def object_kind(value: Any) -> str:
    """Tell objects that may contain themselves from those whose content never changes."""
    return "fixed-object" if _base(type(value)) in _FIXED else "object"


def new_object(decoder: "Decoder", content: dict[str, Any]) -> Any:
    """Make an object of a class, without content and attributes.

    Raises
    ------
    ValueError
        If its class is not there, or is none that would be written.
    """
    kind, base = _checked(content)
    return base.__new__(kind)


def fill_object(decoder: "Decoder", value: Any, content: dict[str, Any]) -> None:
    """Give an object its content and attributes."""
    base = _base(type(value))
    entries = decoder.decode(content["content"]) if "content" in content else []
    if issubclass(base, defaultdict):
        defaultdict.__init__(value, get_factory(decoder, content["factory"]))
    if issubclass(base, deque):
        deque.__init__(value, entries, content["maxlen"])
    elif issubclass(base, _MAPPINGS):
        for key, entry in entries:
            base.__setitem__(value, key, entry)
    elif base is list:
        list.extend(value, entries)
    elif base is set:
        set.update(value, entries)
    _set_attributes(decoder, value, content)


def read_fixed(decoder: "Decoder", content: dict[str, Any]) -> Any:
    """Read an object whose content is there from the moment that it is made, such as a tuple's."""
    kind, base = _checked(content)
    value = base.__new__(kind, decoder.decode(content["content"]))
    _set_attributes(decoder, value, content)
    return value


def _checked(content: dict[str, Any]) -> tuple[type, Any]:
    name = ".".join(content["class"])
    kind = _find(*content["class"])
    if kind is None:
        raise ValueError(
            f"the class {name} of an object in the checkpoint is not there: import its module "
            "before the run starts"
        )
    base = _base(kind)
    if problem := _problem(kind, base):
        raise ValueError(f"the class {name} of an object in the checkpoint: {problem}")
    return kind, base


def _set_attributes(decoder: "Decoder", value: Any, content: dict[str, Any]) -> None:
    for name, node in content["attributes"]:
        set_attribute(value, name, decoder.decode(node))


def put_factory(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    """Write what a defaultdict makes its values with: a class of Python's own, by its name."""
    factory = value.default_factory
    named = next((kind.__name__ for kind in _FACTORIES if kind is factory), None)
    return [named, None if named else encoder.encode(factory, f"{path}.default_factory")]


def get_factory(decoder: "Decoder", content: list[Any]) -> Any:
    """Read that."""
    named = next((kind for kind in _FACTORIES if kind.__name__ == content[0]), None)
    return named or decoder.decode(content[1])


def put_enum(value: Any) -> Callable[["Encoder", Any, str], Any] | None:
    """Return how a member of an enumeration is written; None for what is none."""
    if not isinstance(value, Enum):
        return None

    def put(encoder: "Encoder", member: Any, path: str) -> list[Any]:
        kind = type(member)
        if _find(kind.__module__, kind.__qualname__) is not kind:
            raise UnsavableError(f"{path} is of {kind}, which cannot be found by its name")
        which = member.value if isinstance(member, Flag) else member.name
        return [kind.__module__, kind.__qualname__, which]

    return put


def read_enum(decoder: "Decoder", content: list[Any]) -> Any:
    """Read a member of an enumeration."""
    kind: Any = _find(*content[:2])
    if kind is None or not issubclass(kind, Enum):
        raise ValueError(f"the enumeration {'.'.join(content[:2])} is not there")
    return kind(content[2]) if issubclass(kind, Flag) else kind.__members__[content[2]]


def _find(module: str, name: str) -> type | None:
    """Return a class by its name. Nothing is imported: that would run what a file names."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _base(kind: type) -> Any:
    """Return the class of Python's own that holds an object's content."""
    return next((base for base in (*_MUTABLE, *_FIXED) if issubclass(kind, base)), object)


def _problem(kind: type, base: Any) -> str:
    """Return why an object of a class could not be made again from its attributes; else nothing."""
    if kind is object:
        return "it is nothing but itself"
    if _find(kind.__module__, kind.__qualname__) is not kind:
        return "the class cannot be found by its name, so it must stand outside of functions"
    for method in ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"):
        own = getattr(kind, method, None)
        made = getattr(own, "__module__", None) in _HARMLESS
        if own is not getattr(base, method, None) and not made:
            return f"its class has a {method} of its own"
    try:
        base.__new__(kind)
    except TypeError:
        return "it is not made of attributes"
    places = len(_slots(kind)) + bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__)
    if kind.__basicsize__ > base.__basicsize__ + places * _POINTER:
        return "there is more to it than attributes"
    return ""


def _slots(kind: type) -> list[str]:
    """Return the names of all slots of a class, as they are known outside of it."""
    names = []
    for owner in kind.__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            hidden = name.startswith("__") and not name.endswith("__")
            names.append(f"_{owner.__name__.lstrip('_')}{name}" if hidden else name)
    return names
