"""Small models for images, with layer names a person can type."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pncs_flower.randomness import derive_seed

__all__ = ["build_model"]


def build_model(
    name: str, image_shape: tuple[int, int, int], num_classes: int, seed: int = 0
) -> nn.Module:
    """Build a model whose weights depend on the seed alone.

    Parameters
    ----------
    name : {"linear", "mlp", "cnn"}
        ``"linear"`` has the layer fc; ``"mlp"`` fc1 and fc2; ``"cnn"`` conv1, conv2, fc1 and fc2.
    image_shape : tuple of int
        Channels, height and width.
    num_classes : int
        How many outputs there are.
    seed : int (default: 0)
        Seed of the initial weights. PyTorch's global random state is left as it was.

    Raises
    ------
    ValueError
        If there is no such model.
    """
    models = {"linear": Linear, "mlp": MLP, "cnn": CNN}
    if name not in models:
        raise ValueError(f"model {name!r} must be one of {', '.join(models)}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "initial weights"))
        return models[name](image_shape, num_classes)


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
