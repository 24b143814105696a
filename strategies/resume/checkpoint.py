"""A folder that a killed run is taken up from: atomic, checksummed, and free of pickle."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.common import log

from pncs_flower.files import PARTIAL, held, write_whole

from .log import RoundLog

__all__ = ["Checkpoint", "CheckpointFolder"]

_FORMAT = "pncs-checkpoint 6"
_KEPT = 2
_PATTERN = "round-*.checkpoint"
_MANIFEST = "manifest"
_LOG = "rounds.log"


class Checkpoint(NamedTuple):
    """What is saved of a run after a round.

    Attributes
    ----------
    about : dict
        What is known before the state is read, as JSON.
    state : dict
        The state, as an `Encoder` wrote it.
    arrays : dict of str to np.ndarray
        Its arrays.
    lines : list of str
        The lines of rounds: when it is written, those since the one before; when it is read, all.
    """

    about: dict[str, Any]
    state: dict[str, Any]
    arrays: dict[str, np.ndarray]
    lines: list[str]


class CheckpointFolder:
    """Keeps the state after each of the last two rounds in a folder, and a line for every round.

    A checkpoint is one line of text (format, version, SHA-256 of the rest) and a NumPy archive
    (npz) of arrays and of the JSON that says what they are. It appears under its name only when it
    is whole and on disk. The lines are in a file of their own, see `RoundLog`.

    Parameters
    ----------
    folder : str or Path
        Made if it does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._log = RoundLog(self._folder / _LOG)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make sure that the folder can be written, and by nobody else meanwhile.

        Raises
        ------
        ValueError
            If it cannot, or another start has it.
        """
        probe = self._folder / f"writable{PARTIAL}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"checkpoint is {str(self._folder)!r}, where nothing can be written: "
                f"{error.strerror}. Give the path of a folder"
            ) from None
        with held(self._folder):
            for left in self._folder.glob(f"round-*{PARTIAL}"):
                left.unlink(missing_ok=True)
            yield

    def save(self, round_number: int, checkpoint: Checkpoint) -> None:
        """Write the state after a round, and remove all but the last two.

        Raises
        ------
        OSError
            If it cannot be written, on a full disk for instance. The files there stay as they are.
        """
        size, checksum = self._log.append(checkpoint.lines)
        about = {**checkpoint.about, "log": [size, checksum]}
        manifest = json.dumps({"about": about, "state": checkpoint.state}).encode()
        archive = io.BytesIO()
        entries: dict[str, Any] = {
            _MANIFEST: np.frombuffer(manifest, np.uint8),
            **checkpoint.arrays,
        }
        np.savez(archive, allow_pickle=False, **entries)
        body = archive.getvalue()
        head = f"{_FORMAT} {sha256(body).hexdigest()}\n".encode()
        write_whole(self._folder / f"round-{round_number:08d}.checkpoint", head + body)
        self._log.keep(size)
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; None if there is none at all.

        Raises
        ------
        ValueError
            If there are checkpoints, but all of them are damaged, or of another release.
        """
        paths = self._files()[::-1]
        problems = []
        for path in paths:
            try:
                found = self._read(path)
            except (OSError, ValueError) as error:
                problems.append(f"{path.name}: {error}")
                log(WARNING, "Checkpoint %s cannot be used: %s", path, error)
                continue
            if problems:
                log(WARNING, "Going on from %s, the one before.", path)
            return found
        if problems:
            raise ValueError(
                f"no checkpoint in {self._folder} can be used ({'; '.join(problems)}). Remove that "
                "folder to start from the first round"
            )
        return None

    def _read(self, path: Path) -> Checkpoint:
        head, _, body = path.read_bytes().partition(b"\n")
        if head.rpartition(b" ")[0] != _FORMAT.encode():
            raise ValueError(
                f"not a file of the format {_FORMAT!r}: damaged, or of another release of "
                "pncs-flower, which can still read it"
            )
        if sha256(body).hexdigest().encode() != head.rpartition(b" ")[2]:
            raise ValueError("damaged or cut off: its checksum is wrong")
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        manifest = json.loads(arrays.pop(_MANIFEST).tobytes())
        lines = self._log.read(*manifest["about"]["log"])
        return Checkpoint(manifest["about"], manifest["state"], arrays, lines)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(_PATTERN) if path.is_file())
