"""Small models for images, with layer names a person can type."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from pncs_flower.randomness import derive_seed

__all__ = ["TORCHVISION", "build_model", "drawing", "in_colour"]

TORCHVISION = ("resnet18", "mobilenet_v3_small")
"""Models that are torchvision's."""

_SIDE = 64


def build_model(
    name: str, image_shape: tuple[int, int, int], num_classes: int, seed: int = 0
) -> nn.Module:
    """Build a model whose weights depend on the seed alone."""
    models = {"linear": Linear, "mlp": MLP, "cnn": CNN}
    if name not in (*models, *TORCHVISION):
        raise ValueError(f"model {name!r} must be one of {', '.join((*models, *TORCHVISION))}")
    with drawing(seed):
        if name in TORCHVISION:
            return InColour(name, num_classes)
        return models[name](image_shape, num_classes)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Have PyTorch draw weights from a seed, and leave its global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "initial weights"))
        yield


def in_colour(images: Tensor, side: int) -> Tensor:
    """Give grey images three equal channels, and small ones a black frame, to so many pixels."""
    height, width = (max(0, side - own) for own in images.shape[2:])
    frame = (width // 2, width - width // 2, height // 2, height - height // 2)
    return functional.pad(images, frame).expand(-1, 3, -1, -1)


class Linear(nn.Module):
    """Softmax regression."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(math.prod(image_shape), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes)."""
        logits: Tensor = self.fc(images.flatten(1))
        return logits


class MLP(nn.Module):
    """One hidden layer of 64 units."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(image_shape), 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes)."""
        logits: Tensor = self.fc2(functional.relu(self.fc1(images.flatten(1))))
        return logits


class CNN(nn.Module):
    """Two convolutions with pooling, and one hidden layer of 64 units."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * (height // 4) * (width // 4), 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes)."""
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        logits: Tensor = self.fc2(functional.relu(self.fc1(hidden.flatten(1))))
        return logits


class InColour(nn.Module):
    """A network of torchvision, for images of any size and of one channel or three."""

    def __init__(self, name: str, num_classes: int) -> None:
        super().__init__()
        from torchvision.models import get_model

        self.network: nn.Module = get_model(name, weights=None, num_classes=num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes)."""
        # It halves them five times, and a batch of one example must leave it more than one value
        # to normalise by.
        logits: Tensor = self.network(in_colour(images, _SIDE))
        return logits
