"""The client of the example: an ordinary Flower app with the mod, which is the one line added."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sites import NUM_POINTS, accuracy, gradient

from pncs_flower.clients import summary_mod

app = ClientApp(mods=[summary_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take ten steps of gradient descent on this site's points."""
    model, site = message.content.array_records["arrays"], int(context.node_config["partition-id"])
    for _ in range(10):
        slope = gradient(model, site)
        model = ArrayRecord({n: Array(w.numpy() - 0.5 * slope[n]) for n, w in model.items()})
    metrics = MetricRecord({"num-examples": NUM_POINTS})
    return Message(RecordDict({"arrays": model, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the accuracy on this site's points."""
    share = accuracy(
        message.content.array_records["arrays"], int(context.node_config["partition-id"])
    )
    metrics = MetricRecord({"num-examples": NUM_POINTS, "accuracy": share})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
