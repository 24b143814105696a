"""A count sketch for the largest layers: one pass, at a few percent of the cost of a gradient."""

import numpy as np

from pncs_flower.randomness import raw_words

# Coordinates taken at a time: the working set stays in a core's second-level cache. The hash
# depends on it, and all clients must use one hash: it is part of the wire format.
_SLAB = 65_536


def count_sketch(
    values: np.ndarray, size: int, *, seed: int, layer: str, powers: int = 1, scale: float = 1.0
) -> np.ndarray:
    """Return the count sketches (powers, size) of a vector's powers 1 to 3, all with one hash."""
    # Coordinate i adds sign(i) * values[i]**k to bucket hash(i) (M. Charikar, K. Chen, M.
    # Farach-Colton, "Finding frequent items in data streams", 2002). The hash lays the coordinates
    # out as slabs of rows of ``size`` and shifts each row and each slab at random: two coordinates
    # share a bucket with a probability of at most 1 / size, which is all that unbiased inner
    # products, of variance at most (|u|^2 |v|^2 + <u, v>^2) / size, ask of it.
    rows = max(1, _SLAB // size)
    slab = rows * size
    rows = min(rows, -(-values.size // size))  # the first slab may be the only one, and shorter
    names = (seed, "count-sketch", layer)
    row_shifts = _shifts(rows, size, *names, "rows")
    slab_shifts = _shifts(-(-values.size // slab), size, *names, "slabs")
    sign_words = -(-slab // 64)
    sums = np.zeros((powers, rows, size), dtype=np.float32)
    for number, shift in enumerate(slab_shifts):
        block = np.asarray(values[number * slab : (number + 1) * slab], dtype=np.float32)
        if scale != 1.0:
            block = block / np.float32(scale)
        words = raw_words(sign_words, *names, "signs", offset=number * sign_words)
        term = _flip_signs(block, words)
        for power in range(powers):
            if power:
                term = term * block
            _add_shifted(sums[power], term, int(shift))
    buckets = (np.arange(size) + row_shifts[:, None]) % size
    return np.stack([np.bincount(buckets.ravel(), part.ravel(), size) for part in sums])


def _shifts(count: int, size: int, *names: int | str) -> np.ndarray:
    # The bias of the remainder is below size / 2**64.
    return (raw_words(count, *names) % np.uint64(size)).astype(np.int64)


def _flip_signs(block: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Negate the values whose random bit is set."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=block.size, bitorder="little")
    flips = bits.astype(np.uint32)
    flips <<= 31
    flips ^= block.view(np.uint32)
    return flips.view(np.float32)


def _add_shifted(sums: np.ndarray, term: np.ndarray, shift: int) -> None:
    """Add rows of values to rows of sums, each turned right by ``shift`` columns."""
    size = sums.shape[1]
    whole = term.size // size
    if whole * size < term.size:  # only the last slab ends within a row
        term = np.concatenate([term, np.zeros((whole + 1) * size - term.size, dtype=np.float32)])
    rows = term.reshape(-1, size)
    target = sums[: len(rows)]
    target[:, shift:] += rows[:, : size - shift]
    target[:, :shift] += rows[:, size - shift :]
