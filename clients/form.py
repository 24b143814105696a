"""Is this the model that was sent? Names, kinds and shapes are compared before any arithmetic.

NumPy would broadcast other shapes: (n, 1) beside (n,) makes n² values. The server refuses such an
update too, but only when the client has been chosen for what its summary seemed to say.
"""

from collections.abc import Collection

import numpy as np
from flwr.app import Array, ArrayRecord

from pncs_flower.plain_text import first_of

_SHOWN = 3


def check_form(given: ArrayRecord, weights: ArrayRecord, names: Collection[str], what: str) -> None:
    """Raise ValueError unless the arrays of these names are like the model's."""
    missing = [repr(name) for name in names if name not in given]
    new = [repr(name) for name in names if name not in weights]
    if missing or new:
        lacks = [f"it lacks {first_of(missing, _SHOWN)}"] if missing else []
        problem = " and ".join(lacks + ([f"{first_of(new, _SHOWN)} is new"] if new else []))
    else:
        others = ((name, _otherness(given[name], weights[name])) for name in names)
        problem = first_of([f"{name!r} is {other}" for name, other in others if other], _SHOWN)
    if problem:
        raise ValueError(f"{what} has other arrays than the model that it was sent: {problem}")


def _otherness(given: Array, wanted: Array) -> str:
    """Say how an array is of another kind or shape than the model's; nothing if it is not."""
    dtype, shape = _form(given)
    wanted_dtype, wanted_shape = _form(wanted)
    # Bytes may be more or fewer, as those of a tree ensemble are.
    may_grow = wanted_dtype == "uint8" and len(shape) == len(wanted_shape) == 1
    if _kind(dtype) == _kind(wanted_dtype) and (shape == wanted_shape or may_grow):
        return ""
    return f"{dtype} of shape {shape}, in the model {wanted_dtype} of {wanted_shape}"


def _form(array: Array) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape; Flower leaves them out of what a `client_fn` returns."""
    if array.dtype:
        return array.dtype, tuple(array.shape)
    values = array.numpy()
    return str(values.dtype), values.shape


def _kind(dtype: str) -> str:
    """Return what an array holds: all precisions of floating point are one."""
    try:
        return np.dtype(dtype).kind
    except TypeError:  # a name of another framework's
        return dtype
