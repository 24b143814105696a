"""A residual network with batch normalisation, whose rate the base strategy lowers each round."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from apps import Mod

from . import Config, Select
from .torch_task import ResNet, evaluate_reply, global_evaluate, initial, train_reply

RUN_CONFIG: Config = {"num-server-rounds": 4, "local-epochs": 1, "learning-rate": 0.05}


class Decaying(FedAvg):
    """Lowers the rate in the config that it is given, and keeps what it was sent with."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["lr"] = config["lr"] * 0.8  # type: ignore[operator]
        self.rates.append(config["lr"])  # type: ignore[arg-type]
        return super().configure_train(server_round, arrays, config, grid)


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = train_reply(ResNet, message, context)
        reply.content["metrics"]["lr"] = message.content["config"]["lr"]
        return reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return evaluate_reply(ResNet, message, context)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return global_evaluate(ResNet, arrays)

    strategy = select(Decaying())
    return strategy.start(
        grid=grid,
        initial_arrays=initial(ResNet),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
