"""A NumPy app: client k pulls the weights towards a target of its own by gradient steps."""

from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from apps import Mod

Function = Callable[[Message, Context], Message]
LAYERS = {"body.weight": (3, 4), "body.bias": (3,), "head.weight": (2, 3), "head.bias": (2,)}


def initial_arrays(dtype: str = "float32") -> ArrayRecord:
    return ArrayRecord({name: Array(np.zeros(s, dtype)) for name, s in LAYERS.items()})


def target(client: int, name: str) -> np.ndarray:
    rng = np.random.default_rng([client, *name.encode()])
    return rng.normal(size=LAYERS[name]).astype(np.float32)


def gradient(message: Message, context: Context) -> ArrayRecord:
    """Return the gradient of |w - target|^2 / 2, which is w - target."""
    client = int(context.node_config["partition-id"])
    weights = message.content["arrays"]
    return ArrayRecord({n: Array(w.numpy() - target(client, n)) for n, w in weights.items()})


def train(message: Message, context: Context) -> Message:
    context.state["times-trained"] = ConfigRecord({"count": times_trained(context) + 1})
    lr = np.float32(message.content["config"].get("lr", 0.5))
    weights, slope = message.content["arrays"], gradient(message, context)
    arrays = ArrayRecord({n: Array(w.numpy() - lr * slope[n].numpy()) for n, w in weights.items()})
    metrics = MetricRecord({"num-examples": 1 + int(context.node_config["partition-id"])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    loss = sum(float((a.numpy() ** 2).sum()) for a in gradient(message, context).values()) / 2
    metrics = MetricRecord({"num-examples": 1, "loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def make_app(*mods: Mod, train: Function = train, evaluate: Function = evaluate) -> ClientApp:
    app = ClientApp(mods=list(mods))
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def sum_of_weights(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate a model on the server."""
    return MetricRecord({"sum": float(sum(a.numpy().sum() for a in arrays.values()))})


def times_trained(context: Context) -> int:
    return int(context.state["times-trained"]["count"]) if "times-trained" in context.state else 0
