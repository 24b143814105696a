"""A scikit-learn app: logistic regression on the digits that a client holds."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from apps import Mod

CLASSES = np.arange(10)


def initial_arrays() -> ArrayRecord:
    return ArrayRecord([np.zeros((10, 64)), np.zeros(10)])


def make_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        images, labels = load_digits(return_X_y=True)
        mine = slice(int(context.node_config["partition-id"]), None, 10)
        model = SGDClassifier(loss="log_loss", random_state=0)
        model.partial_fit(images[mine], labels[mine], classes=CLASSES)
        model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
        model.partial_fit(images[mine], labels[mine])
        arrays = ArrayRecord([model.coef_, model.intercept_])
        metrics = MetricRecord({"num-examples": len(labels[mine])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app
