"""What pydantic refuses, told as this project tells errors: what was given, and what it must be."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from .choices import did_you_mean, nearest

T = TypeVar("T")


def within(
    *,
    above: float | None = None,
    least: float | None = None,
    below: float = math.inf,
    most: float | None = None,
) -> AfterValidator:
    """Return what refuses a number beyond its limits, naming all of them."""
    limits = {"above": above, "at least": least, "below": below, "at most": most}
    said = [f"{how} {limit:g}" for how, limit in limits.items() if limit not in (None, math.inf)]

    def check(value: float) -> float:
        if (
            value < below  # which no NaN is
            and (above is None or value > above)
            and (least is None or value >= least)
            and (most is None or value <= most)
        ):
            return value
        finite = isinstance(value, float) and below == math.inf and most is None
        raise ValueError(f"must be {' and '.join([*said, *['finite'] * finite])}")

    return AfterValidator(check)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable text")
    return text


Count = Annotated[StrictInt, within(least=1)]
Share = Annotated[StrictFloat, within(above=0, most=1)]
Text = Annotated[StrictStr, AfterValidator(_printable)]
Label = Annotated[StrictStr, Field(min_length=1), AfterValidator(_printable)]

# By pydantic's name for what is wrong; in braces what it says of it.
_WANTED = {
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "a table",
    "model_attributes_type": "a table",
    "string_too_short": "text of at least {min_length} character",
    "string_type": "text",
    "too_short": "a list of at least {min_length}",
    "tuple_type": "a list",
    "union_tag_invalid": "one of {expected_tags}",
    "union_tag_not_found": "a table with its kind",
}

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")

_LONGEST = 80
_QUOTED = re.compile("'([^']*)'")


@contextmanager
def in_plain_words(
    where: str = "", kind: Any = None, usual: Callable[[], Mapping[str, Any]] = dict
) -> Iterator[None]:
    """Say in one sentence what is wrong, after ``where``.

    ``kind`` is what was to be read; ``usual()`` has the defaults, of which that of a wrong number
    or truth value is told.
    """
    try:
        yield
    except ValidationError as error:
        raise ValueError(where + _sentence(error, kind) + _default(error, usual())) from None
    except ValueError as error:
        if not where:
            raise
        raise ValueError(f"{where}{error}") from error


@contextmanager
def naming_what_wants(where: str) -> Iterator[None]:
    """Say ``where`` first, of files that are not there: it is what wants them."""
    try:
        yield
    except FileNotFoundError as error:
        if not where or error.errno is not None:
            raise
        raise FileNotFoundError(f"{where}{error}") from None


def _sentence(error: ValidationError, kind: Any) -> str:
    errors = error.errors(include_url=False)
    first = errors[0]
    (place, _), given = _place(first["loc"], kind), first["input"]
    missing = [each["loc"] for each in errors if each["type"].startswith("missing")]
    told = [f"missing: {', '.join(_place(each, kind)[0] for each in missing)}"] if missing else []
    unknown = next((each["loc"] for each in errors if each["type"] in _UNKNOWN), None)
    if unknown and (missing or first["type"] in _UNKNOWN):  # one may be the other, misspelt
        beside = [str(each[-1]) for each in missing if each[:-1] == unknown[:-1]]
        hint = _hint(str(unknown[-1]), beside, _place(unknown[:-1], kind)[1])
        told.append(f"unknown key {_place(unknown, kind)[0]}: {hint}")
    if told:
        return "; ".join(told)
    about = first.get("ctx", {})
    if first["type"] == "value_error":
        text = str(about["error"])
        return f"{place} = {_shown(given)} {text}" if text.startswith("must ") else text
    if first["type"] not in _WANTED:
        return ": ".join(filter(None, (place, first["msg"])))
    if first["type"] == "union_tag_not_found" and (own := get_close_matches("kind", given, n=1)):
        return f"missing: {place}.kind; unknown key {place}.{own[0]}: did you mean 'kind'?"
    if first["type"] == "union_tag_invalid":
        place, given = f"{place}.kind", given["kind"]
    wanted, meant = _WANTED[first["type"]].format(**about), ""
    if first["type"].endswith("_type"):
        wanted += f", not {type(given).__name__}"
    elif isinstance(given, str):
        meant = did_you_mean(given, _QUOTED.findall(wanted))
    return f"{place} = {_shown(given)} must be {wanted}{meant}"


def _default(error: ValidationError, usual: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False)[0]["loc"]
    default = usual.get(str(first[0])) if first else None
    told = str(default).lower()  # a truth value as TOML has it
    return f"; the default is {told}" if isinstance(default, int | float) else ""


def _place(steps: Sequence[int | str], kind: Any) -> tuple[str, list[Any]]:
    """Return how a place is written, and the tables that it may be, if it is one."""
    text, tables = "", [kind] if is_dataclass(kind) else []
    for step in steps:
        # Of tables of several kinds, pydantic says which it is, though no key does.
        if of_kind := [each for each in tables if step in _kinds(each)]:
            tables = of_kind
            continue
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
        found = [hints[step] for each in tables if step in (hints := get_type_hints(each))]
        if found:  # else it is a key of a mapping, or a place in a list
            tables = [table for each in found for table in _tables(each)]
    return text.removeprefix("."), tables


def _shown(value: object) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _hint(key: str, missing: Sequence[str], tables: Sequence[Any]) -> str:
    """Say which key was meant, first of those that are missing there."""
    if near := get_close_matches(key, missing, n=1):
        return f"did you mean {near[0]!r}?"
    if len(tables) != 1:
        return "there is none of that name"
    for name, own in get_type_hints(tables[0]).items():
        if any(key in _keys(each) for each in _tables(own)):
            return f"did you mean {name}.{key}?"
    return nearest(key, _keys(tables[0]))


def _tables(kind: Any) -> list[Any]:
    """Return the dataclasses that a value of a kind may be, or may hold."""
    if is_dataclass(kind):
        return [kind]
    return [table for each in get_args(kind) for table in _tables(each)]


def _kinds(table: Any) -> tuple[Any, ...]:
    return get_args(get_type_hints(table).get("kind"))


def _keys(table: Any) -> list[str]:
    names = {name: own.alias or name for name, own in table.__pydantic_fields__.items()}
    return [names[each.name] for each in fields(table) if each.metadata.get("key", True)]


def read_description(kind: type[T], file: Path, maker: str) -> T:
    """Read the JSON file in which a command said what it made; names it if it is damaged."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except ValidationError:
        raise ValueError(
            f"{file} is damaged: give the command again that {maker}, which writes it anew"
        ) from None
