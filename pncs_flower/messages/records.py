"""Flower's records without what they cost: for each message of a round, that of a small model."""

from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)

_Record = TypeVar("_Record", ArrayRecord, ConfigRecord, MetricRecord)
_Any = TypeVar("_Any", bound=ArrayRecord | ConfigRecord | MetricRecord | RecordDict)


def of_kind(records: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """Return the records of a kind by their names."""
    # Flower's properties for this make what can be written through, and check each entry twice;
    # and it refers to itself: the records stay in memory until the garbage is collected.
    # And isinstance of an abstract class asks who has been registered as one: nobody has.
    found: dict[str, Any] = {n: r for n, r in records.items() if kind in type(r).__mro__}
    return found


def own_copy(records: RecordDict) -> RecordDict:
    """Copy records, but not the arrays in them, whose bytes nobody can change."""
    copy = records.copy()
    own: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = vars(copy)["_data"]
    for name, record in own.items():  # each of which has been checked
        own[name] = mine = record.copy()
        if not isinstance(mine, ArrayRecord):
            lists = {key: [*value] for key, value in mine.items() if isinstance(value, list)}
            vars(mine)["_data"].update(lists)
    return copy


def make_record(kind: type[_Any], values: Mapping[str, Any]) -> _Any:
    """Make a record, or a dict of records, of entries that need no check."""
    record = kind()
    vars(record)["_data"].update(values)
    return record


def make_message(metadata: Metadata, said: RecordDict | Error) -> Message:
    """Make a message with metadata that are given, as only Flower's own keyword can."""
    name = "error" if isinstance(said, Error) else "content"
    return Message(**{name: said}, metadata=metadata)  # type: ignore[call-overload, no-any-return]


def make_array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    """Make an array of parts that need no check."""
    array = Array.__new__(Array)
    vars(array).update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array
