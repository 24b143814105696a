"""A NumPy app whose model has every kind of array that models have; clients pull at the floats."""

from importlib.metadata import version

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from packaging.version import Version

from apps import Mod, numpy_app
from pncs_flower.messages.arrays import read_array

# Before Flower 1.28, only FedAvg, FedProx, Krum and MultiKrum take arrays without dimensions.
TAKES_SCALARS = Version(version("flwr")) >= Version("1.28")
SCALAR = () if TAKES_SCALARS else (1,)
ARRAYS = {
    "conv.weight": np.full((3, 4), 0.5, np.float32),
    "norm.weight": np.ones(3, np.float32),
    "norm.running_mean": np.zeros(3, np.float32),
    "norm.running_var": np.ones(3, np.float32),
    "norm.num_batches_tracked": np.full(SCALAR, 0, np.int64),
    "temperature": np.full(SCALAR, 1.5, np.float32),
    "unused.weight": np.zeros((0, 3), np.float32),
    "half.weight": np.full(5, 0.25, np.float16),
    "double.weight": np.full((2, 1), -1.0, np.float64),
    "swapped.weight": np.full(2, 2.0, ">f4"),
    "mask": np.array([True, False, True, True]),
    "flag": np.full(SCALAR, True),
    "bytes": np.arange(6, dtype=np.uint8),
    "table": np.array([[2**53 + 1, -5], [0, 7]], np.int64),
    "index": np.array([3, 1, 2], np.int32),
}
FLOATS = tuple(name for name, values in ARRAYS.items() if values.dtype.kind == "f")
UNCHANGED = ("mask", "flag", "bytes", "index")
# As a mask of attention may be. Adaptive base strategies cannot take it: a difference is NaN.
INFINITE = np.array([0.0, -np.inf, np.finfo("f4").min], np.float32)


def initial_arrays() -> ArrayRecord:
    return ArrayRecord({name: Array(values.copy()) for name, values in ARRAYS.items()})


def with_infinite() -> ArrayRecord:
    return ArrayRecord({**initial_arrays(), "infinite": Array(INFINITE.copy())})


def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    arrays = dict(message.content["arrays"])
    for name, array in arrays.items():
        if name in ("norm.num_batches_tracked", *FLOATS):
            values = read_array(array)  # several times as quick as Flower's way
            if name in FLOATS:
                values = values + values.dtype.type(0.5) * (values.dtype.type(client + 1) - values)
            else:
                values = values + 3 + client
            arrays[name] = Array(np.asarray(values, dtype=array.dtype))
    metrics = MetricRecord({"num-examples": 1 + client, "loss": 1.0 / (client + 1)})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": 1 + client, "loss": 1.0, "per-class": [0.5, 0.25]})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def make_app(*mods: Mod) -> ClientApp:
    return numpy_app.make_app(*mods, train=train, evaluate=evaluate)


def assert_same_kinds(arrays: ArrayRecord) -> None:
    """Assert that a model has the arrays it started with, in shape and dtype, and is finite."""
    for name, first in ARRAYS.items():
        values = read_array(arrays[name])
        assert (values.shape, values.dtype) == (first.shape, first.dtype), name
        assert np.isfinite(values).all(), name
