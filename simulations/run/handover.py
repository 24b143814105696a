"""Records from process to process: what is small as JSON, arrays through files in memory."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = ArrayRecord | ConfigRecord | MetricRecord
Place = tuple[int, int]
"""Where an array's bytes are in a file: the first of them, and how many."""


class MemoryFile:
    """A file in memory without a name, which is gone as soon as nobody has it open."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("pncs") if descriptor is None else descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    def write(self, parts: Iterable[bytes]) -> None:
        """Write parts one after the other, from the start of the file."""
        at = 0
        for part in parts:
            rest = memoryview(part)
            while rest:  # the kernel writes 2 GiB at most at once
                written = os.pwrite(self.descriptor, rest, at)
                at, rest = at + written, rest[written:]

    def read(self, place: Place) -> bytes:
        """Return the bytes at a place."""
        start, size = place
        found = os.pread(self.descriptor, size, start)
        while len(found) < size:
            found += os.pread(self.descriptor, size - len(found), start + len(found))
        return found


class StoredArray(Array):
    """An array whose bytes stay in a file until somebody wants them."""

    # A client that is asked to train has no use for the update that it has kept: it forgets it.

    def __init__(self, about: list[Any], file: MemoryFile, place: Place) -> None:
        dtype, shape, stype = about
        self.__dict__.update(dtype=dtype, shape=tuple(shape), stype=stype, file=file, place=place)

    def __getattr__(self, name: str) -> Any:
        """Read the bytes when they are first asked for: then this is an array like any other."""
        if name != "data":
            raise AttributeError(name)
        data = self.file.read(self.place)
        del self.file, self.place
        self.__class__ = Array  # type: ignore[assignment]
        self.data = data
        return data

    def __eq__(self, other: object) -> bool:
        _ = self.data
        return self == other

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied as an array like any other."""
        return Array, (self.dtype, self.shape, self.stype, self.data)


class Parts:
    """The bytes of arrays, gathered to be written to a file one after the other."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self._size = 0

    def add(self, array: Array) -> Place:
        """Add an array, and return its place."""
        place = self._size, len(array.data)
        self.data.append(array.data)
        self._size += len(array.data)
        return place


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
        record = ArrayRecord()
        for name, each in said.items():  # a record that is made of arrays reads and copies them
            record[name] = array(*each)
        return record
    is_metrics, values = said
    kind = MetricRecord if is_metrics else ConfigRecord
    return kind({name: _meant(value) for name, value in values.items()})


def _said(value: Any) -> Any:
    """Return a value as JSON has it, which knows no bytes."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_said(each) for each in value] if isinstance(value, list) else value


def _meant(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return [_meant(each) for each in value] if isinstance(value, list) else value


def store(state: RecordDict) -> tuple[dict[str, Any], MemoryFile | None]:
    """Return what is to be said of records, and the file of their arrays, if there are any."""
    arrays = [a for record in state.values() for a in record.values() if isinstance(a, Array)]
    stored = [array for array in arrays if isinstance(array, StoredArray)]
    file = stored[0].file if stored else None
    if len(stored) == len(arrays) and all(array.file is file for array in stored):
        places = {id(array): array.place for array in stored}  # as they are
    else:
        parts, file = Parts(), MemoryFile()
        places = {id(array): parts.add(array) for array in arrays}
        file.write(parts.data)
    return {
        name: describe(record, lambda array: places[id(array)]) for name, record in state.items()
    }, file


def recall(said: Mapping[str, Any], file: MemoryFile | None) -> RecordDict:
    """Return the records that `store` has stored; their arrays are read when they are used."""

    def array(about: list[Any], place: Place) -> Array:
        assert file is not None
        return StoredArray(about, file, place)

    return RecordDict({name: restore(each, array) for name, each in said.items()})
