"""Like opacus: each client clips and noises the gradients of single examples as it trains."""

import warnings

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy

from apps import Mod

from . import Config, Select
from .torch_task import Net, evaluate_reply, initial, load_data, loaded, num_examples

RUN_CONFIG: Config = {"num-server-rounds": 2, "max-grad-norm": 1.0, "target-delta": 1e-3}


def make_client_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = loaded(Net, message.content["arrays"])
        loader, _ = load_data(context)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is quick and not secure
            engine = PrivacyEngine(accountant="rdp")
            private, optimizer, batches = engine.make_private(
                module=net.train(),
                optimizer=optimizer,
                data_loader=loader,
                noise_multiplier=1.0 if int(context.node_config["partition-id"]) % 2 else 1.5,
                max_grad_norm=float(context.run_config["max-grad-norm"]),
            )
            for images, labels in batches:
                optimizer.zero_grad()
                cross_entropy(private(images), labels).backward()
                optimizer.step()
            epsilon = engine.get_epsilon(float(context.run_config["target-delta"]))
        metrics = MetricRecord({"epsilon": epsilon, "num-examples": num_examples(loader)})
        arrays = ArrayRecord(net.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return evaluate_reply(Net, message, context)

    return app


def main(grid: Grid, config: Config, select: Select) -> Result:
    strategy = select(FedAvg())
    return strategy.start(
        grid=grid, initial_arrays=initial(Net), num_rounds=int(config["num-server-rounds"])
    )
