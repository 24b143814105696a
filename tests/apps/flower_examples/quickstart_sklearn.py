"""Like quickstart-sklearn: logistic regression with a warm start, arrays without names."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from apps import Mod

from . import Config, Select

RUN_CONFIG: Config = {"num-server-rounds": 3, "local-epochs": 2}
CLASSES = np.arange(10)


def make_model(epochs: int, arrays: list[np.ndarray] | None = None) -> LogisticRegression:
    model = LogisticRegression(max_iter=epochs, warm_start=True)
    model.classes_ = CLASSES
    model.coef_, model.intercept_ = arrays or [np.zeros((10, 64)), np.zeros(10)]
    return model


def load_part(context: Context) -> tuple[np.ndarray, ...]:
    images, labels = load_digits(return_X_y=True)
    step = int(context.node_config["num-partitions"])
    mine = slice(int(context.node_config["partition-id"]), None, step)
    images, labels = images[mine], labels[mine]
    cut = len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    def received(message: Message, context: Context) -> LogisticRegression:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        return make_model(int(context.run_config["local-epochs"]), arrays)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = received(message, context)
        images, labels, _, _ = load_part(context)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that two steps have not converged
            model.fit(images, labels)
        metrics = {
            "num-examples": len(labels),
            "train_logloss": log_loss(labels, model.predict_proba(images), labels=CLASSES),
            "train_accuracy": model.score(images, labels),
        }
        arrays = ArrayRecord([model.coef_, model.intercept_])
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = received(message, context)
        _, _, images, labels = load_part(context)
        metrics = {
            "num-examples": len(labels),
            "test_logloss": log_loss(labels, model.predict_proba(images), labels=CLASSES),
            "accuracy": model.score(images, labels),
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(FedAvg(fraction_train=1.0, fraction_evaluate=1.0))
    model = make_model(int(config["local-epochs"]))
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([model.coef_, model.intercept_]),
        num_rounds=int(config["num-server-rounds"]),
    )
