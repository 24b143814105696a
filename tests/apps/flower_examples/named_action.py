"""An app whose functions have names, and a base strategy that sends its messages to them."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from apps import Mod, numpy_app

from . import Config, Select

RUN_CONFIG: Config = {"num-server-rounds": 3}


class Addressing(FedAvg):
    """Sends to ``train.sgd`` and ``evaluate.held_out``."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return _addressed(super().configure_train(server_round, arrays, config, grid), "sgd")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        return _addressed(messages, "held_out")


def _addressed(messages: Iterable[Message], action: str) -> Iterable[Message]:
    for message in messages:
        kind = f"{message.metadata.message_type}.{action}"
        yield Message(message.content, message.metadata.dst_node_id, kind)


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))
    app.train("sgd")(numpy_app.train)
    app.evaluate("held_out")(numpy_app.evaluate)
    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(Addressing())
    return strategy.start(
        grid=grid,
        initial_arrays=numpy_app.initial_arrays(),
        num_rounds=int(config["num-server-rounds"]),
    )
