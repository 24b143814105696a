"""Is this the model that was sent? Names, kinds and shapes are compared before any arithmetic.

NumPy would broadcast other shapes: an array of (n, 1) beside one of (n,) makes n² values. The
server refuses such an update too, but only when the client has been chosen for what its summary
seemed to say.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

__all__ = ["check_gradient", "check_update"]

_SHOWN = 3
_NAMES_SHOWN = 8


def check_update(update: ArrayRecord, weights: ArrayRecord) -> None:
    """Raise ValueError unless an update has all arrays of the model and no other.

    Bytes may be more or fewer, as those of a tree ensemble are.
    """
    extra = [name for name in update if name not in weights]
    _compare(update, weights, list(weights), extra, "the reply of the app's train function")


def check_gradient(gradient: object, weights: ArrayRecord, names: Iterable[str]) -> ArrayRecord:
    """Return a gradient if it has an array like the model's for each one of the names."""
    if not isinstance(gradient, ArrayRecord):
        raise TypeError(
            f"the gradient function returned {type(gradient).__name__}, but must return an "
            "ArrayRecord with the names of the model's arrays"
        )
    _compare(gradient, weights, list(names), [], "the gradient function's result")
    return gradient


def _compare(
    given: Mapping[str, Array],
    weights: Mapping[str, Array],
    names: list[str],
    extra: list[str],
    what: str,
) -> None:
    missing = [name for name in names if name not in given]
    if missing or extra:
        problems = [f"it lacks {name!r}" for name in missing[:1]]
        problems += [f"{name!r} is new" for name in extra[:1]]
        raise ValueError(
            f"{what} has the arrays {_some(given)}, but the model that it was sent has "
            f"{_some(weights)}: {' and '.join(problems)}"
        )
    forms = {name: (_form(given[name]), _form(weights[name])) for name in names}
    odd = [name for name, (one, other) in forms.items() if not _alike(*one, *other)]
    if odd:
        told = "; ".join(
            f"{name!r} is {dtype} of shape {shape}, in the model {wanted} of {wanted_shape}"
            for name in odd[:_SHOWN]
            for (dtype, shape), (wanted, wanted_shape) in [forms[name]]
        )
        more = f"; and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        raise ValueError(f"{what} has other arrays than the model that it was sent: {told}{more}")


def _form(array: Array) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape; Flower leaves them out of what a `client_fn` returns."""
    if array.dtype:
        return array.dtype, tuple(array.shape)
    values = array.numpy()
    return str(values.dtype), values.shape


def _alike(given: str, shape: tuple[int, ...], wanted: str, wanted_shape: tuple[int, ...]) -> bool:
    if _kind(given) != _kind(wanted):
        return False
    bytes_may_grow = wanted == "uint8" and len(shape) == len(wanted_shape) == 1
    return shape == wanted_shape or bytes_may_grow


def _kind(dtype: str) -> str:
    """Return what an array holds: all precisions of floating point are one."""
    try:
        return np.dtype(dtype).kind
    except TypeError:  # a name of another framework's
        return dtype


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = f", ... ({len(known)} in all)" if len(known) > _NAMES_SHOWN else ""
    return (", ".join(known[:_NAMES_SHOWN]) or "(none)") + more
