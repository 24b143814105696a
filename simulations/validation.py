"""What pydantic refuses, told as this project tells errors: what was given, and what it must be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field, StrictStr, TypeAdapter, ValidationError

from .choices import nearest

T = TypeVar("T")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable text")
    return text


Count = Annotated[int, Field(strict=True, ge=1)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Text = Annotated[StrictStr, AfterValidator(_printable)]
Label = Annotated[StrictStr, Field(min_length=1), AfterValidator(_printable)]

# By pydantic's name for what is wrong; in braces what it says of it.
_WANTED = {
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "dict_type": "a table",
    "finite_number": "finite",
    "float_type": "a number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_type": "a whole number",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "a table",
    "model_attributes_type": "a table",
    "string_too_short": "text of at least {min_length} character",
    "string_type": "text",
    "too_short": "a list of at least {min_length}",
    "tuple_type": "a list",
    "union_tag_invalid": "a table of one of the kinds {expected_tags}",
    "union_tag_not_found": "a table with its kind",
}

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")

_LONGEST = 80


@contextmanager
def in_plain_words(where: str = "", kind: Any = None) -> Iterator[None]:
    """Say in one sentence what is wrong, after ``where``; ``kind`` is what was to be read."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(where + _sentence(error, kind)) from None
    except ValueError as error:
        if not where:
            raise
        raise ValueError(f"{where}{error}") from error


def _sentence(error: ValidationError, kind: Any) -> str:
    errors = error.errors(include_url=False)
    missing = [_place(each["loc"]) for each in errors if each["type"].startswith("missing")]
    first = errors[0]
    place, given = _place(first["loc"]), first["input"]
    told = [f"missing: {', '.join(missing)}"] if missing else []
    unknown = next((each["loc"] for each in errors if each["type"] in _UNKNOWN), None)
    if unknown and (missing or first["type"] in _UNKNOWN):  # one may be the other, misspelt
        hint = _hint(str(unknown[-1]), kind, unknown[:-1])
        told.append(f"unknown key {_place(unknown)}: {hint}")
    if told:
        return "; ".join(told)
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        return f"{place} = {_shown(given)} {text}" if text.startswith("must ") else text
    if first["type"] not in _WANTED:
        return ": ".join(filter(None, (place, first["msg"])))
    wanted = _WANTED[first["type"]].format(**first.get("ctx", {}))
    if first["type"].endswith("_type"):
        wanted += f", not {type(given).__name__}"
    return f"{place} = {_shown(given)} must be {wanted}"


def _place(steps: Sequence[int | str]) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")


def _shown(value: object) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _hint(key: str, kind: Any, steps: Sequence[int | str]) -> str:
    for step in steps:
        own = get_type_hints(kind).get(str(step)) if is_dataclass(kind) else None
        if own is None:  # a key of a mapping, or a place in a list
            continue
        kind = _table(own)
    if not is_dataclass(kind):
        return "there is none of that name"
    for name, own in get_type_hints(kind).items():
        if key in _keys(_table(own)):
            return f"did you mean {name}.{key}?"
    return nearest(key, _keys(kind))


def _table(kind: Any) -> Any:
    """Return the dataclass that a value of a kind may be, if there is one."""
    return next((each for each in (kind, *get_args(kind)) if is_dataclass(each)), None)


def _keys(table: Any) -> list[str]:
    own = fields(table) if is_dataclass(table) else ()
    return [each.name for each in own if each.metadata.get("key", True)]


def read_description(kind: type[T], file: Path, maker: str) -> T:
    """Read the JSON file in which a command said what it made; names it if it is damaged."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except ValidationError:
        raise ValueError(
            f"{file} is damaged: give the command again that {maker}, which writes it anew"
        ) from None
