"""A PyTorch app in the layout that Flower's templates have, on data made from a seed."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from apps import Mod


class Net(nn.Module):
    """With what a state dict may hold besides weights: averages, and a counter of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


def load_data(client: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(client)
    labels = (torch.arange(12 + client) + client) % 3
    images = torch.randn(len(labels), 1, 6, 6, generator=rng) + labels[:, None, None, None]
    return images, labels


def make_app(*mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        images, labels = load_data(int(context.node_config["partition-id"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
        model.train()
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        metrics = {"train_loss": loss.item(), "num-examples": len(labels)}
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
        )
        return Message(content=content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        model = Net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        images, labels = load_data(int(context.node_config["partition-id"]))
        model.eval()
        with torch.no_grad():
            outputs = model(images)
        metrics = {
            "eval_loss": cross_entropy(outputs, labels).item(),
            "eval_acc": (outputs.argmax(1) == labels).float().mean().item(),
            "num-examples": len(labels),
        }
        content = RecordDict({"metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=msg)

    return app


def make_server(strategy: Strategy, results: list[Result]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        model = Net()
        results.append(
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(model.state_dict()),
                train_config=ConfigRecord({"lr": context.run_config["lr"]}),
                num_rounds=int(context.run_config["num-server-rounds"]),
            )
        )
        model.load_state_dict(results[-1].arrays.to_torch_state_dict())

    return app
