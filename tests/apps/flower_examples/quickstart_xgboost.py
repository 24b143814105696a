"""Like quickstart-xgboost: the model is the bytes of an ensemble of trees, and begins empty.

The trees are made up; the bytes have the form that Flower's bagging reads.
"""

import json
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedXgbBagging, Result

from apps import Mod

from . import Config, Select

RUN_CONFIG: Config = {"num-server-rounds": 3, "fraction-train": 0.5, "fraction-evaluate": 1.0}


def trees_of(arrays: ArrayRecord) -> list[dict[str, Any]]:
    """Return the trees of an ensemble; as XGBoost, refuse one that is empty."""
    learner = json.loads(arrays["0"].numpy().tobytes())["learner"]
    trees: list[dict[str, Any]] = learner["gradient_booster"]["model"]["trees"]
    return trees


def one_tree(client: int, depth: int) -> bytes:
    model = {
        "gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"},
        "iteration_indptr": [0, 1],
        "tree_info": [0],
        "trees": [{"id": 0, "client": client, "split_conditions": [0.5] * depth}],
    }
    return json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode()


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if message.content["config"]["server-round"] > 1:
            trees_of(message.content["arrays"])
        client = int(context.node_config["partition-id"])
        tree = np.frombuffer(one_tree(client, depth=1 + client), dtype=np.uint8)
        metrics = MetricRecord({"num-examples": 10 + client})
        content = RecordDict({"arrays": ArrayRecord([tree]), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        auc = 1 - 0.5 / (1 + len(trees_of(message.content["arrays"])))
        metrics = MetricRecord({"auc": auc, "num-examples": 5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    base = FedXgbBagging(
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
    )
    strategy = select(base)
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.frombuffer(b"", dtype=np.uint8)]),
        num_rounds=int(config["num-server-rounds"]),
    )
