"""The model, the data of each client, and how both are used: plain PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Examples = tuple[Tensor, Tensor]

# Clients that share a machine get one core each, and sums in one order have the same bits.
torch.set_num_threads(1)


class Net(nn.Module):
    """A small convolutional network for 8x8 images of ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each image, shape (n, 10)."""
        features = nn.functional.max_pool2d(torch.relu(self.conv(images)), 2)
        logits: Tensor = self.fc2(torch.relu(self.fc1(features.flatten(1))))
        return logits


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
    test = torch.arange(len(labels)) % 5 == 0
    return images[test], labels[test]


def train(model: nn.Module, examples: Examples, lr: float) -> float:
    """Train a model for three epochs, and return the mean loss of all steps."""
    images, labels = examples
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    shuffle = torch.Generator().manual_seed(0)
    losses: list[float] = []
    for _ in range(3):
        for batch in torch.randperm(len(labels), generator=shuffle).split(16):
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def evaluate(model: nn.Module, examples: Examples) -> tuple[float, float]:
    """Return mean loss and accuracy of a model."""
    images, labels = examples
    with torch.no_grad():
        logits = model(images)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return cross_entropy(logits, labels).item(), accuracy.item()


def _digits() -> Examples:
    images, labels = load_digits(return_X_y=True)
    return (
        torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16,
        torch.tensor(labels),
    )
