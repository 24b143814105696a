"""FedProx: the base strategy sends the proximal term's weight; slow clients do part of the work.

How many steps a client takes is set by a mod, which is a function with some arguments filled in.
"""

from functools import partial

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedProx, Result

from apps import Mod, numpy_app

from . import Config, Select

RUN_CONFIG: Config = {"num-server-rounds": 3, "proximal-mu": 0.5}


def part_of_the_work(
    message: Message, context: Context, call_next: ClientAppCallable, *, most_steps: int
) -> Message:
    steps = 1 + int(context.node_config["partition-id"]) % most_steps
    message.content["config"]["steps"] = steps
    return call_next(message, context)


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=[*mods, partial(part_of_the_work, most_steps=3)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        client = int(context.node_config["partition-id"])
        start = {name: array.numpy() for name, array in message.content["arrays"].items()}
        weights = dict(start)
        for _ in range(config["steps"]):
            for name, values in weights.items():
                slope = values - numpy_app.target(client, name)
                slope = slope + config["proximal-mu"] * (values - start[name])
                weights[name] = (values - 0.3 * slope).astype(np.float32)
        arrays = ArrayRecord({name: Array(values) for name, values in weights.items()})
        metrics = MetricRecord({"num-examples": 1 + client, "steps": config["steps"]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    app.evaluate()(numpy_app.evaluate)
    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(FedProx(proximal_mu=float(config["proximal-mu"])))
    return strategy.start(
        grid=grid,
        initial_arrays=numpy_app.initial_arrays(),
        num_rounds=int(config["num-server-rounds"]),
    )
