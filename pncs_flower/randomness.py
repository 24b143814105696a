"""Randomness that depends on names alone, so that every engine and every restart draws the same."""

from hashlib import blake2b

import numpy as np

__all__ = ["derive_seed", "generator", "raw_words"]


def derive_seed(*names: int | str) -> int:
    """Hash names such as ``(seed, "sketch", round, client)`` to a seed of 63 bits.

    Parameters
    ----------
    *names : int or str
        What the randomness may depend on, in order. Integers and strings are told apart.

    Returns
    -------
    int
        In [0, 2**63), so that it also suits ``torch.manual_seed`` and a Flower record.
    """
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in names)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*names: int | str) -> np.random.Generator:
    """Return NumPy's generator seeded by names; see `derive_seed`."""
    return np.random.Generator(np.random.PCG64(derive_seed(*names)))


def raw_words(count: int, *names: int | str, offset: int = 0) -> np.ndarray:
    """Return words ``offset`` to ``offset + count`` of the random stream that names stand for.

    A sketch is computed by a client and checked by a server, perhaps under other releases of
    NumPy, which promises the raw words of a bit generator for good, but not what `Generator`
    makes of them.

    Parameters
    ----------
    count : int
        How many words.
    *names : int or str
        See `derive_seed`.
    offset : int (default: 0)
        Where in the stream to start: a long stream can be had in blocks.

    Returns
    -------
    np.ndarray
        Shape (count,), dtype uint64.
    """
    return np.random.PCG64(derive_seed(*names)).advance(offset).random_raw(count)
