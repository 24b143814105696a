"""K gradients, of NumPy or torch, read block by block, and sums over their coordinates."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = Any  # np.ndarray or torch.Tensor: the two share the operators and names used here
Precision = Literal["float32", "float64"]

_BLOCK = 1 << 22  # values of a block of coordinates: bounds the memory for its powers
_NARROWEST = 1024  # coordinates of a block: fewer make matrix products slow
_WIDEST = 4096  # more make float32 sums within a block inexact
_CHUNK = 1 << 16  # values of a chunk of pairs: fits a core's second-level cache in float64


@dataclass(frozen=True)
class Rows:
    """K vectors of d values (`rows`, of the library `xp`), widened only block by block."""

    rows: Any
    xp: Any
    num_rows: int
    num_values: int

    @classmethod
    def of(cls, rows: Any) -> "Rows":
        """Wrap what a caller gave, or raise ValueError unless it is K vectors of one kind."""
        listed = isinstance(rows, Sequence) and all(hasattr(row, "shape") for row in rows)
        if not listed and not hasattr(rows, "shape"):
            rows = np.asarray(rows)  # lists of numbers
        arrays: Sequence[Any] = rows if listed else [rows]
        shapes = {tuple(array.shape) for array in arrays}
        if len(shapes) != 1 or len({_is_tensor(array) for array in arrays}) != 1:
            raise ValueError(
                f"{len(arrays)} gradients of shapes {sorted(shapes)}, want one or more of one "
                "shape and one array library"
            )
        shape = (len(rows), *shapes.pop()) if listed else tuple(rows.shape)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"gradients of shape {shape}, want (clients, values), at least one of each: "
                "flatten them"
            )
        for array in arrays:
            _check_array(array)
        if not _is_tensor(arrays[0]):
            return cls(rows, np, *shape)
        import torch

        return cls(rows, torch, *shape)

    @property
    def precision(self) -> Precision:
        """The precision in which no input value is rounded more than its own type's."""
        arrays = self.rows if isinstance(self.rows, Sequence) else self.rows[:1]
        wide = (array.dtype.itemsize >= (4 if _is_whole(array) else 8) for array in arrays)
        return "float64" if any(wide) else "float32"

    def zeros(self, *shape: int) -> Array:
        """Return float64 zeros beside the rows."""
        return self.beside(np.zeros(shape))

    def beside(self, values: np.ndarray) -> Array:
        """Return a NumPy array as the rows' library has it, on the rows' device."""
        return values if self.xp is np else self.xp.as_tensor(values, device=self.rows[0].device)

    def cast(self, values: Array, precision: Precision) -> Array:
        """Change the floating-point type, where that changes anything."""
        if self.xp is np:
            return values.astype(precision, copy=False)
        return values.detach().to(getattr(self.xp, precision))

    def largest_magnitudes(self) -> np.ndarray:
        """Return each row's largest magnitude, shape (K,), float64; NaN where a value is NaN."""
        largest = self.zeros(self.num_rows)
        # Narrow types are widened first: -128 has no negative in int8.
        for block in self._blocks(self.precision):
            of_block = self.xp.maximum(self.xp.amax(block, 1), -self.xp.amin(block, 1))
            largest = self.xp.maximum(largest, self.cast(of_block, "float64"))
        return np.asarray(largest if self.xp is np else largest.cpu())

    def power_norms(self, scales: np.ndarray, p: float) -> Array:
        """Return the p-norm of each row divided by its scale, shape (K,), float64."""
        sums = self.zeros(self.num_rows)
        divisors = self.beside(scales)[:, None]
        for block in self._blocks("float64"):
            sums += _power(self.xp, block / divisors, p).sum(1)
        return sums ** (1 / p)

    def power_products(self, scales: np.ndarray, p: int, precision: Precision) -> list[Array]:
        """Return <u^(p-j), v^j> of all pairs, (K, K) in float64, for j = 1 to p / 2, p even."""
        xp, size = self.xp, self.num_rows
        products = [self.zeros(size, size) for _ in range(p // 2)]
        # The scales are powers of two, so that nothing is rounded by them.
        factors = self.cast(self.beside(1 / scales), precision)[:, None]
        # Memory is asked for once: to clear what the system hands out takes as long as a pass.
        memory = self.cast(self.zeros(p - 1, size, self._width), precision)
        sums = self.cast(self.zeros(size, size), precision)
        with self._exact_products():
            for block in self._blocks(precision):
                powers = memory[:, :, : block.shape[1]]
                xp.multiply(block, factors, out=powers[0])
                for k in range(1, p - 1):
                    xp.multiply(powers[k - 1], powers[0], out=powers[k])
                for j, product in enumerate(products, start=1):
                    # For j = p / 2 this is a @ a.T, of which NumPy computes one triangle only.
                    product += xp.matmul(powers[p - j - 1], powers[j - 1].T, out=sums)
        return products

    def pair_power_sums(self, first: Array, second: Array, divisors: Array, p: float) -> Array:
        """Return sum |u / f + v / g|^p for n pairs, with divisors (2, n), in float64."""
        sums = self.zeros(len(first))
        for chunk, x, y in self._pair_chunks(first, second, divisors):
            x += y
            sums[chunk] += _power(self.xp, x, p).sum(1)
        return sums

    def pair_gaps(self, first: Array, second: Array, divisors: Array, p: float) -> Array:
        """Return sum |u / f + v / g|^p - |u / f - v / g|^p without cancellation."""
        xp, sums = self.xp, self.zeros(len(first))
        for chunk, x, y in self._pair_chunks(first, second, divisors):
            # With b the larger and r b the smaller magnitude, b^p ((1 + r)^p - (1 - r)^p), up to
            # the sign, is (b (1 + r))^p (1 - exp(-2 p artanh r)).
            sign = xp.sign(x) * xp.sign(y)
            x, y = xp.abs(x), xp.abs(y)
            larger = xp.maximum(x, y)
            ratio = xp.minimum(x, y) / xp.where(larger == 0, xp.ones_like(larger), larger)
            with np.errstate(divide="ignore"):  # ratio 1: artanh is infinite, and exp(-inf) right
                gap = -xp.expm1(-2 * p * xp.arctanh(ratio))
            sums[chunk] += (sign * (larger * (1 + ratio)) ** p * gap).sum(1)
        return sums

    @property
    def _width(self) -> int:
        return min(max(_BLOCK // self.num_rows, _NARROWEST), _WIDEST)

    def _blocks(self, precision: Precision) -> Iterator[Array]:
        """Yield the coordinates of all rows, block by block, shape (K, width) or less."""
        for start in range(0, self.num_values, self._width):
            some = slice(start, start + self._width)
            if isinstance(self.rows, Sequence):
                yield self.xp.stack([self.cast(row[some], precision) for row in self.rows])
            else:
                yield self.cast(self.rows[:, some], precision)

    def _pair_chunks(
        self, first: Array, second: Array, divisors: Array
    ) -> Iterator[tuple[slice, Array, Array]]:
        """Yield chunks of pairs with blocks of u / f and v / g, shape (pairs, coordinates)."""
        for block in self._blocks("float64"):
            step = max(1, _CHUNK // block.shape[1])
            for begin in range(0, len(first), step):
                chunk = slice(begin, begin + step)
                f, g = divisors[:, chunk, None]
                yield chunk, block[first[chunk]] / f, block[second[chunk]] / g

    @contextmanager
    def _exact_products(self) -> Iterator[None]:
        """Keep torch from rounding float32 factors to TF32 or bfloat16, if the app allowed that."""
        if self.xp is np:
            yield
            return
        before = self.xp.get_float32_matmul_precision()
        self.xp.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            self.xp.set_float32_matmul_precision(before)


def _power(xp: Any, values: Array, p: float) -> Array:
    """Return |values|^p."""
    if p == int(p) and p <= 8:  # multiplications are several times faster than a power
        factor = xp.abs(values) if p % 2 else values * values
        result = factor
        for _ in range(int(p if p % 2 else p / 2) - 1):
            result = result * factor
        return result
    return xp.abs(values) ** p


def _check_array(array: Any) -> None:
    """Raise ValueError unless it holds real numbers and computes as an array does."""
    if isinstance(array, (np.matrix, np.ma.MaskedArray)):
        raise ValueError(
            f"gradients in a {type(array).__name__}, which computes otherwise than an array: "
            "give np.asarray of it"
        )
    if _is_tensor(array):
        import torch

        if array.layout is not torch.strided:
            raise ValueError(f"gradients of layout {array.layout}, want dense ones: to_dense()")
        if array.is_complex() or array.dtype is torch.bool:
            raise ValueError(f"gradients of dtype {array.dtype}, want real numbers")
    elif array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ValueError(f"gradients of dtype {array.dtype}, want real numbers")


def _is_tensor(array: Any) -> bool:
    # By name, so that a deployment without torch never imports it.
    return type(array).__module__.partition(".")[0] == "torch"


def _is_whole(array: Any) -> bool:
    return array.dtype.kind in "iu" if not _is_tensor(array) else not array.is_floating_point()
