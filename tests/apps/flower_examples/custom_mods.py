"""Like custom-mods: the clients log their metrics by a mod that reads the round in the config."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from apps import Mod

from . import Config, Select, quickstart_pytorch
from .torch_task import Net, initial

RUN_CONFIG: Config = {
    "num-server-rounds": 3,
    "local-epochs": 1,
    "learning-rate": 0.1,
    "output": "",
}


def logging_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Write a line for each training of the client, into a file of its own."""
    server_round = message.content["config"]["server-round"]
    file = Path(str(context.run_config["output"])) / f"{context.node_config['partition-id']}.jsonl"
    if server_round == 1 and message.metadata.message_type == "train":
        file.touch()
    start = time.monotonic()
    reply = call_next(message, context)
    if reply.metadata.message_type == "train" and reply.has_content():
        row = {"round": server_round, "seconds": time.monotonic() - start}
        with file.open("a") as out:
            out.write(json.dumps({**row, **dict(reply.content["metrics"])}) + "\n")
    return reply


def make_client_app(*mods: Mod) -> ClientApp:
    return quickstart_pytorch.make_client_app(*mods, logging_mod)


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(FedAvg(fraction_evaluate=0.0))
    return strategy.start(
        grid=grid,
        initial_arrays=initial(Net),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=int(config["num-server-rounds"]),
    )
