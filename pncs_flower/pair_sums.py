"""Sums over the coordinates of pairs of gradients: where the time of a similarity goes."""

from collections.abc import Iterator

import numpy as np

from pncs_flower.backend import Array, Precision, Rows

__all__ = ["largest_magnitudes", "pair_gaps", "pair_power_sums", "power_norms", "power_products"]

_BLOCK = 1 << 22  # values of a block of coordinates: bounds the memory for its powers
_NARROWEST = 1024  # coordinates of a block: fewer make matrix products slow
_WIDEST = 4096  # more make float32 sums within a block inexact
_CHUNK = 1 << 16  # values of a chunk of pairs: fits a core's second-level cache in float64


def largest_magnitudes(rows: Rows) -> np.ndarray:
    """Return each row's largest magnitude, shape (K,), float64; NaN where a value is NaN."""
    largest = rows.zeros(rows.num_rows)
    for start, stop in _blocks(rows):
        # Narrow types are widened first: -128 has no negative in int8.
        block = rows.block(start, stop, rows.precision)
        block_largest = rows.xp.maximum(rows.xp.amax(block, 1), -rows.xp.amin(block, 1))
        largest = rows.xp.maximum(largest, rows.cast(block_largest, "float64"))
    return rows.as_numpy(largest)


def power_norms(rows: Rows, scales: np.ndarray, p: float) -> Array:
    """Return the p-norm of each row divided by its scale, shape (K,), float64."""
    sums = rows.zeros(rows.num_rows)
    divisors = rows.beside(scales)[:, None]
    for start, stop in _blocks(rows):
        sums += _power(rows, rows.block(start, stop, "float64") / divisors, p).sum(1)
    return sums ** (1 / p)


def power_products(rows: Rows, scales: np.ndarray, p: int, precision: Precision) -> list[Array]:
    """Return <u^(p-j), v^j> of all pairs, (K, K) in float64, for j = 1 to p / 2 of an even p."""
    xp, size = rows.xp, rows.num_rows
    products = [rows.zeros(size, size) for _ in range(p // 2)]
    # The scales are powers of two, so that nothing is rounded by them.
    factors = rows.cast(rows.beside(1 / scales), precision)[:, None]
    # Memory is asked for once: the system clears what it hands out, which takes as long as a pass.
    memory = rows.cast(rows.zeros(p - 1, size, _width(rows)), precision)
    sums = rows.cast(rows.zeros(size, size), precision)
    with rows.exact_products():
        for start, stop in _blocks(rows):
            powers = memory[:, :, : stop - start]
            xp.multiply(rows.block(start, stop, precision), factors, out=powers[0])
            for k in range(1, p - 1):
                xp.multiply(powers[k - 1], powers[0], out=powers[k])
            for j, product in enumerate(products, start=1):
                # For j = p / 2 this is a @ a.T, of which NumPy computes one triangle only.
                product += xp.matmul(powers[p - j - 1], powers[j - 1].T, out=sums)
    return products


def pair_power_sums(rows: Rows, first: Array, second: Array, divisors: Array, p: float) -> Array:
    """Return sum |u / f + v / g|^p for n pairs, with divisors (2, n), in float64."""
    sums = rows.zeros(len(first))
    for chunk, x, y in _pair_chunks(rows, first, second, divisors):
        x += y
        sums[chunk] += _power(rows, x, p).sum(1)
    return sums


def pair_gaps(rows: Rows, first: Array, second: Array, divisors: Array, p: float) -> Array:
    """Return sum |u / f + v / g|^p - |u / f - v / g|^p without cancellation."""
    xp = rows.xp
    sums = rows.zeros(len(first))
    for chunk, x, y in _pair_chunks(rows, first, second, divisors):
        # With b the larger and r b the smaller magnitude, b^p ((1 + r)^p - (1 - r)^p), up to the
        # sign, is (b (1 + r))^p (1 - exp(-2 p artanh r)).
        sign = xp.sign(x) * xp.sign(y)
        x, y = xp.abs(x), xp.abs(y)
        larger = xp.maximum(x, y)
        ratio = xp.minimum(x, y) / xp.where(larger == 0, xp.ones_like(larger), larger)
        with np.errstate(divide="ignore"):  # ratio 1: artanh is infinite, and exp(-inf) is right
            gap = -xp.expm1(-2 * p * xp.arctanh(ratio))
        sums[chunk] += (sign * (larger * (1 + ratio)) ** p * gap).sum(1)
    return sums


def _blocks(rows: Rows) -> Iterator[tuple[int, int]]:
    for start in range(0, rows.num_values, _width(rows)):
        yield start, min(start + _width(rows), rows.num_values)


def _width(rows: Rows) -> int:
    return min(max(_BLOCK // rows.num_rows, _NARROWEST), _WIDEST)


def _pair_chunks(
    rows: Rows, first: Array, second: Array, divisors: Array
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield chunks of pairs with blocks of u / f and v / g, shape (pairs, coordinates)."""
    for start, stop in _blocks(rows):
        block = rows.block(start, stop, "float64")
        step = max(1, _CHUNK // (stop - start))
        for begin in range(0, len(first), step):
            chunk = slice(begin, begin + step)
            f, g = divisors[:, chunk, None]
            yield chunk, block[first[chunk]] / f, block[second[chunk]] / g


def _power(rows: Rows, values: Array, p: float) -> Array:
    """Return |values|^p."""
    if p == int(p) and p <= 8:  # multiplications are several times faster than a power
        factor = rows.xp.abs(values) if p % 2 else values * values
        result = factor
        for _ in range(int(p if p % 2 else p / 2) - 1):
            result = result * factor
        return result
    return rows.xp.abs(values) ** p
