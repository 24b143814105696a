"""What a model's arrays must be, and what may come back for each of them."""

import math
from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from .arrays import KINDS, NUMPY, read_array

__all__ = ["Model", "OtherUpdateError"]


class OtherUpdateError(ValueError):
    """An update has other arrays, or arrays of another kind or shape, than the model."""


class Model:
    """The model that clients were sent: an update must have its names, kinds and shapes."""

    def __init__(self, weights: ArrayRecord, may_grow: bool = False) -> None:
        self.weights = weights
        self.forms = {name: _form(name, array) for name, array in weights.items()}
        # Bytes of a model that is nothing else, where the base strategy joins them.
        self._grows = may_grow and all(
            dtype == np.uint8 and len(shape) == 1 for dtype, shape in self.forms.values()
        )

    def fit(self, content: RecordDict) -> ArrayRecord:
        """Return an update's arrays in the model's order and precision, or raise why it is none."""
        # Some of Flower's strategies go by the places of arrays, and take on their precision.
        records = content.array_records
        if len(records) != 1:
            raise OtherUpdateError(f"{len(records)} array records in place of one")
        (sent,) = records.values()
        if sent.keys() != self.weights.keys():
            raise OtherUpdateError(
                f"arrays {', '.join(sent) or '(none)'} in place of {', '.join(self.weights)}"
            )
        return ArrayRecord({name: self._fit(name, sent[name]) for name in self.weights})

    def like(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return an aggregated model in the dtypes of this one, or raise that it is not finite."""
        # A mean makes floating point of whole numbers and bools, and may have twice the precision.
        model = ArrayRecord({name: self._like(name, array) for name, array in arrays.items()})
        for name, array in model.items():
            values = array.numpy()
            if values.dtype.kind == "f":
                self._check_size(name, values)
        return model

    def _fit(self, name: str, array: Array) -> Array:
        try:
            values = read_array(array)
        except ValueError as error:
            raise ValueError(f"array {name!r}: {error}") from None
        dtype, shape = self.forms[name]
        if values.dtype.kind != dtype.kind:
            raise OtherUpdateError(f"array {name!r} has dtype {values.dtype}, not {dtype}")
        if values.shape != shape and not (self._grows and values.ndim == 1):
            raise OtherUpdateError(f"array {name!r} has shape {values.shape}, not {shape}")
        if dtype.kind == "f":
            self._check_size(name, values)
        elif dtype.kind in "iu" and values.dtype != dtype:
            _check_range(name, values, dtype)
        # What it says of itself may be wrong: Flower leaves it out of what a `client_fn` returns.
        if values.dtype == dtype and (array.dtype, tuple(array.shape)) == (
            str(values.dtype),
            values.shape,
        ):
            return array
        return Array(np.asarray(values, dtype=dtype))

    def _check_size(self, name: str, values: np.ndarray) -> None:
        """Refuse values that are too large, unless the model has the same there, as in a mask."""
        dtype, _ = self.forms.get(name, (values.dtype, ()))
        most = _most(dtype if dtype.kind == "f" else values.dtype)
        largest = float(np.maximum(values.max(initial=0), -values.min(initial=0)))
        if largest <= most:  # False for NaN
            return
        odd = ~(np.abs(values) <= most)
        before = self.weights[name].numpy() if name in self.weights else np.empty(0)
        if before.shape == values.shape and np.array_equal(
            values[odd], before[odd], equal_nan=True
        ):
            return
        if not math.isfinite(largest):
            raise ValueError(f"array {name!r} holds a value that is not finite")
        raise ValueError(
            f"array {name!r} holds a value of size {largest:.2g}, but at most {most:.2g} is "
            f"allowed for {dtype}"
        )

    def _like(self, name: str, array: Array) -> Array:
        dtype, shape = self.forms.get(name, (None, ()))
        if dtype is None or array.dtype == str(dtype):
            return array
        values = array.numpy()
        if values.dtype.kind not in KINDS or values.shape != shape:
            return array  # a base strategy that gives the model another form
        if dtype.kind == "f":
            with np.errstate(over="ignore"):  # an infinite value is told of afterwards
                return Array(np.asarray(values, dtype=dtype))
        if not np.isfinite(values).all():
            return array
        return Array(np.asarray(values >= 0.5) if dtype.kind == "b" else _whole(values, dtype))


def _form(name: str, array: Array) -> tuple[np.dtype, tuple[int, ...]]:
    if array.stype == NUMPY and not array.dtype:  # as Flower makes them of older parameters
        values = array.numpy()
        return values.dtype, values.shape
    try:
        dtype = np.dtype(array.dtype)
    except TypeError:
        dtype = None
    if array.stype != NUMPY or dtype is None or dtype.kind not in KINDS:
        raise ValueError(
            f"array {name!r} of the model has dtype {array.dtype} (type {array.stype!r}), but "
            "updates can be checked and averaged only where all arrays are NumPy arrays of "
            "floating point, whole numbers or bool: send this one in another form, or keep it out "
            "of the model that clients exchange"
        )
    return dtype, tuple(array.shape)


def _check_range(name: str, values: np.ndarray, dtype: np.dtype) -> None:
    limits = np.iinfo(dtype)
    least, most = values.min(initial=0), values.max(initial=0)
    if least < limits.min or most > limits.max:
        raise ValueError(
            f"array {name!r} holds whole numbers from {least} to {most}, but {dtype} goes from "
            f"{limits.min} to {limits.max}"
        )


@cache
def _most(dtype: np.dtype) -> float:
    """Return the largest size that a value of a dtype may have."""
    # The square of a change is in the memory of an adaptive base strategy, and must be finite. In
    # double precision no more is allowed than in single: sketches of it would be infinite on the
    # wire. In half precision such a square may be infinite: `aggregate` sees to that.
    square = float(np.sqrt(np.finfo(np.float32).max)) / 4
    return min(square, float(np.finfo(dtype).max))


def _whole(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to whole numbers of a dtype; what lies beyond its range becomes its limit."""
    limits = np.iinfo(dtype)
    rounded = np.rint(values.astype(np.float64))
    # 2**63 is a float64, but the largest int64 is not, so what is too large is put in afterwards.
    high, low = rounded >= float(limits.max), rounded <= float(limits.min)
    whole = np.where(high | low, 0.0, rounded).astype(dtype)
    whole = np.where(high, limits.max, np.where(low, limits.min, whole))
    return np.asarray(whole, dtype=dtype)
