"""VGG16 cut in two: layers that are frozen and run once, and those that are trained."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pncs_flower.randomness import derive_seed

from ..data.images import as_float
from .state_dict import State, read_state

if TYPE_CHECKING:
    from torchvision.models import VGG

__all__ = [
    "CONVOLUTIONS",
    "FrozenLayers",
    "LastLayers",
    "build_last_layers",
    "check_trainable",
    "frozen_layers",
    "normalize",
    "read_weights",
]

TRAINABLE = ("classifier.0", "classifier.3", "classifier.6")
"""The layers that may be trained: one, two or all of them, from the end."""

CONVOLUTIONS = "classifier.0"
"""The cut after the convolutions, whose output is small enough to be kept for every other cut."""

_SIDE = 32
_NORMALIZATION = {
    "imagenet1k-v1": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet1k-features": ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)),
}


class LastLayers(nn.Module):
    """The trained end of the network, under torchvision's names."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.classifier = nn.Sequential(OrderedDict(layers))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes), of what the frozen layers made."""
        logits: Tensor = self.classifier(features)
        return logits


@dataclass(frozen=True)
class FrozenLayers:
    """A stretch of frozen layers, in evaluation mode."""

    network: nn.Module
    drawn: tuple[str, ...]


def normalize(
    images: NDArray[np.uint8], max_value: int, normalization: str, resize: int = 0
) -> Tensor:
    """Return images as the weights want them, shape (N, 3, height, width), float32."""
    # Five poolings leave something of 32x32 pixels at least: smaller images get a black frame.
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in _NORMALIZATION[normalization])
    pixels = torch.from_numpy(as_float(images, max_value))
    if resize:
        pixels = nn.functional.interpolate(
            pixels, (resize, resize), mode="bilinear", antialias=True
        )
    height, width = (max(0, _SIDE - side) for side in pixels.shape[2:])
    frame = (width // 2, width - width // 2, height // 2, height - height // 2)
    return (nn.functional.pad(pixels, frame).expand(-1, 3, -1, -1) - mean) / deviation


def check_trainable(layers: Sequence[str]) -> str:
    """Return the first trained layer, where the network is cut."""
    if not layers or tuple(layers) != TRAINABLE[-len(layers) :]:
        wanted = " | ".join(",".join(TRAINABLE[-n:]) for n in (1, 2, 3))
        raise ValueError(f"trainable-layers = {','.join(layers)!r} must be one of {wanted}")
    return layers[0]


def read_weights(path: str) -> State:
    """Read a state dict; tensors only, no other objects. What is not finite is left out."""
    state = read_state(path, "vgg16")
    shapes = {name: entry.shape for name, entry in _empty_network().state_dict().items()}
    if not state.keys() & shapes.keys():
        raise ValueError(f"weights = {path!r} holds no weights of vgg16, such as features.0.weight")
    for name in state.keys() & shapes.keys():
        # The last layer is made anew: its classes are others.
        if not name.startswith(TRAINABLE[-1]) and state[name].shape != shapes[name]:
            raise ValueError(
                f"weights = {path!r}: {name} has shape {tuple(state[name].shape)}, but vgg16 has "
                f"{tuple(shapes[name])}: give weights of torchvision's vgg16"
            )
    # torchvision publishes a classifier of NaN with the weights of the features alone.
    return {name: state[name].float() for name in state if torch.isfinite(state[name]).all()}


def frozen_layers(
    state: State, cut: str, *, from_convolutions: bool, single_pixel: bool = False
) -> FrozenLayers:
    """Return the network up to a cut, or from the convolutions' output to it."""
    # Missing weights are drawn from a seed that is the same for every run: like pre-trained weights
    # they are a given. Where the convolutions' output is a single pixel, as for images of 32x32,
    # the pooling copies it 49 times: the first linear layer's weights for the copies are summed in
    # advance, which is the same up to rounding, at a fiftieth of the work.
    whole: Any = _empty_network()
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if not from_convolutions:
        layers["features"] = whole.features
    if cut != CONVOLUTIONS:
        layers["avgpool"], layers["flatten"] = whole.avgpool, nn.Flatten()
        end = int(cut.rpartition(".")[2])
        layers["classifier"] = whole.classifier[:end]
    network = nn.Sequential(layers)
    drawn = _fill(network, state, seed=0)
    if from_convolutions and single_pixel:
        first: Any = whole.classifier[0]
        side = whole.avgpool.output_size[0]
        summed = first.weight.data.view(len(first.weight), -1, side * side).sum(dim=2)
        first.weight = nn.Parameter(summed)
        network.avgpool = nn.Identity()
    return FrozenLayers(network.eval().requires_grad_(False), drawn)


def build_last_layers(
    layers: Sequence[str], num_classes: int, state: State | None = None, seed: int = 0
) -> LastLayers:
    """Return the trained layers."""
    cut = check_trainable(layers)
    classifier: Any = _empty_network().classifier
    with torch.device("meta"):
        classifier[-1] = nn.Linear(classifier[-1].in_features, num_classes)
    start = int(cut.rpartition(".")[2])
    model = LastLayers({str(i): classifier[i] for i in range(start, len(classifier))})
    if cut == CONVOLUTIONS:
        model.classifier = nn.Sequential(
            OrderedDict(
                {"pool": nn.AdaptiveAvgPool2d((7, 7)), "flatten": nn.Flatten()}
                | dict(model.classifier.named_children())
            )
        )
    if state is None:
        return model.to_empty(device="cpu")
    _fill(model, {k: v for k, v in state.items() if not k.startswith(TRAINABLE[-1])}, seed)
    return model


def _empty_network() -> "VGG":
    return deepcopy(_network())


@cache
def _network() -> "VGG":
    from torchvision.models import vgg16

    with torch.device("meta"):  # neither memory nor time, until weights are put in
        network: VGG = vgg16(weights=None, init_weights=False)
    return network


def _fill(network: nn.Module, state: State, seed: int) -> tuple[str, ...]:
    """Put weights in and return the layers whose weights were drawn."""
    drawn = []
    for layer, module in network.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            full = f"{layer}.{name}"
            if full in state:
                values = state[full].clone()
            else:
                values = _draw(parameter.shape, derive_seed(seed, "initial weights", full))
                drawn.append(layer)
            module.register_parameter(name, nn.Parameter(values))
    return tuple(dict.fromkeys(drawn))


def _draw(shape: torch.Size, seed: int) -> Tensor:
    """Draw weights as torchvision does for a network of this kind."""
    if len(shape) == 1:
        return torch.zeros(shape)
    random = torch.Generator().manual_seed(seed)
    # Kaiming's normal distribution of convolutions, by their fan-out; 0.01 for linear layers.
    deviation = (2 / (shape[0] * shape[2] * shape[3])) ** 0.5 if len(shape) == 4 else 0.01
    return torch.randn(shape, generator=random) * deviation
