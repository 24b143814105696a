"""Like quickstart-pytorch: a config for training, evaluation on half of the clients and at home."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from apps import Mod

from . import Config, Select
from .torch_task import Net, evaluate_reply, global_evaluate, initial, train_reply

RUN_CONFIG: Config = {
    "num-server-rounds": 3,
    "fraction-evaluate": 0.5,
    "local-epochs": 1,
    "learning-rate": 0.1,
}


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return train_reply(Net, message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return evaluate_reply(Net, message, context)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return global_evaluate(Net, arrays)

    strategy = select(FedAvg(fraction_evaluate=float(config["fraction-evaluate"])))
    return strategy.start(
        grid=grid,
        initial_arrays=initial(Net),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
