"""A folder that a killed run is taken up from: atomic, checksummed, and free of pickle."""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import log

from .lock import hold_folder
from .snapshot import decode, encode

__all__ = ["CheckpointFolder"]

_FORMAT = "pncs-checkpoint 3"
_KEPT = 2
_PATTERN = "round-*.checkpoint"
_MANIFEST = "manifest"


class CheckpointFolder:
    """Keeps the state of the last two rounds in a folder.

    A file is one line of text (format, version, SHA-256 of the rest) and a NumPy archive (npz) of
    arrays and of the JSON that says what they are. It appears under its name only when it is whole
    and on disk.

    Parameters
    ----------
    folder : str or Path
        Made if it does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make sure that the folder can be written, and by nobody else meanwhile.

        Raises
        ------
        ValueError
            If it cannot, or another start has it.
        """
        probe = self._folder / "writable.partial"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"checkpoint is {str(self._folder)!r}, where nothing can be written: "
                f"{error.strerror}. Give the path of a folder"
            ) from None
        lock = hold_folder(self._folder)
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def save(self, round_number: int, state: dict[str, Any]) -> None:
        """Write the state after a round, and remove all but the last two.

        Raises
        ------
        TypeError
            If the state holds something other than JSON values, arrays and Flower records.
        OSError
            If it cannot be written, on a full disk for instance. The files there stay as they are.
        """
        arrays: dict[str, np.ndarray] = {}
        manifest = json.dumps(encode(state, arrays)).encode()
        archive = io.BytesIO()
        entries: dict[str, Any] = {_MANIFEST: np.frombuffer(manifest, np.uint8), **arrays}
        np.savez(archive, allow_pickle=False, **entries)
        body = archive.getvalue()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"round-{round_number:08d}.checkpoint"
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(f"{_FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode())
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(self._folder)
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Return the newest state that is whole; None if there is none at all.

        Raises
        ------
        ValueError
            If there are checkpoints, but all of them are damaged, or written by a later release.
        """
        paths = self._files()[::-1]
        problems = []
        for path in paths:
            try:
                state = _read(path)
            except (OSError, ValueError) as error:
                problems.append(f"{path.name}: {error}")
                log(WARNING, "Checkpoint %s cannot be used: %s", path, error)
                continue
            if problems:
                log(WARNING, "Going on from %s, the one before.", path)
            return state
        if problems:
            raise ValueError(
                f"no checkpoint in {self._folder} can be used ({'; '.join(problems)}). Remove that "
                "folder to start from the first round"
            )
        return None

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(_PATTERN) if path.is_file())


def _read(path: Path) -> dict[str, Any]:
    head, _, body = path.read_bytes().partition(b"\n")
    if head.rpartition(b" ")[0] != _FORMAT.encode():
        raise ValueError(f"not a file of the format {_FORMAT!r}")
    if hashlib.sha256(body).hexdigest().encode() != head.rpartition(b" ")[2]:
        raise ValueError("damaged or cut off: its checksum is wrong")
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    state: dict[str, Any] = decode(json.loads(arrays[_MANIFEST].tobytes()), arrays)
    return state


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
