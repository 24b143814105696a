"""Reads the arrays of messages without trusting them: sizes before contents, never a pickle."""

import io
from functools import lru_cache

import numpy as np
from flwr.app import Array

NUMPY = "numpy.ndarray"
KINDS = "fiub"  # numbers of floating point, whole numbers with and without sign, bool


def read_array(array: Array) -> np.ndarray:
    """Return a view of a received array, read only, without allocating what its header claims."""
    # Raises ValueError if the bytes are not one plain NumPy array of the size that its header
    # states.
    if array.stype != NUMPY:
        raise ValueError(f"array type {array.stype!r} is not {NUMPY!r}")
    # The magic text and the version are followed by the header's length, of 2 bytes or of 4.
    end = 10 if array.data[6:7] == b"\x01" else 12
    start = end + int.from_bytes(array.data[8:end], "little")
    try:
        shape, fortran, dtype = _read_header(array.data[:start])
    except Exception as error:  # a forged header makes NumPy's parser raise nearly anything
        raise ValueError(f"no NumPy array: {type(error).__name__}") from None
    if dtype.hasobject or dtype.kind not in KINDS:
        raise ValueError(f"dtype {dtype} is not that of a number")
    size = dtype.itemsize
    for length in shape:
        size *= length  # Python integers: a product that does not overflow
    if len(array.data) - start != size:
        raise ValueError(f"{len(array.data) - start} bytes of values, but the header says {size}")
    flat = np.frombuffer(array.data, dtype=dtype, offset=start)
    if dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise ValueError("a bool that is neither 0 nor 1")
    try:
        return flat.reshape(shape, order="F" if fortran else "C")
    except (TypeError, ValueError, OverflowError):  # lengths that are bools, negative or too large
        raise ValueError(f"no array has the shape {shape}") from None


@lru_cache(maxsize=1 << 10)  # parsing takes as long as the values, and most headers are alike
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)
