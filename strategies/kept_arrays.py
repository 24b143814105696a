"""Arrays in files of their own, beside the checkpoints that refer to them."""

import hashlib
import io
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pncs_flower.files import write_whole

FOLDER = "updates"
"""Where they are, in the folder of a checkpoint."""

_blake2b = partial(hashlib.blake2b, digest_size=16)


class KeptArray(NamedTuple):
    """An array in a file that is written once, and named after the checksum of its content.

    A state that holds it has the checkpoint keep the file, as long as one refers to it.
    """

    checksum: str

    @classmethod
    def write(cls, folder: Path, values: np.ndarray) -> "KeptArray":
        """Write an array, whole and on disk; a full disk is an OSError."""
        content = io.BytesIO()
        np.save(content, values, allow_pickle=False)
        kept = cls(_blake2b(content.getbuffer()).hexdigest())
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / kept.name, content.getvalue())
        return kept

    @property
    def name(self) -> str:
        """Of the file."""
        return f"{self.checksum}.npy"

    def map(self, folder: Path) -> np.ndarray:
        """Return the array, which is read when it is used, and cannot be changed."""
        values: np.ndarray = np.load(folder / self.name, mmap_mode="r", allow_pickle=False)
        return np.asarray(values)

    def check(self, folder: Path) -> None:
        """Raise ValueError if the file is not there, or damaged."""
        try:
            with (folder / self.name).open("rb") as file:
                found = hashlib.file_digest(file, _blake2b).hexdigest()
        except OSError as error:
            raise ValueError(f"{FOLDER}/{self.name} cannot be read: {error.strerror}") from None
        if found != self.checksum:
            raise ValueError(f"{FOLDER}/{self.name} is damaged or cut off")
