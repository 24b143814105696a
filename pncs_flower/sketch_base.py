"""What every sketch offers, and what those share whose numbers are a short vector."""

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from pncs_flower.forms import Form
from pncs_flower.similarity import pairwise_cosine
from pncs_flower.wire import WIRES, Wire, pack, packed_bytes, unpack

__all__ = ["Sketch", "VectorSketch"]


@runtime_checkable
class Sketch(Protocol):
    """What a sketch must offer. A layer smaller than its sketch is sent as it is."""

    @property
    def spec(self) -> str:
        """The text that `parse_sketch` turns into this sketch."""

    def encode(self, values: np.ndarray, *, seed: int, round: int, layer: str) -> np.ndarray:
        """Return the sketch of a layer in wire form (client side).

        Parameters
        ----------
        values : np.ndarray
            Shape (d,), real: the layer's gradient or update.
        seed : int
            Seed of the run.
        round : int
            Round of the run.
        layer : str
            Name of the layer.

        Returns
        -------
        np.ndarray
            One-dimensional, `num_bytes` bytes.

        Raises
        ------
        ValueError
            If ``values`` is not one-dimensional.
        """

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

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes on the wire for a layer of ``num_values`` values, without framing."""

    @property
    def is_linear(self) -> bool:
        """Whether the sketch of a sum is the sum of the sketches, on the same coordinates."""

    @property
    def same_in_every_round(self) -> bool:
        """Whether sketches of different rounds may be compared and added up."""

    def check_order(self, p: float) -> None:
        """Raise ValueError, with the remedy, if the sketch does not keep cos_p."""

    def pairwise_cosine(self, rows: np.ndarray, p: float = 4, form: Form = "squared") -> np.ndarray:
        """Return the similarities of decoded sketches: shape (K, r) to (K, K), float64."""


class VectorSketch:
    """All of a sketch but the drawing; unless it says otherwise, a short vector of like cos_p."""

    name: ClassVar[str]
    wire: Wire
    is_linear: ClassVar[bool] = True
    same_in_every_round: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self._limit is not None and (type(self._limit) is not int or self._limit < 1):
            raise ValueError(f"size of the sketch is {self._limit!r}, want 1 or more numbers")
        if self.wire not in WIRES:
            raise ValueError(f"wire is {self.wire!r}, want one of {', '.join(WIRES)}")

    @property
    def spec(self) -> str:
        """As `Sketch.spec`."""
        return self.name + self._size + ("" if self.wire == "float32" else f"@{self.wire}")

    def encode(self, values: np.ndarray, *, seed: int, round: int, layer: str) -> np.ndarray:
        """As `Sketch.encode`."""
        if values.ndim != 1:
            raise ValueError(f"values of shape {values.shape}, want one dimension: flatten them")
        if self._count(values.size) < values.size:
            values = self._draw(values, seed, round, layer)
        return pack(values, self.wire)

    def decode(self, wire: np.ndarray, num_values: int) -> np.ndarray:
        """As `Sketch.decode`."""
        return unpack(wire, self._count(num_values), self.wire)

    def num_bytes(self, num_values: int) -> int:
        """As `Sketch.num_bytes`."""
        return packed_bytes(self._count(num_values), self.wire)

    def check_order(self, p: float) -> None:
        """As `Sketch.check_order`; accepts every order unless the sketch says otherwise."""

    def pairwise_cosine(self, rows: np.ndarray, p: float = 4, form: Form = "squared") -> np.ndarray:
        """As `Sketch.pairwise_cosine`."""
        self.check_order(p)
        return np.asarray(pairwise_cosine(rows, p, form))

    @property
    def _size(self) -> str:
        """The size as it stands in the text."""
        return "" if self._limit is None else f":{self._limit}"

    @property
    def _limit(self) -> int | None:
        """How many numbers at most; None for as many as the layer has."""
        return None

    def _count(self, num_values: int) -> int:
        return num_values if self._limit is None else min(self._limit, num_values)

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        """Return `_limit` numbers for a layer that has more."""
        raise NotImplementedError
