"""What every sketch offers and shares; unless it says otherwise, a short vector of like cos_p."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pncs_flower.similarity import Form, pairwise_cosine
from pncs_flower.sketches.packed import Row
from pncs_flower.sketches.wire import HEAD, WIRES, Wire, as_packed, pack, unpack

_LARGE = 4096  # numbers: of fewer, little is saved


class Sketch:
    """A small summary of a layer; a layer smaller than its sketch is sent as it is."""

    name: ClassVar[str]  # how the text begins that `parse_sketch` reads
    wire: Wire
    is_linear: ClassVar[bool] = True  # the sketch of a sum is the sum of the sketches
    same_in_every_round: ClassVar[bool] = True  # those of several rounds may be compared, added up
    orders: ClassVar[tuple[int, ...] | None] = None  # the p of which cos_p is kept; None: all

    def __post_init__(self) -> None:
        if self.wire not in WIRES:
            raise ValueError(f"wire is {self.wire!r}, want one of {', '.join(WIRES)}")

    @property
    def spec(self) -> str:
        """The text that `parse_sketch` turns into this sketch."""
        return self.name + self._size + ("" if self.wire == "float32" else f"@{self.wire}")

    def encode(self, values: np.ndarray, *, seed: int, round: int, layer: str) -> np.ndarray:
        """Return the sketch of a layer, shape (d,), as it goes over the wire (client side)."""
        if values.ndim != 1:
            raise ValueError(f"values of shape {values.shape}, want one dimension: flatten them")
        return _joined([pack(part, self.wire) for part in self._parts(values, seed, round, layer)])

    def decode(self, wire: np.ndarray, num_values: int) -> np.ndarray:
        """Return a sketch's finite float32 numbers, a row for `pairwise_cosine` (server side)."""
        # Raises ValueError if they are not what `encode` makes of ``num_values`` finite values.
        lengths = self._lengths(num_values)
        if wire.dtype != np.dtype(self.wire) or wire.shape != (sum(lengths),):
            raise ValueError(
                f"sketch of shape {wire.shape} and dtype {wire.dtype}, want ({sum(lengths)},) and "
                f"{self.wire}: client and server must use the same sketch and the same layers"
            )
        parts = np.split(wire, np.cumsum(lengths)[:-1])
        return _joined([unpack(part, self.wire) for part in parts])

    def read(self, wire: np.ndarray, num_values: int) -> Row:
        """Check a sketch as `decode` does, and return its numbers; if they are many, packed."""
        values = self.decode(wire, num_values)
        if len(values) < _LARGE or len(self._lengths(num_values)) > 1:
            return values
        return as_packed(wire, self.wire)

    def of(self, values: np.ndarray, *, seed: int, round: int, layer: str) -> np.ndarray:
        """Return the sketch of a vector in float64, with the numbers that `decode` would read."""
        wire = self.encode(values, seed=seed, round=round, layer=layer)
        return self.decode(wire, values.size).astype(np.float64)

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes on the wire for a layer of ``num_values`` values, without framing."""
        return sum(self._lengths(num_values)) * np.dtype(self.wire).itemsize

    def check_order(self, p: float) -> None:
        """Raise ValueError, with the remedy, if the sketch does not keep cos_p."""
        if self.orders is not None and p not in self.orders:
            kept = " and ".join(f"p={order}" for order in self.orders)
            raise ValueError(
                f"the sketch {self.spec!r} keeps {f'{kept} only' if kept else 'no direction'}, but "
                f"p is {p}: use 'coordinates{self._size or ':SIZE'}' or 'layers', which keep any p"
            )

    def pairwise_cosine(
        self, rows: Sequence[Row] | np.ndarray, p: float = 4, form: Form = "squared"
    ) -> np.ndarray:
        """Return the similarities of K decoded sketches of r numbers: shape (K, K), float64."""
        self.check_order(p)
        return np.asarray(pairwise_cosine(rows, p, form))

    @property
    def _size(self) -> str:
        """The size as it stands in the text."""
        return ""

    def _lengths(self, num_values: int) -> list[int]:
        return [HEAD[self.wire] + count for count in self._counts(num_values)]

    def _counts(self, num_values: int) -> Sequence[int]:
        """Return how many numbers the parts of a sketch have; each part has its own wire scale."""
        return [num_values]

    def _parts(self, values: np.ndarray, seed: int, round: int, layer: str) -> Sequence[np.ndarray]:
        return [values]


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

    def _counts(self, num_values: int) -> Sequence[int]:
        return [min(self.size, num_values)]

    def _parts(self, values: np.ndarray, seed: int, round: int, layer: str) -> Sequence[np.ndarray]:
        return [values if values.size <= self.size else self._draw(values, seed, round, layer)]

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        """Return ``size`` numbers for a layer that has more."""
        raise NotImplementedError


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
