"""Like quickstart-numpy: a model of one number that is a matrix, moved at random by each client."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from apps import Mod

from . import Config, Select

RUN_CONFIG: Config = {"num-server-rounds": 3}


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = message.content["arrays"].to_numpy_ndarrays()
        rng = np.random.default_rng()
        moved = [values + rng.random(values.shape) for values in model]
        metrics = MetricRecord({"noise": rng.random(), "num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        noise = np.random.default_rng().random(3).tolist()
        metrics = MetricRecord({"noise": noise, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(FedAvg())
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.ones((1, 1))]),
        num_rounds=int(config["num-server-rounds"]),
    )
