"""The clients: a Flower app in scikit-learn, with one line added."""

import task
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from pncs_flower.clients import summary_mod

app = ClientApp(mods=[summary_mod])  # was: ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model to this client's digits, one pass."""
    model = task.make_model(msg.content.array_records["arrays"].to_numpy_ndarrays())
    images, labels = _examples(context)
    model.partial_fit(images, labels)
    metrics = MetricRecord({"num-examples": len(labels)})
    arrays = ArrayRecord([model.coef_, model.intercept_])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Say how well the model does on this client's digits."""
    model = task.make_model(msg.content.array_records["arrays"].to_numpy_ndarrays())
    images, labels = _examples(context)
    metrics = MetricRecord(
        {
            "loss": float(log_loss(labels, model.predict_proba(images), labels=task.CLASSES)),
            "accuracy": float(model.score(images, labels)),
            "num-examples": len(labels),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def _examples(context: Context) -> task.Examples:
    place = context.node_config
    return task.load_data(int(place["partition-id"]), int(place["num-partitions"]))
