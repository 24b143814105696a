"""Sketches: the small summary of a layer that a client sends in the pre-round."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from pncs_flower.randomness import raw_words
from pncs_flower.sketches.base import SizedSketch, Sketch
from pncs_flower.sketches.count import count_sketch
from pncs_flower.sketches.power_moments import PowerMoments
from pncs_flower.sketches.wire import WIRES, Wire

_LEAST_SHARE = 100


@dataclass(frozen=True)
class Layers(Sketch):
    """The layer's values as they are: the paper's own setting."""

    name: ClassVar[str] = "layers"
    wire: Wire = "float32"


@dataclass(frozen=True)
class Coordinates(SizedSketch):
    """Some coordinates of the layer, the same for every client, drawn anew in each round."""

    # A sum over the drawn coordinates times d / r is an unbiased estimate of the sum over all, so
    # cos_p is estimated for every p. Values are sent unscaled: the "printed" form, which depends
    # on the scale, comes out larger by (d / r)^(1/p).

    name: ClassVar[str] = "coordinates"
    same_in_every_round: ClassVar[bool] = False

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        drawn, what = _drawn(seed, round), (layer, values.size, self.size)
        if what not in drawn:
            drawn[what] = _draw_indices(*what[1:], seed, "coordinates", round, layer)
            drawn[what].flags.writeable = False
        return np.asarray(values[drawn[what]])


@dataclass(frozen=True)
class CoordinateShare(Sketch):
    """As `Coordinates`, of as many as take 1 to 100 percent of an update's bytes."""

    # Every layer gets the same number of coordinates, since each counts the same in the similarity
    # and the error depends on how many are drawn, not on the part; of layers that have fewer, all
    # are sent, and what they leave goes to the others.

    name: ClassVar[str] = "coordinates"
    same_in_every_round: ClassVar[bool] = False
    percent: int
    wire: Wire = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.percent) is not int or not 1 <= self.percent <= 100:
            raise ValueError(f"size of the sketch is {self.percent}%, want 1% to 100%")

    def of_model(self, sizes: Collection[int], update_bytes: int, framing: int = 0) -> Coordinates:
        """Return the largest sketch within the part of an update, for layers of these sizes."""
        room = update_bytes * self.percent // 100 - framing
        counts = range(_LEAST_SHARE + 1, max(sizes, default=0) + 1)

        def num_bytes(count: int) -> int:
            return sum(map(Coordinates(count, self.wire).num_bytes, sizes))

        return Coordinates(_LEAST_SHARE + bisect_right(counts, room, key=num_bytes), self.wire)

    def _of_layer(self, num_values: int) -> Coordinates:
        """Take a layer sketched by itself for a model of that layer, in float32."""
        return self.of_model([num_values], 4 * num_values)

    @property
    def _size(self) -> str:
        return f":{self.percent}%"

    def _counts(self, num_values: int) -> Sequence[int]:
        return self._of_layer(num_values)._counts(num_values)

    def _parts(self, values: np.ndarray, seed: int, round: int, layer: str) -> Sequence[np.ndarray]:
        return self._of_layer(values.size)._parts(values, seed, round, layer)


@dataclass(frozen=True)
class Count(SizedSketch):
    """A count sketch: linear, keeps inner products and the L2 norm in expectation."""

    name: ClassVar[str] = "count"
    orders: ClassVar[tuple[int, ...] | None] = (2,)

    def _draw(self, values: np.ndarray, seed: int, round: int, layer: str) -> np.ndarray:
        return np.asarray(count_sketch(values, self.size, seed=seed, layer=layer)[0])


@dataclass(frozen=True)
class Norm(Sketch):
    """The layer's L2 norm alone: one number, for rules that rank clients by gradient norm."""

    name: ClassVar[str] = "norm"
    is_linear: ClassVar[bool] = False
    orders: ClassVar[tuple[int, ...] | None] = ()
    wire: Wire = "float32"

    def decode(self, wire: np.ndarray, num_values: int) -> np.ndarray:
        """As `Sketch.decode`."""
        norm = super().decode(wire, num_values)
        return np.asarray(np.maximum(norm, 0))  # a client's noise may have made it negative

    def _counts(self, num_values: int) -> Sequence[int]:
        return [1]

    def _parts(self, values: np.ndarray, seed: int, round: int, layer: str) -> Sequence[np.ndarray]:
        return [np.array([np.linalg.norm(values.astype(np.float64))])]


_SKETCHES: dict[str, Callable[..., Sketch]] = {
    "layers": Layers,
    "norm": Norm,
    "coordinates:SIZE": Coordinates,
    "count:SIZE": Count,
    "power-moments:SIZE": PowerMoments,
    "coordinates:PERCENT%": CoordinateShare,
}
_KNOWN = ", ".join(f"'{form}'" for form in _SKETCHES)


def parse_sketch(spec: str | Sketch) -> Sketch:
    """Turn a text such as ``"count:256@int8"`` into a sketch; ValueError lists those that exist."""
    if isinstance(spec, Sketch):
        return spec
    if not isinstance(spec, str):
        raise ValueError(f"sketch is {spec!r}, want a text or a sketch: there are {_KNOWN}")
    if match := re.fullmatch(r"([^:@]+)(?::([0-9]+)(%?))?(?:@(.+))?", spec):
        name, number, percent, wire = match.groups(default="")
        kind = _SKETCHES.get(name + (number and (":PERCENT%" if percent else ":SIZE")))
        if kind is not None and (wire or "float32") in WIRES:
            return kind(*map(int, [number] if number else []), wire=wire or "float32")
    raise ValueError(
        f"unknown sketch {spec!r}: there are {_KNOWN}, each perhaps with "
        f"{' or '.join(f'@{known}' for known in WIRES)} after it"
    )


# A process that plays many clients draws once for all of them: it takes longer than they train.
@lru_cache(maxsize=1)
def _drawn(seed: int, round: int) -> dict[tuple[str, int, int], np.ndarray]:
    """Return the indices drawn in a round so far, by the layer, its size, and their number."""
    return {}


def _draw_indices(total: int, count: int, *names: int | str) -> np.ndarray:
    """Return ``count`` of ``total`` indices without replacement, sorted."""
    # The distinct among the first draws of a uniform stream are a uniform subset; where most are
    # wanted, the others are drawn instead. The words taken are in proportion to the draw.
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
