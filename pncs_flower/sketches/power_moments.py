"""The sketch from which cos_4 can be estimated: a linear sketch of u alone keeps L2, not L4."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pncs_flower.similarity import Form, pairwise_cosine, score_products
from pncs_flower.sketches.base import SizedSketch
from pncs_flower.sketches.count import count_sketch
from pncs_flower.sketches.packed import Row

_BLOCK = 1 << 16  # coordinates at a time, so that what is made of them stays in the cache


@dataclass(frozen=True)
class PowerMoments(SizedSketch):
    """Phi u, Phi u^2 and Phi u^3 for one count sketch Phi, and |u|_4: for p = 4 and p = 2."""

    # With u and v divided by their norms, <Phi u^3, Phi v> and <Phi u^2, Phi v^2> are unbiased
    # estimates of the sums of u^3 v and u^2 v^2, of which |u ± v|_4^4 is made; they are clipped to
    # what Hoelder's inequality allows. A sketch is |u|_4, then Phi x, Phi x^2 and Phi x^3 of
    # x = u / |u|_4, each in its own wire scale; a layer of at most 3 r values is sent as it is.

    name: ClassVar[str] = "power-moments"
    is_linear: ClassVar[bool] = False
    orders: ClassVar[tuple[int, ...] | None] = (2, 4)

    def decode(self, wire: np.ndarray, num_values: int) -> np.ndarray:
        """As `Sketch.decode`."""
        row = super().decode(wire, num_values)
        if num_values > 3 * self.size and row[0] < 0:
            raise ValueError(f"sketch with the norm {row[0]}, want 0 or more")
        return row

    def pairwise_cosine(
        self, rows: Sequence[Row] | np.ndarray, p: float = 4, form: Form = "squared"
    ) -> np.ndarray:
        """As `Sketch.pairwise_cosine`."""
        self.check_order(p)
        if rows[0].shape[0] != 3 * self.size + 1:
            return np.asarray(pairwise_cosine(rows, p, form))
        exact = np.stack([row[:] for row in rows]).astype(np.float64)
        norms = exact[:, 0]
        first, second, third = np.split(exact[:, 1:], 3, axis=1)
        if p == 2:
            return np.asarray(pairwise_cosine(first * norms[:, None], p, form))
        zero = norms == 0
        products = [np.clip(third @ first.T, -1, 1), np.clip(second @ second.T, 0, 1)]
        similarity, _ = score_products(np, products, np.where(zero, 1.0, norms), 4, form)
        similarity[zero] = 0.0
        similarity[:, zero] = 0.0
        return np.asarray(similarity)

    def _counts(self, num_values: int) -> Sequence[int]:
        return [num_values] if num_values <= 3 * self.size else [1, *3 * [self.size]]

    def _parts(self, values: np.ndarray, seed: int, round: int, layer: str) -> Sequence[np.ndarray]:
        if values.size <= 3 * self.size:
            return [values]
        norm = _norm(values)
        scale = norm or 1.0
        moments = count_sketch(values, self.size, seed=seed, layer=layer, powers=3, scale=scale)
        return [np.array([norm]), *moments]


def _norm(values: np.ndarray) -> float:
    """Return |values|_4; NaN if a value is not finite."""
    starts = range(0, values.size, _BLOCK)
    largest = max(float(np.max(np.abs(values[s : s + _BLOCK]))) for s in starts)
    if not np.isfinite(largest):
        return np.nan
    if np.float32(largest) == 0:  # or so small that float32, in which it is sent, has no such value
        return 0.0
    total = 0.0
    for start in starts:
        scaled = values[start : start + _BLOCK].astype(np.float32) / np.float32(largest)
        squares = np.square(scaled).astype(np.float64)
        total += float(np.einsum("i,i->", squares, squares))  # not by BLAS, whose threads must meet
    return float(largest * total**0.25)
