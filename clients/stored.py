"""Arrays whose bytes are in a file without a name, in memory or on disk, until somebody wants them.

A simulation holds what all its clients keep. Up to `IN_MEMORY` bytes of it are in memory, each
client having its share, and what is more is on disk.
"""

import contextlib
import os
from collections.abc import Iterable
from functools import cache
from tempfile import TemporaryFile
from typing import Any, Self

from flwr.app import Array, ArrayRecord, RecordDict

from pncs_flower.messages.records import of_kind

IN_MEMORY = 64_000_000
Place = tuple[int, int]
"""Where an array's bytes are in a file: the first of them, and how many."""


class NamelessFile:
    """A file without a name, which is gone as soon as nobody has it open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)

    @classmethod
    def in_memory(cls) -> Self:
        """Return a file in memory."""
        return cls(os.memfd_create("pncs"))

    @classmethod
    def holding(cls, parts: list[bytes], *, on_disk: bool = False) -> Self:
        """Return a file with parts one after the other; without room on disk, in memory."""
        if on_disk:
            with contextlib.suppress(OSError):
                allow_many_files()
                with TemporaryFile() as file:
                    found = cls(os.dup(file.fileno()))
                found.write(parts)
                return found
        found = cls.in_memory()
        found.write(parts)
        return found

    def write(self, parts: Iterable[bytes], at: int = 0) -> int:
        """Write parts one after the other from a place on, and return where they end."""
        for part in parts:
            rest = memoryview(part)
            while rest:  # the kernel writes 2 GiB at most at once
                written = os.pwrite(self.descriptor, rest, at)
                at, rest = at + written, rest[written:]
        return at

    def read(self, place: Place) -> bytes:
        """Return the bytes at a place."""
        start, size = place
        found = os.pread(self.descriptor, size, start)
        while len(found) < size:
            found += os.pread(self.descriptor, size - len(found), start + len(found))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process, as a client's state does with Ray, on disk there too."""
        return _on_disk, (self.read((0, os.fstat(self.descriptor).st_size)),)


def _on_disk(content: bytes) -> NamelessFile:
    return NamelessFile.holding([content], on_disk=True)


@cache
def allow_many_files() -> int:
    """Let this process have as many files open as the system allows, and return how many."""
    import resource  # which Windows has not

    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class StoredArray(Array):
    """An array whose bytes stay in a file until somebody wants them."""

    # A client that is asked to train has no use for the update that it has kept: it forgets it.

    def __init__(self, about: list[Any], file: NamelessFile, place: Place) -> None:
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
        """Stay in a file, also in another process."""
        return StoredArray, ([self.dtype, self.shape, self.stype], self.file, self.place)


class Parts:
    """The bytes of arrays, gathered to be written to a file one after the other."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.size = 0

    def add(self, array: Array) -> Place:
        """Add an array, and return its place."""
        place = self.size, len(array.data)
        self.data.append(array.data)
        self.size += len(array.data)
        return place


def is_much(size: int, num_clients: int) -> bool:
    """Tell whether so many bytes are more than one client's share of memory."""
    return size * num_clients > IN_MEMORY


def with_arrays_stored(records: RecordDict, num_clients: int) -> RecordDict:
    """Return records whose arrays are on disk (Linux), or these if they are small."""
    parts, given = Parts(), of_kind(records, ArrayRecord)
    places = {
        name: {key: parts.add(array) for key, array in record.items()}
        for name, record in given.items()
    }
    if not hasattr(os, "memfd_create") or not is_much(parts.size, num_clients):  # not on Linux
        return records
    file = NamelessFile.holding(parts.data, on_disk=True)
    # Each client that keeps has one open, and descriptors are given out from the lowest on.
    if file.descriptor > allow_many_files() // 2:  # others need some, too
        return records
    stored = RecordDict(dict(records))
    for name, of_record in places.items():
        stored[name] = record = ArrayRecord()
        for key, place in of_record.items():
            array = given[name][key]
            about = [array.dtype, array.shape, array.stype]
            record[key] = StoredArray(about, file, place)
    return stored
