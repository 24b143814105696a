"""Sketches that stay as they came until they are read: as floats they are up to four times larger.

The server has one of each client that answers, and each may be a good part of the model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Packed:
    """The float32 numbers ``values * factor``, which are computed where they are read."""

    values: np.ndarray
    factor: float
    dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers, (r,)."""
        return self.values.shape

    def __getitem__(self, some: slice) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            exact: np.ndarray = np.multiply(self.values[some], self.factor, dtype=np.float64)
            return exact.astype(np.float32)


Row = np.ndarray | Packed
"""Numbers of one client, that can be read block by block."""


class ClientSketches(Mapping[str, np.ndarray]):
    """The sketches of one client by layer; what is packed is computed each time it is read."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self.rows = rows

    def __getitem__(self, layer: str) -> np.ndarray:
        values = self.rows[layer][:]
        values.flags.writeable = False  # who reads a row that is not packed shares it with others
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def row(sketches: Mapping[str, np.ndarray], layer: str) -> Row:
    """Return a client's sketch of a layer as it is, to be read block by block."""
    return sketches.rows[layer] if isinstance(sketches, ClientSketches) else sketches[layer]
