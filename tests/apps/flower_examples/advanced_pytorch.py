"""Like advanced-pytorch: a strategy with a loop of its own that writes files and logs to a board.

It is told where to write by a setter. The clients keep the head of the network to themselves, in
their context's state.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, Result

from apps import Mod

from . import Config, Select
from .torch_task import Net, global_evaluate, initial, load_data, loaded, num_examples, test, train

RUN_CONFIG: Config = {
    "num-server-rounds": 4,
    "fraction-train": 0.5,
    "fraction-evaluate": 0.5,
    "local-epochs": 1,
    "output": "",
}
HEAD = "classification-head"


class Board:
    """Takes the place of a service that runs are logged to."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def log(self, values: dict[str, Any], step: int) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


class SavingFedAdagrad(FedAdagrad):
    """Lowers the rate in round 3; saves metrics in each round, and the model when it is better."""

    def set_save_path(self, folder: Path) -> None:
        self.folder = folder

    def save_if_best(self, server_round: int, accuracy: float, arrays: ArrayRecord) -> None:
        if accuracy > self.best:
            self.best = accuracy
            values = {name: array.numpy() for name, array in arrays.items()}
            np.savez(self.folder / f"best_{server_round}.npz", **values)

    def save_metrics(self, server_round: int, result: Result) -> None:
        file = self.folder / "results.json"
        rounds = json.loads(file.read_text()) if file.exists() else []
        train_metrics = dict(result.train_metrics_clientapp.get(server_round, {}))
        eval_metrics = dict(result.evaluate_metrics_clientapp.get(server_round, {}))
        row = {"round": server_round, "train": train_metrics, "evaluate": eval_metrics}
        file.write_text(json.dumps([*rounds, row]))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 3:
            config["lr"] = config["lr"] * 0.5  # type: ignore[operator]
        return super().configure_train(server_round, arrays, config, grid)

    def start(  # type: ignore[no-untyped-def]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn=None,
    ) -> Result:
        """Run the loop of Flower's own start, and log and save on the way."""
        board = Board(self.folder / "board.jsonl")
        self.best = 0.0
        self.summary()
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        result, arrays = Result(), initial_arrays
        if evaluate_fn:
            result.evaluate_metrics_serverapp[0] = evaluate_fn(0, arrays)
        for number in range(1, num_rounds + 1):
            replies = grid.send_and_receive(
                self.configure_train(number, arrays, train_config, grid), timeout=timeout
            )
            new_arrays, metrics = self.aggregate_train(number, replies)
            if new_arrays is not None:
                result.arrays = arrays = new_arrays
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
                board.log(dict(metrics), number)
            replies = grid.send_and_receive(
                self.configure_evaluate(number, arrays, evaluate_config, grid), timeout=timeout
            )
            metrics = self.aggregate_evaluate(number, replies)
            if metrics is not None:
                result.evaluate_metrics_clientapp[number] = metrics
                board.log(dict(metrics), number)
            if evaluate_fn:
                result.evaluate_metrics_serverapp[number] = central = evaluate_fn(number, arrays)
                self.save_if_best(number, central["accuracy"], arrays)
                board.log(dict(central), number)
            self.save_metrics(number, result)
        return result


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    def received(message: Message, context: Context) -> Net:
        net = loaded(Net, message.content["arrays"])
        assert isinstance(net, Net)
        if HEAD in context.state.array_records:
            net.fc2.load_state_dict(context.state[HEAD].to_torch_state_dict())
        return net

    @app.train()
    def train_(message: Message, context: Context) -> Message:
        net = received(message, context)
        loader, _ = load_data(context)
        epochs = int(context.run_config["local-epochs"])
        loss = train(net, loader, epochs, message.content["config"]["lr"])
        context.state[HEAD] = ArrayRecord(net.fc2.state_dict())
        metrics = MetricRecord({"train_loss": loss, "num-examples": num_examples(loader)})
        arrays = ArrayRecord(net.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, loader = load_data(context)
        loss, accuracy = test(received(message, context), loader)
        metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": num_examples(loader)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def make_base(config: Config) -> SavingFedAdagrad:
    return SavingFedAdagrad(
        fraction_train=float(config["fraction-train"]),
        fraction_evaluate=float(config["fraction-evaluate"]),
        eta=0.05,
        tau=0.01,
    )


def central_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return global_evaluate(Net, arrays)


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(make_base(config))
    strategy.set_save_path(Path(str(config["output"])))
    return strategy.start(
        grid=grid,
        initial_arrays=initial(Net),
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=central_evaluate,
    )


def main_with_selection(grid: Grid, config: Config, select: Select) -> Result:
    """Do the same with the two lines: the setter is the base's, and so is what start() adds."""
    folder = Path(str(config["output"]))
    strategy = select(make_base(config))
    base = strategy.base
    base.set_save_path(folder)
    base.best = 0.0
    board = Board(folder / "board.jsonl")

    def after_round(number: int, result: Result) -> bool:
        for records in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            if number in records:
                board.log(dict(records[number]), number)
        accuracy = result.evaluate_metrics_serverapp[number]["accuracy"]
        base.save_if_best(number, accuracy, result.arrays)
        base.save_metrics(number, result)
        return False

    return strategy.start(
        grid=grid,
        initial_arrays=initial(Net),
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=central_evaluate,
        should_stop=after_round,
    )
