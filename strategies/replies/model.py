"""What a model's arrays must be, and what may come back for each of them."""

import json
import math
from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from pncs_flower.messages.arrays import KINDS, NUMPY, read_array
from pncs_flower.messages.records import make_record, of_kind

from ..base_strategy import unwrap
from .arrays import CheckedArray


class OtherUpdateError(ValueError):
    """An update has other arrays, or arrays of another kind or shape, than the model."""


class Model:
    """The model that clients were sent: an update must have its names, kinds and shapes."""

    def __init__(self, weights: ArrayRecord, base: Strategy) -> None:
        self.weights = weights
        self.forms = {name: _form(name, array) for name, array in weights.items()}
        self._dtypes = {name: str(dtype) for name, (dtype, _) in self.forms.items()}
        # Bytes of a model that is nothing else, where the base strategy takes no mean of them.
        *_, inner = unwrap(base)
        joins = type(inner).aggregate_train is not FedAvg.aggregate_train
        self._grows = joins and all(
            dtype == np.uint8 and len(shape) == 1 for dtype, shape in self.forms.values()
        )
        bagging = getattr(flower, "FedXgbBagging", ())  # younger than the oldest release of Flower
        self._of_trees = any(isinstance(strategy, bagging) for strategy in unwrap(base))

    def fit(self, content: RecordDict) -> ArrayRecord:
        """Return an update's arrays in the model's order and precision, or raise why it is none."""
        # Some of Flower's strategies go by the places of arrays, and take on their precision.
        records = of_kind(content, ArrayRecord)
        if len(records) != 1:
            error = OtherUpdateError if records else ValueError
            raise error(f"{len(records)} array records in place of one")
        (sent,) = records.values()
        if sent.keys() != self.weights.keys():
            raise OtherUpdateError(
                f"arrays {', '.join(sent) or '(none)'} in place of {', '.join(self.weights)}"
            )
        fitted = {name: self._fit(name, sent[name]) for name in self.weights}
        return make_record(ArrayRecord, fitted)

    def like(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return an aggregated model in the dtypes of this one, or raise that it is not finite."""
        # A mean makes floating point of whole numbers and bools, and may have twice the precision.
        model = ArrayRecord({})
        for name, array in arrays.items():
            values = array.numpy()
            dtype, shape = self.forms.get(name, (None, ()))
            # Else the base strategy gives the model another form.
            alike = values.dtype.kind in KINDS and values.shape == shape
            if dtype is not None and array.dtype != str(dtype) and alike:
                values = _in_dtype(values, dtype)
                array = Array(values)
            if values.dtype.kind == "f":
                self._check_size(name, values)
            model[name] = array
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
            limits = np.iinfo(dtype)
            least, most = values.min(initial=0), values.max(initial=0)
            if least < limits.min or most > limits.max:
                raise ValueError(
                    f"array {name!r} holds whole numbers from {least} to {most}, but {dtype} goes "
                    f"from {limits.min} to {limits.max}"
                )
        if self._of_trees:
            _check_trees(values.tobytes())
        # What it says of itself may be wrong: Flower leaves it out of what a `client_fn` returns.
        described = array.dtype == self._dtypes[name] and tuple(array.shape) == values.shape
        if not described or values.dtype != dtype:
            array = Array(values.astype(dtype))
        return CheckedArray(array)

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


@cache
def _most(dtype: np.dtype) -> float:
    """Return the largest size that a value of a dtype may have."""
    # The square of a change is in the memory of an adaptive base strategy, and must be finite. In
    # double precision no more is allowed than in single: sketches of it would be infinite on the
    # wire. In half precision such a square may be infinite: `aggregate` sees to that.
    square = float(np.sqrt(np.finfo(np.float32).max)) / 4
    return min(square, float(np.finfo(dtype).max))


def _in_dtype(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return aggregated values in a dtype of the model; whole numbers are rounded."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # an infinite value is told of afterwards
            return values.astype(dtype)
    if not np.isfinite(values).all():
        return values
    if dtype.kind == "b":
        return np.asarray(values >= 0.5)
    limits = np.iinfo(dtype)
    rounded = np.rint(values.astype(np.float64)).clip(float(limits.min), float(limits.max))
    # 2**63 is a float64, but the largest int64 is not, so it is put in afterwards.
    top = rounded == float(limits.max)
    whole = np.where(top, limits.max, np.where(top, 0.0, rounded).astype(dtype))
    return np.asarray(whole, dtype=dtype)


def _check_trees(data: bytes) -> None:
    """Check tree ensembles in XGBoost's JSON, which bagging joins without looking at them."""
    try:
        ensemble = json.loads(data)
        model = ensemble["learner"]["gradient_booster"]["model"]
        sizes = model["gbtree_model_param"]
        num_trees, parallel = int(sizes["num_trees"]), int(sizes["num_parallel_tree"])
        starts, trees, info = model["iteration_indptr"], model["trees"], model["tree_info"]
        sound = (
            all(isinstance(part, list) for part in (starts, trees, info))
            and 1 <= parallel <= num_trees == len(trees)
            and all(isinstance(tree, dict) for tree in trees)
            and len(starts) > 0
            and all(isinstance(start, int) for start in starts)
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"no tree ensemble in XGBoost's JSON: {type(error).__name__}") from None
    if not sound:
        raise ValueError("no tree ensemble in XGBoost's JSON: its numbers of trees do not agree")
