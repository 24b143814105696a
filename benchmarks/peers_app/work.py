"""The work that benchmarks/peers.py has all peers do, what it tells them and what they tell it.

Client k has examples of its own in memory and takes one pass over them by SGD, in an order that
follows from the round; the new model is the mean of theirs, weighted by their examples.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pncs_flower.randomness import derive_seed

VARIABLE = "PEERS_TASK"  # of the environment: also the processes that a peer starts have it
VERSIONS = ("torch", "flwr", "ray", "blazefl", "pfl")
CLASSES = 10
LR = 0.003  # with 0.1, rounding alone leads the CNN elsewhere in ten rounds


@dataclass(frozen=True)
class Work:
    """A model, the clients, and the most examples that one has, and that a step takes."""

    model: str
    clients: int
    examples: int
    batch_size: int = 32

    @property
    def inputs(self) -> tuple[int, ...]:
        return {"linear": (4100,), "mlp": (784,), "cnn": (1, 28, 28)}[self.model]


@dataclass(frozen=True)
class Task:
    """What a peer is to do."""

    work: Work
    rounds: int
    how: str
    workers: int
    output: str  # a file, which `tell` writes

    @classmethod
    @cache  # each client asks
    def told(cls) -> "Task":
        values = json.loads(os.environ[VARIABLE])
        return cls(**{**values, "work": Work(**values["work"])})

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def make_model(work: Work) -> nn.Module:
    if work.model == "linear":
        return nn.Linear(4100, CLASSES)
    if work.model == "mlp":
        return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    layers = [nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, CLASSES))


def first_model(work: Work) -> nn.Module:
    """Make the model that all peers begin with."""
    torch.manual_seed(0)
    return make_model(work)


@lru_cache(maxsize=1)
def examples(work: Work) -> list[tuple[Tensor, Tensor]]:
    """Make the inputs and targets of all clients: as many as the work says, or half of that."""
    random = torch.Generator().manual_seed(0)
    one_step = work.examples <= work.batch_size
    sizes = [
        work.examples if one_step or client % 2 else work.examples // 2
        for client in range(work.clients)
    ]
    return [
        (
            torch.randn(size, *work.inputs, generator=random),
            torch.randint(0, CLASSES, (size,), generator=random),
        )
        for size in sizes
    ]


def batches(work: Work, client: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a client's batches of a round, in the order of the library's own client."""
    inputs, targets = examples(work)[client]
    if len(inputs) <= work.batch_size:
        yield inputs, targets
        return
    seed = derive_seed(0, "local training", number, str(client))
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(work.batch_size):
        yield inputs[chosen], targets[chosen]


def train(model: nn.Module, work: Work, client: int, number: int) -> None:
    """Train as a tutorial would."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for inputs, targets in batches(work, client, number):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def tell(task: Task, ends: Sequence[float], state: Mapping[str, Tensor]) -> None:
    """Write when each round ended (seconds), the final weights, and the versions."""
    versions = {}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    told = {"ends": list(ends), "state": dict(state), "versions": versions}
    torch.save(told, task.output)
