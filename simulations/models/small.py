"""Small models for images, text and numbers, with layer names a person can type."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pncs_flower.randomness import derive_seed

TORCHVISION = ("resnet18", "mobilenet_v3_small")
"""Models that are torchvision's."""

CHAR_LSTM = "char-lstm"
"""The model for text."""

_SIDE = 64
_CHARACTERS = 256  # codes that there may be
_GROUPS = 4  # of channels


def build_model(name: str, shape: tuple[int, ...], num_classes: int, seed: int = 0) -> nn.Module:
    """Build a model for examples of a shape, whose weights depend on the seed alone."""
    with drawing(seed):
        if name in TORCHVISION:
            return InColour(name, num_classes)
        return MODELS[name](shape, num_classes)


def check_kind(name: str, kind: str) -> None:
    """Refuse a model for examples of which it can make nothing."""
    takes = _TAKES.get(name, ("images",))
    if kind not in takes:
        others = [each for each in (*MODELS, *TORCHVISION) if kind in _TAKES.get(each, ("images",))]
        raise ValueError(
            f"model = {name!r} takes {' or '.join(takes)}, but the data set has {kind}: set model "
            f"to {' or '.join(others)}"
        )


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
    return nn.functional.pad(images, frame).expand(-1, 3, -1, -1)


def _linear(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Softmax regression."""
    return _row(flatten=nn.Flatten(), fc=nn.Linear(math.prod(image_shape), num_classes))


def _mlp(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One hidden layer of 64 units."""
    return _row(
        flatten=nn.Flatten(),
        fc1=nn.Linear(math.prod(image_shape), 64),
        relu=nn.ReLU(),
        fc2=nn.Linear(64, num_classes),
    )


def _cnn(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions with pooling, and one hidden layer of 64 units."""
    channels, height, width = image_shape
    return _row(
        conv1=nn.Conv2d(channels, 16, kernel_size=3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * (height // 4) * (width // 4), 64),
        relu3=nn.ReLU(),
        fc2=nn.Linear(64, num_classes),
    )


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    # Normalized by groups of channels, not by batches: clients whose labels differ have other
    # statistics of a batch each (Hsieh et al. 2020, arXiv:1910.00189).

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, wider)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != wider:
            self.shortcut = nn.Conv2d(channels, wider, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return images of shape (N, wider, height / stride, width / stride)."""
        inner = self.norm1(self.conv1(images)).relu()
        outer: Tensor = self.norm2(self.conv2(inner)) + self.shortcut(images)
        return outer.relu()


def _resnet8(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Residual network for small images, as in He et al. 2016, section 4.2, with n = 1."""
    return _row(
        conv=nn.Conv2d(image_shape[0], 16, kernel_size=3, padding=1, bias=False),
        norm=nn.GroupNorm(_GROUPS, 16),
        relu=nn.ReLU(),
        block1=Residual(16, 16, 1),
        block2=Residual(16, 32, 2),
        block3=Residual(32, 64, 2),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(64, num_classes),
    )


class CharLSTM(nn.Module):
    """An LSTM over a text's characters, which tells the next one, or the text's class."""

    # As LEAF's for Shakespeare, which has two layers of 256 units, but an eighth of its work.

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_CHARACTERS, 8)
        self.lstm = nn.LSTM(8, 128, batch_first=True)
        self.fc = nn.Linear(128, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes), of codes of shape (N, length)."""
        letters = self.embedding(text.int())
        # Not in bfloat16, whatever the precision: PyTorch has no such LSTM on every CPU.
        with torch.autocast(text.device.type, enabled=False):
            states, _ = self.lstm(letters.float())
        logits: Tensor = self.fc(states[:, -1])
        return logits


def _row(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet8": _resnet8,
    CHAR_LSTM: CharLSTM,
}
"""Models from scratch: made of the shape of an example and the number of classes."""

_TAKES = {"linear": ("images", "numbers"), "mlp": ("images", "numbers"), CHAR_LSTM: ("text",)}
"""What models can make something of, where it is not images alone."""


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
