"""Sketches: the small summary of a layer that a client sends in the pre-round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from pncs_flower.count_sketch import count_sketch
from pncs_flower.randomness import raw_words
from pncs_flower.similarity import Form, pairwise_cosine
from pncs_flower.wire import WIRES, Wire, pack, packed_bytes, unpack

__all__ = ["Coordinates", "Count", "Layers", "Sketch", "parse_sketch"]


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

    def check_order(self, p: float) -> None:
        """Raise ValueError, with the remedy, if the sketch does not keep cos_p."""

    def pairwise_cosine(self, rows: np.ndarray, p: float = 4, form: Form = "squared") -> np.ndarray:
        """Return the similarities of decoded sketches: shape (K, r) to (K, K), float64."""


class _Values:
    """A sketch whose numbers are a short vector with about the same cos_p: all but the drawing."""

    name: ClassVar[str]
    wire: Wire

    def __post_init__(self) -> None:
        if self._limit is not None and self._limit < 1:
            raise ValueError(f"size of the sketch is {self._limit}, want 1 or more numbers")
        if self.wire not in WIRES:
            raise ValueError(f"wire is {self.wire!r}, want one of {', '.join(WIRES)}")

    @property
    def spec(self) -> str:
        """As `Sketch.spec`."""
        size = "" if self._limit is None else f":{self._limit}"
        return self.name + size + ("" if self.wire == "float32" else f"@{self.wire}")

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
    def _limit(self) -> int | None:
        """How many numbers at most; None for as many as the layer has."""
        return None

    def _count(self, num_values: int) -> int:
        return num_values if self._limit is None else min(self._limit, num_values)

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        """Return `_limit` numbers for a layer that has more."""
        raise NotImplementedError


@dataclass(frozen=True)
class Layers(_Values):
    """The layer's values as they are: the paper's own setting.

    Parameters
    ----------
    wire : {"float32", "float16", "int8"} (default: "float32")
        Number format on the wire.
    """

    name: ClassVar[str] = "layers"
    wire: Wire = "float32"


@dataclass(frozen=True)
class Coordinates(_Values):
    """Some coordinates of the layer, the same for every client, drawn anew in each round.

    A sum over the drawn coordinates times d / r is an unbiased estimate of the sum over all, so
    cos_p of the sketches estimates cos_p of the layers for every p. Values are sent unscaled: the
    ``"printed"`` form, which depends on the scale, comes out larger by (d / r)^(1/p).

    Parameters
    ----------
    size : int
        Number of coordinates (r).
    wire : {"float32", "float16", "int8"} (default: "float32")
        Number format on the wire.
    """

    name: ClassVar[str] = "coordinates"
    size: int
    wire: Wire = "float32"

    @property
    def _limit(self) -> int:
        return self.size

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        places = _draw_indices(values.size, self.size, seed, "coordinates", round, layer)
        return np.asarray(values[places])


@dataclass(frozen=True)
class Count(_Values):
    """A count sketch: linear, keeps inner products and the L2 norm in expectation.

    The hash is the same in every round, so that sketches of different rounds and clients add up.
    `pncs_flower.count_sketch` says how it is made, and how far off an inner product may be.

    Parameters
    ----------
    size : int
        Number of buckets (r).
    wire : {"float32", "float16", "int8"} (default: "float32")
        Number format on the wire.
    """

    name: ClassVar[str] = "count"
    size: int
    wire: Wire = "float32"

    @property
    def _limit(self) -> int:
        return self.size

    def check_order(self, p: float) -> None:
        """Raise ValueError unless p is 2."""
        if p != 2:
            raise ValueError(
                f"a count sketch keeps p=2 only, p is {p}: use p=2, or the sketch "
                f"'coordinates:{self.size}' or 'layers'"
            )

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        return np.asarray(count_sketch(values, self.size, seed=seed, layer=layer)[0])


_SIZED: dict[str, Callable[[int, Wire], Sketch]] = {"coordinates": Coordinates, "count": Count}
_KNOWN = ", ".join(["'layers'", *(f"'{name}:SIZE'" for name in _SIZED)])


def parse_sketch(spec: str | Sketch) -> Sketch:
    """Turn a text such as ``"count:256"`` into a sketch.

    Parameters
    ----------
    spec : str or Sketch
        ``"layers"``, ``"coordinates:SIZE"`` or ``"count:SIZE"``, and then perhaps ``"@float16"`` or
        ``"@int8"`` for the number format on the wire. A sketch is returned as it is.

    Returns
    -------
    Sketch
        With ``parse_sketch(sketch.spec) == sketch``.

    Raises
    ------
    ValueError
        If there is no such sketch; the message lists those that exist.
    """
    if not isinstance(spec, str):
        return spec
    body, at, wire_name = spec.partition("@")
    name, _, size = body.partition(":")
    wire = next((known for known in WIRES if known == (wire_name if at else "float32")), None)
    if wire is not None and body == "layers":
        return Layers(wire)
    if wire is not None and name in _SIZED and size.isascii() and size.isdigit():
        return _SIZED[name](int(size), wire)
    raise ValueError(
        f"unknown sketch {spec!r}: there are {_KNOWN}, each perhaps with "
        f"{' or '.join(f'@{known}' for known in WIRES)} after it"
    )


def _draw_indices(total: int, count: int, *names: int | str) -> np.ndarray:
    """Return ``count`` of ``total`` indices without replacement, sorted.

    The distinct among the first draws of a uniform stream are a uniform subset; where most are
    wanted, those that are not wanted are drawn instead. Words are taken in proportion to the draw,
    whatever the total.
    """
    if 2 * count > total:
        kept = np.ones(total, dtype=bool)
        kept[_draw_indices(total, total - count, *names)] = False
        return np.flatnonzero(kept)
    drawn = np.empty(0, dtype=np.int64)
    offset = 0
    while len(drawn) < count:
        # The bias of the remainder is below total / 2**64.
        words = raw_words(count, *names, offset=offset) % np.uint64(total)
        offset += count
        distinct, first = np.unique(
            np.concatenate([drawn, words.astype(np.int64)]), return_index=True
        )
        drawn = distinct[np.argsort(first)]
    return np.sort(drawn[:count])
