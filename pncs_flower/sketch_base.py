"""What every sketch offers and shares; unless it says otherwise, a short vector of like cos_p."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pncs_flower.forms import Form
from pncs_flower.similarity import pairwise_cosine
from pncs_flower.wire import WIRES, Wire, pack, packed_bytes, unpack

__all__ = ["SizedSketch", "Sketch"]


class Sketch:
    """A small summary of a layer; a layer smaller than its sketch is sent as it is.

    Attributes
    ----------
    name : str
        How the text begins that `parse_sketch` reads.
    wire : {"float32", "float16", "int8"}
        Number format on the wire.
    is_linear : bool
        Whether the sketch of a sum is the sum of the sketches, on the same coordinates.
    same_in_every_round : bool
        Whether sketches of different rounds may be compared and added up.

    Raises
    ------
    ValueError
        If there is no such number format, or the size is not one.
    """

    name: ClassVar[str]
    wire: Wire
    is_linear: ClassVar[bool] = True
    same_in_every_round: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise ValueError(f"wire is {self.wire!r}, want one of {', '.join(WIRES)}")

    @property
    def spec(self) -> str:
        """The text that `parse_sketch` turns into this sketch."""
        return self.name + self._size + ("" if self.wire == "float32" else f"@{self.wire}")

    def encode(self, values: np.ndarray, *, seed: int, round: int, layer: str) -> np.ndarray:
        """Return the sketch of a layer in wire form (client side).

        Parameters
        ----------
        values : np.ndarray
            Shape (d,), real: the layer's gradient or update.
        seed, round, layer : int, int, str
            Seed and round of the run, and the name of the layer.

        Returns
        -------
        np.ndarray
            One-dimensional, `num_bytes` bytes.

        Raises
        ------
        ValueError
            If ``values`` is not one-dimensional.
        """
        if values.ndim != 1:
            raise ValueError(f"values of shape {values.shape}, want one dimension: flatten them")
        if self._count(values.size) < values.size:
            values = self._draw(values, seed, round, layer)
        return pack(values, self.wire)

    def decode(self, wire: np.ndarray, num_values: int) -> np.ndarray:
        """Check a sketch that came over the wire and return its numbers (server side).

        Parameters
        ----------
        wire : np.ndarray
            What `encode` returned, or what a stranger claims to be that.
        num_values : int
            Number of values of the layer (d).

        Returns
        -------
        np.ndarray
            Shape (r,), float32, finite: one row for `pairwise_cosine`.

        Raises
        ------
        ValueError
            If dtype, shape or a value is not what `encode` makes of finite values.
        """
        return unpack(wire, self._count(num_values), self.wire)

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes on the wire for a layer of ``num_values`` values, without framing."""
        return packed_bytes(self._count(num_values), self.wire)

    def check_order(self, p: float) -> None:
        """Raise ValueError, with the remedy, if the sketch does not keep cos_p."""

    def pairwise_cosine(self, rows: np.ndarray, p: float = 4, form: Form = "squared") -> np.ndarray:
        """Return the similarities of decoded sketches: shape (K, r) to (K, K), float64."""
        self.check_order(p)
        return np.asarray(pairwise_cosine(rows, p, form))

    @property
    def _size(self) -> str:
        """The size as it stands in the text."""
        return ""

    def _count(self, num_values: int) -> int:
        """Return how many numbers stand for a layer's values."""
        return num_values

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        """Return `_count` numbers for a layer that has more."""
        raise NotImplementedError


@dataclass(frozen=True)
class SizedSketch(Sketch):
    """A sketch of ``size`` numbers of any layer that has more."""

    size: int
    wire: Wire = "float32"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"size of the sketch is {self.size!r}, want 1 or more numbers")
        super().__post_init__()

    @property
    def _size(self) -> str:
        return f":{self.size}"

    def _count(self, num_values: int) -> int:
        return min(self.size, num_values)
