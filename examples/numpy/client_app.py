"""The clients: a Flower app in NumPy alone, with one line added."""

import task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pncs_flower.clients import summary_mod

app = ClientApp(mods=[summary_mod])  # was: ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train on this client's data."""
    (weights,) = msg.content.array_records["arrays"].to_numpy_ndarrays()
    inputs, targets = task.load_data(int(context.node_config["partition-id"]))
    weights = task.train(weights, inputs, targets, float(context.run_config["lr"]))
    metrics = MetricRecord({"num-examples": len(targets)})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Return the loss on this client's data."""
    (weights,) = msg.content.array_records["arrays"].to_numpy_ndarrays()
    inputs, targets = task.load_data(int(context.node_config["partition-id"]))
    metrics = MetricRecord(
        {"loss": task.loss(weights, inputs, targets), "num-examples": len(targets)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
