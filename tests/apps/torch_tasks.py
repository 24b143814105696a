"""Tasks other than the classification of images, in one app: text, tables, regression."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from apps import Mod

WORDS, COLUMNS = 30, 5


class TextNet(nn.Module):
    """Words, a recurrent layer over them, and two classes; its inputs are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(words))[0][:, -1])


class TableNet(nn.Module):
    """Numbers beside one column of categories, scaled by what was seen; one output."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(3, 2)
        self.scale = nn.BatchNorm1d(COLUMNS)
        self.out = nn.Linear(COLUMNS + 2, 1)

    def forward(self, table: Tensor) -> Tensor:
        numbers, kind = table[:, :-1], table[:, -1].long()
        return self.out(torch.cat([self.scale(numbers), self.kind(kind)], 1))[:, 0]


class Regression(nn.Module):
    """A line through points, in double precision, with a weight of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(COLUMNS, dtype=torch.float64))
        self.offset = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, points: Tensor) -> Tensor:
        return points @ self.slope + self.offset


def texts(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    words = torch.randint(1, WORDS, (16, 7), generator=rng)
    return words, (words[:, -1] % 2).long()


def tables(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    numbers = torch.randn(16, COLUMNS, generator=rng) * 100
    kind = torch.randint(0, 3, (16, 1), generator=rng)
    return torch.cat([numbers, kind], 1), (numbers[:, 0] > 0).float()


def points(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    values = torch.randn(16, COLUMNS, generator=rng, dtype=torch.float64)
    return values, values.sum(1) * 3 + 1


class Task(NamedTuple):
    model: type[nn.Module]
    data: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


TASKS = {
    "text": Task(TextNet, texts, cross_entropy),
    "table": Task(TableNet, tables, binary_cross_entropy_with_logits),
    "regression": Task(Regression, points, mse_loss),
}


def initial_arrays(task: Task) -> ArrayRecord:
    torch.manual_seed(0)
    return ArrayRecord(task.model().state_dict())


def make_app(task: Task, *mods: Mod) -> ClientApp:
    app = ClientApp(mods=list(mods))

    def received(message: Message, context: Context) -> tuple[nn.Module, Tensor, Tensor]:
        model = task.model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        return model, *task.data(rng)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, inputs, wanted = received(message, context)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for _ in range(4):
            optimizer.zero_grad()
            loss = task.loss(model.train()(inputs), wanted)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(wanted)})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model, inputs, wanted = received(message, context)
        with torch.no_grad():
            loss = task.loss(model.eval()(inputs), wanted)
        metrics = MetricRecord({"loss": loss.item(), "num-examples": len(wanted)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app
