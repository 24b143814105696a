"""What the PyTorch examples share: two networks, images made from a seed, training and testing."""

from collections.abc import Sized
from typing import cast

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


class Net(nn.Module):
    """A convolution and two layers, of which the last is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(4 * 3 * 3, 8)
        self.fc2 = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(relu(self.conv(images))).flatten(1)
        return self.fc2(relu(self.fc1(features)))


class Block(nn.Module):
    """Two convolutions with batch normalisation, beside a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )

    def forward(self, values: Tensor) -> Tensor:
        inside = self.bn2(self.conv2(relu(self.bn1(self.conv1(values)))))
        return relu(inside + self.downsample(values))


class ResNet(nn.Module):
    """ResNet-18 with one block in each of two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4, 1))
        self.layer2 = nn.Sequential(Block(4, 8, 2))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layer2(self.layer1(relu(self.bn1(self.conv1(images)))))
        return self.fc(features.mean((2, 3)))


def make_images(seed: int, labels: Tensor) -> TensorDataset:
    """Return noisy images, in each of which another stripe is bright."""
    images = torch.randn(len(labels), 3, 8, 8, generator=torch.Generator().manual_seed(seed)) / 2
    for label in range(CLASSES):
        images[labels == label, :, 2 * label : 2 * label + 2] += 1
    return TensorDataset(images, labels)


def load_data(context: Context, batch_size: int = 8) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of a client, which has two of the classes for the most part."""
    client = int(context.node_config["partition-id"])
    labels = torch.cat([torch.arange(40) % 2 + client % 3, torch.arange(CLASSES)])
    order = torch.Generator().manual_seed(client)
    data = make_images(client, labels)
    train = DataLoader(data, batch_size, shuffle=True, generator=order)
    return train, DataLoader(make_images(100 + client, labels[20:]), batch_size)


def num_examples(loader: DataLoader) -> int:
    return len(cast("Sized", loader.dataset))


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += cross_entropy(outputs, labels).item()
            correct += int((outputs.argmax(1) == labels).sum())
    return loss / len(loader), correct / num_examples(loader)


def initial(kind: type[nn.Module]) -> ArrayRecord:
    torch.manual_seed(0)
    return ArrayRecord(kind().state_dict())


def loaded(kind: type[nn.Module], arrays: ArrayRecord) -> nn.Module:
    net = kind()
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


def train_reply(kind: type[nn.Module], message: Message, context: Context) -> Message:
    """Do what the train functions of most examples do."""
    net = loaded(kind, message.content["arrays"])
    loader, _ = load_data(context)
    epochs = int(context.run_config["local-epochs"])
    loss = train(net, loader, epochs, message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": num_examples(loader)})
    arrays = ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def evaluate_reply(kind: type[nn.Module], message: Message, context: Context) -> Message:
    """Do what the evaluate functions of most examples do."""
    _, loader = load_data(context)
    loss, accuracy = test(loaded(kind, message.content["arrays"]), loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": num_examples(loader)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def global_evaluate(kind: type[nn.Module], arrays: ArrayRecord) -> MetricRecord:
    """Evaluate on the server, on data of all classes."""
    loader = DataLoader(make_images(1000, torch.arange(100) % CLASSES), batch_size=50)
    loss, accuracy = test(loaded(kind, arrays), loader)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
