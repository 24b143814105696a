"""A folder that a killed run is taken up from: atomic, checksummed, and free of pickle."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import log

from pncs_flower.files import PARTIAL, write_whole

from .lock import hold_folder
from .log import RoundLog
from .snapshot import Decoder, Encoder

__all__ = ["Checkpoint", "CheckpointFolder"]

_FORMAT = "pncs-checkpoint 4"
_KEPT = 2
_PATTERN = "round-*.checkpoint"
_MANIFEST = "manifest"
_LOG = "rounds.log"


class Checkpoint:
    """A checkpoint that is whole.

    Attributes
    ----------
    about : dict
        What was said of it, as JSON.
    lines : list of str
        The lines of all rounds up to it.
    """

    def __init__(
        self, about: dict[str, Any], lines: list[str], node: Any, arrays: dict[str, np.ndarray]
    ) -> None:
        self.about = about
        self.lines = lines
        self._node = node
        self._arrays = arrays

    def state(self, outside: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the state, given what was taken to be outside when it was written.

        Raises
        ------
        ValueError
            If something that it needs is not there any more, such as a class.
        """
        state: dict[str, Any] = Decoder(self._arrays, outside).decode(self._node)
        return state


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
        lock = hold_folder(self._folder)
        try:
            if lock is not None:  # else another start may be writing them
                for left in self._folder.glob(f"round-*{PARTIAL}"):
                    left.unlink(missing_ok=True)
            yield
        finally:
            if lock is not None:
                lock.close()

    def save(
        self,
        round_number: int,
        about: Mapping[str, Any],
        lines: Sequence[str],
        state: Mapping[str, Any],
        outside: Mapping[int, str] | None = None,
    ) -> None:
        """Write the state after a round, and remove all but the last two.

        Parameters
        ----------
        round_number : int
            The round.
        about : mapping
            What is known before the state is read, as JSON.
        lines : sequence of str
            Those of the rounds since the last one that was saved.
        state : mapping
            The state.
        outside : mapping of int to str, optional (default: None)
            What of it is not written; see `Encoder`.

        Raises
        ------
        UnsavableError
            If the state holds something that could not be read back.
        OSError
            If it cannot be written, on a full disk for instance. The files there stay as they are.
        """
        encoder = Encoder(outside)
        node = encoder.encode(dict(state), "state")
        encoder.check()
        size, checksum = self._log.append(lines)
        manifest = {"about": {**about, "log": [size, checksum]}, "state": node}
        content = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
        archive = io.BytesIO()
        entries: dict[str, Any] = {_MANIFEST: content, **encoder.arrays}
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
        return Checkpoint(manifest["about"], lines, manifest["state"], arrays)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(_PATTERN) if path.is_file())
