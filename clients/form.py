"""Is this the model that was sent? Names, kinds and shapes are compared before any arithmetic.

NumPy would broadcast other shapes: an array of (n, 1) beside one of (n,) makes n² values. The
server refuses such an update too, but only when the client has been chosen for what its summary
seemed to say.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord

__all__ = ["check_gradient", "check_update"]

_SHOWN = 3


def check_update(update: ArrayRecord, weights: ArrayRecord) -> None:
    """Raise ValueError unless an update has all arrays of the model and no other."""
    new = [repr(name) for name in update if name not in weights]
    _compare(update, weights, list(weights), new, "the reply of the app's train function")


def check_gradient(gradient: object, weights: ArrayRecord, names: Sequence[str]) -> ArrayRecord:
    """Return a gradient if it has an array like the model's for each one of the names."""
    if not isinstance(gradient, ArrayRecord):
        raise TypeError(
            f"the gradient function returned {type(gradient).__name__}, but must return an "
            "ArrayRecord with the names of the model's arrays"
        )
    _compare(gradient, weights, names, [], "the gradient function's result")
    return gradient


def _compare(
    given: Mapping[str, Array],
    weights: Mapping[str, Array],
    names: Sequence[str],
    new: list[str],
    what: str,
) -> None:
    missing = [repr(name) for name in names if name not in given]
    problems = [f"it lacks {_some(missing)}"] if missing else []
    problems += [f"{_some(new)} is new"] if new else []
    if not problems:
        others = ((name, _otherness(given[name], weights[name])) for name in names)
        odd = [f"{name!r} is {other}" for name, other in others if other]
        problems = [_some(odd)] if odd else []
    if problems:
        raise ValueError(
            f"{what} has other arrays than the model that it was sent: {' and '.join(problems)}"
        )


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


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
