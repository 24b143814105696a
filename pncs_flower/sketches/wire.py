"""Number formats on the wire: what a client packs, a server unpacks and checks."""

import math
from typing import Literal, get_args

import numpy as np

from pncs_flower.sketches.packed import Packed, Row

Wire = Literal["float32", "float16", "int8"]
"""Number format of a sketch, with what stands before the numbers."""
# float16: the exponent of a power of two, and the values divided by it, since bare float16 ends at
# 65,504 and loses bits below 6e-5, where gradients live. int8: the four bytes of a little-endian
# float32 step, and the values in steps, off by at most 1/254 of the largest magnitude.

WIRES: tuple[Wire, ...] = get_args(Wire)

HEAD: dict[Wire, int] = {"float32": 0, "float16": 1, "int8": 4}
"""Numbers before the values."""

_MAX_EXPONENT = 160  # float32 needs -148 to 128
_NOT_FINITE = (
    "the client's gradient or update is not finite, or too large for float32: look at its data and "
    "its learning rate"
)


def pack(values: np.ndarray, wire: Wire) -> np.ndarray:
    """Return values in a wire format; those not finite survive as such, for `unpack` to refuse."""
    if wire == "float32":
        return values.astype(np.float32)
    exact = values.astype(np.float64)
    largest = float(np.max(np.abs(exact), initial=0.0))
    if wire == "float16":
        if not math.isfinite(largest):
            return np.full(len(values) + 1, np.nan, dtype=np.float16)
        exponent = max(math.frexp(largest)[1], -_MAX_EXPONENT)  # below, float32 has nothing but 0
        return np.concatenate([[exponent], np.ldexp(exact, -exponent)]).astype(np.float16)
    step = np.float32(largest / 127)
    # A step rounded down to nothing (values near float32's smallest) leaves nothing to count.
    steps = np.zeros(exact.shape) if step == 0 or not np.isfinite(step) else exact / step
    body = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    return np.concatenate([np.array([step], dtype="<f4").view(np.int8), body])


def as_packed(packed: np.ndarray, wire: Wire) -> Row:
    """Return float32 values that are read where they are, or raise ValueError for a false head."""
    if wire == "float32":
        return packed
    if wire == "float16":
        exponent = float(packed[0])
        if not (abs(exponent) <= _MAX_EXPONENT and exponent.is_integer()):
            raise ValueError(f"sketch with the exponent {exponent}: {_NOT_FINITE}")
        return Packed(packed[1:], math.ldexp(1.0, int(exponent)))
    head = HEAD[wire]
    step = float(packed[:head].copy().view("<f4")[0])
    if not math.isfinite(step):
        raise ValueError(f"sketch with the step {step}: {_NOT_FINITE}")
    return Packed(packed[head:], step)


def unpack(packed: np.ndarray, wire: Wire) -> np.ndarray:
    """Return finite float32 values, or raise ValueError unless they were packed so."""
    values = as_packed(packed, wire)[:]
    if not np.isfinite(values).all():
        place = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"sketch with {values[place]} at position {place}: {_NOT_FINITE}")
    return values
