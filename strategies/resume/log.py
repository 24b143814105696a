"""The lines of a run's rounds beside its checkpoints, which so stay small however long it runs."""

import os
from collections.abc import Iterable
from errno import EIO
from hashlib import sha256
from pathlib import Path

from pncs_flower.files import naming

__all__ = ["RoundLog"]


class RoundLog:
    """A file that lines are only ever added to; what counts is what a checkpoint says of it.

    A checkpoint notes how many bytes are its own, and their checksum. What comes after them is of
    a round that was not saved, and is overwritten.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._sum = self._new = sha256()

    def append(self, lines: Iterable[str]) -> tuple[int, str]:
        """Add lines, and return the bytes and the checksum that there are then.

        They count once `keep` is called.

        Raises
        ------
        OSError
            If they cannot be written, on a full disk for instance.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        with naming(self._path), self._path.open("ab") as file:
            if file.seek(0, os.SEEK_END) < self._size:
                raise OSError(EIO, "somebody has cut it off since", str(self._path))
            file.truncate(self._size)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._new = self._sum.copy()
        self._new.update(data)
        return self._size + len(data), self._new.hexdigest()

    def keep(self, size: int) -> None:
        """Have the lines count that were added last, now that a checkpoint says so."""
        self._size, self._sum = size, self._new

    def read(self, size: int, checksum: str) -> list[str]:
        """Return the lines that a checkpoint says are its own, and go on after them.

        Raises
        ------
        ValueError
            If they are not as they were written.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(size)
        except OSError as error:
            raise ValueError(f"{self._path.name} cannot be read: {error.strerror}") from None
        found = sha256(data)
        if len(data) != size or found.hexdigest() != checksum:
            raise ValueError(f"{self._path.name} beside it is damaged or cut off")
        self._size, self._sum = size, found
        return data.decode().splitlines()
