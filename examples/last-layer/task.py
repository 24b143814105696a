"""A network that knows the digits 0 to 4, and its last layer, which is to learn all ten."""

from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Examples = tuple[Tensor, Tensor]

# Clients that share a machine get one core each, and sums in one order have the same bits.
torch.set_num_threads(1)
Weights = dict[str, Tensor]

TRAVELS = "head."
_STEPS = 200


class Net(nn.Module):
    """A body whose weights are frozen, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each image, shape (n, 10)."""
        logits: Tensor = self.head(self.body(images))
        return logits


def load_model(weights: Weights | None = None) -> Net:
    """Return the network with its frozen body, and with the weights that have travelled, if any."""
    model = Net()
    model.load_state_dict({**_pre_trained(), **(weights or {})})
    model.body.requires_grad_(False)
    return model


def travelling(model: Net) -> Weights:
    """Return the weights that travel: those of the last layer."""
    return {name: value for name, value in model.state_dict().items() if name.startswith(TRAVELS)}


def load_data(client: int, num_clients: int) -> Examples:
    """Return a client's digits: of five kinds only, since real clients are not alike either."""
    images, labels = _digits()
    train = torch.arange(len(labels)) % 5 != 0
    by_label = torch.argsort(labels[train], stable=True)
    mine = torch.cat(by_label.tensor_split(5 * num_clients)[client::num_clients])
    return images[train][mine], labels[train][mine]


def load_test_data() -> Examples:
    """Return the digits that no client has."""
    images, labels = _digits()
    return images[::5], labels[::5]


def train(model: Net, examples: Examples, lr: float) -> None:
    """Train the head for one epoch."""
    images, labels = examples
    optimizer = torch.optim.SGD(model.head.parameters(), lr=lr)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for batch in order.split(32):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def evaluate(model: Net, examples: Examples) -> tuple[float, float]:
    """Return mean loss and accuracy of a model."""
    images, labels = examples
    with torch.no_grad():
        logits = model(images)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return cross_entropy(logits, labels).item(), accuracy.item()


@lru_cache(maxsize=1)
def _pre_trained() -> Weights:
    """Return the weights of the network that a real app would load from a file."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net()
    images, labels = _digits()
    known = labels < 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        cross_entropy(model(images[known]), labels[known]).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def _digits() -> Examples:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
