"""Is this the model that was sent? Names, kinds and shapes are compared before any arithmetic."""

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

__all__ = ["check_gradient", "check_update"]

_SHOWN = 3
_NAMES_SHOWN = 8


def check_update(update: ArrayRecord, weights: ArrayRecord) -> None:
    """Check that an update has the arrays of the model: NumPy would broadcast others.

    The server refuses such an update too, but only when the client has been chosen for what its
    summary seemed to say, and an array of shape (n, 1) beside one of (n,) makes n² values first.

    Raises
    ------
    ValueError
        If the names are others, or an array is of another kind or shape. Bytes may be more or
        fewer, as those of a tree ensemble are.
    """
    if update.keys() != weights.keys():
        raise ValueError(
            f"the reply of the app's train function has the arrays {_some(update)}, but the model "
            f"that it was sent has {_some(weights)}: {_missing_or_more(update, weights)}"
        )
    _compare(update, weights, weights, "the reply of the app's train function")


def check_gradient(
    gradient: object, weights: ArrayRecord, layers: Mapping[str, Iterable[str]]
) -> ArrayRecord:
    """Return a gradient if it has an array like the model's for each one of the chosen layers.

    Raises
    ------
    TypeError
        If it is no array record.
    ValueError
        If an array is missing, or of another kind or shape.
    """
    if not isinstance(gradient, ArrayRecord):
        raise TypeError(
            f"the gradient function returned {type(gradient).__name__}, but must return an "
            "ArrayRecord with the names of the model's arrays"
        )
    names = [name for arrays in layers.values() for name in arrays]
    for name in names:
        if name not in gradient:
            raise ValueError(
                f"the gradient function gives no array {name!r}, which the model has; it gives "
                f"{_some(gradient)}"
            )
    _compare(gradient, weights, names, "the gradient function's result")
    return gradient


def _compare(
    given: Mapping[str, Array], weights: Mapping[str, Array], names: Iterable[str], what: str
) -> None:
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


def _some(arrays: Iterable[str]) -> str:
    names = list(arrays)
    more = f", ... ({len(names)} in all)" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) or "(none)") + more


def _missing_or_more(update: Iterable[str], weights: Iterable[str]) -> str:
    given, wanted = list(update), list(weights)
    missing = [name for name in wanted if name not in set(given)]
    extra = [name for name in given if name not in set(wanted)]
    parts = [f"it lacks {missing[0]!r}"] if missing else []
    return " and ".join(parts + ([f"{extra[0]!r} is new"] if extra else []))
