"""What a model's arrays must be, and what may come back for each of them."""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord

__all__ = ["Model", "OtherUpdateError"]

_NUMPY = "numpy.ndarray"
_KINDS = "fiub"  # numbers of floating point, whole numbers with and without sign, bool


class OtherUpdateError(ValueError):
    """An update has other arrays, or arrays of another kind or shape, than the model."""


class Model:
    """The model that clients were sent, as their updates are compared with it.

    Parameters
    ----------
    weights : ArrayRecord
        The model.
    may_grow : bool (default: False)
        Whether the base strategy joins arrays of bytes in place of averaging them, as one for tree
        ensembles does. Then each may come back longer, if the model is nothing else than one or
        more arrays of bytes.

    Raises
    ------
    ValueError
        If an array is not one of numbers: no update could be compared with it.
    """

    def __init__(self, weights: ArrayRecord, may_grow: bool = False) -> None:
        self.weights = weights
        self.dtypes: dict[str, np.dtype] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, array in weights.items():
            self.dtypes[name], self.shapes[name] = _form(name, array)
        self._grows = may_grow and all(
            dtype == np.uint8 and len(self.shapes[name]) == 1 for name, dtype in self.dtypes.items()
        )

    def fit(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the values that a client sent for an array, in the model's precision.

        Parameters
        ----------
        name : str
            Name of one of the model's arrays.
        values : np.ndarray
            As sent.

        Returns
        -------
        np.ndarray
            The same object if nothing had to be converted.

        Raises
        ------
        OtherUpdateError
            If they are of another kind or shape than the model's.
        ValueError
            If one is not finite or does not fit into the model's precision. Values that the model
            itself has in the same place are always sound: a mask may hold infinite ones.
        """
        dtype, shape = self.dtypes[name], self.shapes[name]
        if values.dtype.kind != dtype.kind:
            raise OtherUpdateError(f"array {name!r} has dtype {values.dtype}, not {dtype}")
        if values.shape != shape and not (self._grows and values.ndim == 1):
            raise OtherUpdateError(f"array {name!r} has shape {values.shape}, not {shape}")
        if dtype.kind == "f":
            self._check_floats(name, values)
        elif dtype != values.dtype and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            least, most = values.min(initial=0), values.max(initial=0)
            if least < limits.min or most > limits.max:
                raise ValueError(
                    f"array {name!r} holds whole numbers from {least} to {most}, but {dtype} "
                    f"goes from {limits.min} to {limits.max}"
                )
        return values if values.dtype == dtype else values.astype(dtype)

    def like(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return an aggregated model with each array in the dtype that the model's has.

        A mean makes floating point of whole numbers, such as of the batches that a normalisation
        layer has counted, and of bools; and some strategies give twice the precision. Clients would
        go on to send what they have, and so be of another model.
        """
        return ArrayRecord({name: self._like(name, array) for name, array in arrays.items()})

    def is_finite(self, arrays: Mapping[str, Array]) -> bool:
        """Tell whether all values are as an update's must be: finite, and their squares too.

        Clients could do nothing with others, and those that are honest would be left out.
        """
        for name, array in arrays.items():
            values = array.numpy()
            if values.dtype.kind == "f" and self._largest_odd(name, values) is not None:
                return False
        return True

    def _check_floats(self, name: str, values: np.ndarray) -> None:
        largest = self._largest_odd(name, values)
        if largest is None:
            return
        if not math.isfinite(largest):
            raise ValueError(f"array {name!r} holds a value that is not finite")
        dtype = self.dtypes[name]
        raise ValueError(
            f"array {name!r} holds a value of size {largest:.2g}, but at most {_most(dtype):.2g} "
            f"is allowed for {dtype}"
        )

    def _largest_odd(self, name: str, values: np.ndarray) -> float | None:
        """Return the size of the largest value, if it is too large; None if none is.

        Not counting those that the model itself has in the same place.
        """
        largest = float(np.maximum(values.max(initial=0), -values.min(initial=0)))
        dtype = self.dtypes.get(name, values.dtype)
        most = _most(dtype if dtype.kind == "f" else values.dtype)
        if largest <= most:  # False for NaN
            return None
        odd = ~(np.abs(values) <= most)
        before = self.weights[name].numpy() if name in self.weights else np.empty(0)
        if before.shape == values.shape and np.array_equal(
            values[odd], before[odd], equal_nan=True
        ):
            return None
        return largest

    def _like(self, name: str, array: Array) -> Array:
        dtype = self.dtypes.get(name)
        if dtype is None or array.dtype == str(dtype):
            return array
        values = array.numpy()
        if values.dtype.kind not in _KINDS or values.shape != self.shapes[name]:
            return array  # a base strategy that gives the model another form
        if dtype.kind == "b":
            return Array(np.asarray(values >= 0.5)) if _finite(values) else array
        if dtype.kind in "iu":
            return Array(_whole(values, dtype)) if _finite(values) else array
        with np.errstate(over="ignore"):  # an infinite value is told of by `is_finite`
            return Array(np.asarray(values, dtype=dtype))


def _form(name: str, array: Array) -> tuple[np.dtype, tuple[int, ...]]:
    if array.stype == _NUMPY and not array.dtype:  # as Flower makes them of older parameters
        values = array.numpy()
        return values.dtype, values.shape
    try:
        dtype = np.dtype(array.dtype)
    except TypeError:
        dtype = None
    if array.stype != _NUMPY or dtype is None or dtype.kind not in _KINDS:
        raise ValueError(
            f"array {name!r} of the model has dtype {array.dtype} (type {array.stype!r}), but "
            "updates can be checked and averaged only where all arrays are NumPy arrays of "
            "floating point, whole numbers or bool: send this one in another form, or keep it out "
            "of the model that clients exchange"
        )
    return dtype, tuple(array.shape)


@cache
def _most(dtype: np.dtype) -> float:
    """Return the largest size that a value of a dtype may have.

    With larger weights every client's loss and gradient would be infinite in the next round, and so
    would the square of a change in the memory of an adaptive base strategy. In double precision no
    more is allowed than in single: sketches of it would be infinite on the wire. In half precision
    the dtype's own range counts, so there such a square may be infinite: `aggregate` sees to that.
    """
    square = float(np.sqrt(np.finfo(np.float32).max)) / 4
    return min(square, float(np.finfo(dtype).max))


def _finite(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all())


def _whole(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to whole numbers of a dtype; what lies beyond its range becomes its limit."""
    limits = np.iinfo(dtype)
    rounded = np.rint(values.astype(np.float64))
    # 2**63 is a float64, but the largest int64 is not, so what is too large is put in afterwards.
    high, low = rounded >= float(limits.max), rounded <= float(limits.min)
    whole = np.where(high | low, 0.0, rounded).astype(dtype)
    whole = np.where(high, limits.max, np.where(low, limits.min, whole))
    return np.asarray(whole, dtype=dtype)
