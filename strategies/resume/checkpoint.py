"""A folder that a killed run is taken up from: atomic, checksummed, and free of pickle."""

import io
import json
import os
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from errno import EIO
from hashlib import sha256
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
from flwr.common import log

from pncs_flower.files import PARTIAL, held, naming, write_whole

from ..kept_arrays import FOLDER, KeptArray

_FORMAT = "pncs-checkpoint 11"
_MANIFEST = "manifest"


class Checkpoint(NamedTuple):
    """What is saved of a run after a round."""

    manifest: dict[str, Any]  # what is not in arrays, as JSON
    arrays: dict[str, np.ndarray]
    lines: list[str]  # of rounds: all when it is read, those since the last one when it is written
    files: Set[KeptArray] = frozenset()  # that the manifest refers to


class CheckpointFolder:
    """Keeps the state after each of the last two rounds in a folder, and a line for every round."""

    # A checkpoint is one line of text (format, version, SHA-256 of the rest) and a NumPy archive
    # (npz) of arrays and of the JSON that says what they are. It appears under its name only when
    # it is whole and on disk. The lines are in a file of their own, so that a checkpoint stays
    # small however long the run is: it notes how many bytes of it are its own, and their
    # checksum. What comes after them is of a round that was not saved, and is overwritten.
    # Large arrays that stay for many rounds are in files of their own, which both checkpoints may
    # refer to: one whose files are not all there cannot be used. Files of neither are removed.

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        self._lines = self.path / "rounds.log"
        # Of the newest checkpoint: the lines that it says are its own, and the files that it needs.
        self._size, self._sum = 0, sha256()
        self._files: Set[KeptArray] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make sure that the folder can be written, and by nobody else meanwhile."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=self.path).close()
        except OSError as error:
            raise ValueError(
                f"checkpoint is {str(self.path)!r}, where nothing can be written: "
                f"{error.strerror}. Give the path of a folder"
            ) from None
        with held(self.path):
            for left in self.path.glob(f"round-*{PARTIAL}"):
                left.unlink(missing_ok=True)
            yield

    def save(self, round_number: int, checkpoint: Checkpoint) -> None:
        """Write the state after a round; if that raises OSError, the files stay as they are."""
        try:
            self._save(round_number, checkpoint)
        except OSError:
            with suppress(OSError):  # lines without a checkpoint look like a run that has lost it
                if self._lines.stat().st_size > self._size:
                    os.truncate(self._lines, self._size)
            raise

    def _save(self, round_number: int, checkpoint: Checkpoint) -> None:
        added = self._append(checkpoint.lines)
        size, total = self._size + len(added), self._sum.copy()
        total.update(added)
        files, before = checkpoint.files, self._files
        about = {
            "log": [size, total.hexdigest()],
            "files": sorted(files),
            "files before": sorted(before),
        }
        manifest = json.dumps({**checkpoint.manifest, **about}).encode()
        archive = io.BytesIO()
        entries: dict[str, Any] = checkpoint.arrays | {_MANIFEST: np.frombuffer(manifest, np.uint8)}
        np.savez(archive, allow_pickle=False, **entries)
        body = archive.getvalue()
        head = f"{_FORMAT} {sha256(body).hexdigest()}\n".encode()
        write_whole(self.path / f"round-{round_number:08d}.checkpoint", head + body)
        self._size, self._sum, self._files = size, total, files
        for old in self._checkpoints()[:-2]:
            old.unlink(missing_ok=True)
        self._remove_files(keep=files | before)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; None if there is none at all."""
        found, problems = self._newest()
        if found is not None:
            if problems:
                log(WARNING, "Going on from the one before, as of %s.", "; ".join(problems))
            self._files = found.files
            self._remove_files(keep=found.files | _kept(found.manifest["files before"]))
            return found
        if problems:
            raise ValueError(
                f"no checkpoint in {self.path} can be used ({'; '.join(problems)}). Remove that "
                "folder to start from the first round"
            )
        self.is_begun()
        self._remove_files(keep=set())
        return None

    def damaged(self) -> list[str]:
        """Return the newer checkpoints than the one that can be used, if there is one, and why."""
        found, problems = self._newest()
        return problems if found else []

    def is_begun(self) -> bool:
        """Tell whether there is a checkpoint, or raise ValueError if there is none any more."""
        if self._checkpoints():
            return True
        num_lines = self._lines.read_bytes().count(b"\n") if self._lines.is_file() else 0
        if num_lines > 1:  # one may be of the first round, which was still being saved
            raise ValueError(
                f"{self._lines} has {num_lines} rounds, but there is no round-*.checkpoint beside "
                "it any more: put these files back. Remove that folder to start from the first "
                "round"
            )
        return False

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self.path.glob("round-*.checkpoint") if path.is_file())

    def _remove_files(self, keep: Set[KeptArray]) -> None:
        """Remove the files that no checkpoint refers to."""
        names = {kept.name for kept in keep}
        for file in (self.path / FOLDER).glob(f"{'[0-9a-f]' * 32}.npy*"):
            if file.name not in names:
                with suppress(OSError):  # it is tried again after the next round
                    file.unlink()

    def _newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that is whole, and what is wrong with newer ones."""
        problems: list[str] = []
        for path in reversed(self._checkpoints()):
            try:
                return self._read(path), problems
            except (OSError, ValueError) as error:
                problems.append(f"{path.name}: {error}")
        return None, problems

    def _read(self, path: Path) -> Checkpoint:
        head, _, body = path.read_bytes().partition(b"\n")
        name, _, checksum = head.rpartition(b" ")
        if name != _FORMAT.encode():
            raise ValueError(
                f"not a file of the format {_FORMAT!r}: it is damaged, or of another release of "
                "pncs-flower, and then that release can read it"
            )
        if sha256(body).hexdigest().encode() != checksum:
            raise ValueError("damaged or cut off: its checksum is wrong")
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        manifest = json.loads(arrays.pop(_MANIFEST).tobytes())
        files = _kept(manifest["files"])
        for kept in files:
            kept.check(self.path / FOLDER)
        return Checkpoint(manifest, arrays, self._read_lines(*manifest["log"]), files)

    def _append(self, lines: Iterable[str]) -> bytes:
        """Add lines of rounds, which count once a checkpoint says so, and return them as bytes."""
        added = "".join(f"{line}\n" for line in lines).encode()
        with naming(self._lines), self._lines.open("ab") as file:
            if file.seek(0, os.SEEK_END) < self._size:
                raise OSError(EIO, "somebody has cut it off since", str(self._lines))
            file.truncate(self._size)
            file.write(added)
            file.flush()
            os.fsync(file.fileno())
        return added

    def _read_lines(self, size: int, checksum: str) -> list[str]:
        """Return the lines that a checkpoint says are its own, and go on after them."""
        try:
            with self._lines.open("rb") as file:
                data = file.read(size)
        except OSError as error:
            raise ValueError(f"{self._lines.name} cannot be read: {error.strerror}") from None
        total = sha256(data)
        if len(data) != size or total.hexdigest() != checksum:
            raise ValueError(f"{self._lines.name} beside it is damaged or cut off")
        self._size, self._sum = size, total
        return data.decode().splitlines()


def _kept(found: Iterable[list[str]]) -> set[KeptArray]:
    """Return what a manifest says of files."""
    return {KeptArray(*parts) for parts in found}
