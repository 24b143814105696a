"""Randomness that depends on names alone, so that every engine and every restart draws the same."""

from hashlib import blake2b

import numpy as np


def derive_seed(*names: int | str) -> int:
    """Hash names, integers and strings told apart, to a seed in [0, 2**63)."""
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*names: int | str) -> np.random.Generator:
    """Return NumPy's generator seeded by names; see `derive_seed`."""
    return np.random.Generator(np.random.PCG64(derive_seed(*names)))


def raw_words(count: int, *names: int | str, offset: int = 0) -> np.ndarray:
    """Return words offset to offset + count (uint64) of the random stream that names stand for."""
    # Client and server may have other releases of NumPy, which promises the raw words of a bit
    # generator for good, but not what `Generator` makes of them.
    return np.random.PCG64(derive_seed(*names)).advance(offset).random_raw(count)
