"""Records from process to process: what is small as JSON, arrays through files in memory."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from pncs_flower.clients.stored import NamelessFile, Parts, Place, StoredArray, is_much
from pncs_flower.messages.records import make_array, make_record

Record = ArrayRecord | ConfigRecord | MetricRecord


def describe(record: Record, place: Callable[[Array], Any]) -> Any:
    """Return what is to be said of a record in JSON, with the place of each array."""
    if isinstance(record, ArrayRecord):
        return {
            name: [[array.dtype, list(array.shape), array.stype], place(array)]
            for name, array in record.items()
        }
    return [isinstance(record, MetricRecord), {name: _said(v) for name, v in record.items()}]


def restore(said: Any, array: Callable[[list[Any], Any], Array]) -> Record:
    """Make a record of what `describe` has said; ``array(about, place)`` makes the arrays."""
    if isinstance(said, dict):
        # One that Flower makes of arrays reads and copies them.
        return make_record(ArrayRecord, {name: array(*each) for name, each in said.items()})
    is_metrics, values = said
    kind: type[Record] = MetricRecord if is_metrics else ConfigRecord
    return make_record(kind, {name: _meant(value) for name, value in values.items()})


def read_whole(about: list[Any], file: NamelessFile, place: Place) -> Array:
    """Return an array that `describe` has described, and whose bytes are in a file."""
    dtype, shape, stype = about
    return make_array(dtype, tuple(shape), stype, file.read(place))


def _said(value: Any) -> Any:
    """Return a value as JSON has it, which knows no bytes."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_said(each) for each in value] if isinstance(value, list) else value


def _meant(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_meant(each) for each in value] if isinstance(value, list) else value


def store(state: RecordDict, num_clients: int) -> tuple[dict[str, Any], NamelessFile | None]:
    """Return what is to be said of records, and the file of their arrays, if there are any."""
    arrays = [a for record in state.values() for a in record.values() if isinstance(a, Array)]
    stored = [array for array in arrays if isinstance(array, StoredArray)]
    file = stored[0].file if stored else None
    if len(stored) == len(arrays) and all(array.file is file for array in stored):
        places = {id(array): array.place for array in stored}  # as they are
    else:
        parts = Parts()
        places = {id(array): parts.add(array) for array in arrays}
        file = NamelessFile.holding(parts.data, on_disk=is_much(parts.size, num_clients))
    return {
        name: describe(record, lambda array: places[id(array)]) for name, record in state.items()
    }, file


def recall(said: Mapping[str, Any], file: NamelessFile | None) -> RecordDict:
    """Return the records that `store` has stored; their arrays are read when they are used."""

    def array(about: list[Any], place: Place) -> Array:
        assert file is not None
        return StoredArray(about, file, place)

    return make_record(RecordDict, {name: restore(each, array) for name, each in said.items()})
