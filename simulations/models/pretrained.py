"""torchvision's classifiers cut in two: layers that are frozen and run once, and the last layers.

``vgg16`` is the paper's: what its file of weights lacks is drawn, and what its convolutions make is
kept for all cuts behind them.
"""

from collections import OrderedDict
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pncs_flower.randomness import derive_seed

from ..data.examples import as_float
from .small import drawing, in_colour
from .weights import State, build_network, empty_network, network_name

Layers = tuple[str, ...]

_CLASSIFIER = ("classifier.0", "classifier.3", "classifier.6")  # all behind the convolutions

_SIDE = 32
_NORMALIZATION = {
    "imagenet1k-v1": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "imagenet1k-features": ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)),
}


def normalize(
    images: NDArray[np.uint8], max_value: int, normalization: str, resize: int = 0
) -> Tensor:
    """Return images as the weights want them, shape (N, 3, height, width), float32."""
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in _NORMALIZATION[normalization])
    pixels = torch.from_numpy(as_float(images, max_value))
    if resize:
        # Some networks take images of one size alone; as torchvision's own transforms resize.
        pixels = nn.functional.interpolate(
            pixels, (resize, resize), mode="bilinear", antialias=True
        )
    # Five poolings leave something of 32x32 pixels at least.
    return (in_colour(pixels, _SIDE) - mean) / deviation


def cuts(model: str, layers: Layers) -> list[Layers]:
    """Return the layers that are left after each stretch of frozen ones whose output is kept."""
    _halves(empty_network(model), model, layers)
    return list(dict.fromkeys([_CLASSIFIER, layers] if model == "vgg16" else [layers]))


def frozen_part(
    model: str, state: State, layers: Layers, sample: Tensor
) -> tuple[nn.Module, list[str]]:
    """Return a network up to some layers, and those of which the weights were drawn."""
    # For VGG16, if they are not all that follow the convolutions, the part from there on. It is
    # to be given inputs such as the sample.
    if model == "vgg16":
        return _vgg16_part(state, layers, sample)
    network, name = build_network(model), network_name(model)
    head, rest, trained = _halves(network, model, layers)
    tail = nn.Sequential(OrderedDict({head: trained}))
    frozen = {k: v for k, v in state.items() if k not in tail.state_dict()}
    missing, _ = network.load_state_dict(frozen, strict=False)
    absent = [entry for entry in missing if entry not in tail.state_dict()]
    if absent:
        raise ValueError(
            f"weights lack {len(absent)} entries of {name} that are frozen, such as {absent[0]}"
        )
    _draw(tail, 0)
    network.eval().requires_grad_(False)
    with torch.inference_mode():
        try:
            whole = network(sample)
        except (RuntimeError, AssertionError, ValueError) as error:
            size = "x".join(map(str, sample.shape[2:]))
            raise ValueError(
                f"{name} cannot take images of {size}: set resize, such as resize = 224 ({error})"
            ) from None
        network.add_module(head, rest)
        if not torch.allclose(whole, tail(network(sample)), rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name} does more after {layers[0]} than its last layers do")
    return network, []


def build_last_layers(
    model: str, layers: Layers, num_classes: int, state: State | None = None, seed: int = 0
) -> nn.Module:
    """Return the trained layers under torchvision's names; weights of no state are arbitrary."""
    head, _, trained = _halves(empty_network(model), model, layers)
    tail = deepcopy(nn.Sequential(OrderedDict({head: trained})))
    parent, _, own = layers[-1].rpartition(".")
    last = tail.get_submodule(layers[-1])
    assert isinstance(last, nn.Linear)
    with torch.device("meta"):
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
    tail.get_submodule(parent).add_module(own, fresh)
    if model == "vgg16" and layers == _CLASSIFIER:
        pool = {"pool": nn.AdaptiveAvgPool2d((7, 7)), "flatten": nn.Flatten()}
        children = dict(tail.get_submodule(head).named_children())
        tail.add_module(head, nn.Sequential(OrderedDict(pool | children)))
    if state is None:
        return tail.to_empty(device="cpu")
    kept = {
        entry: state[entry]
        for entry in tail.state_dict()
        if entry in state and not entry.startswith(f"{layers[-1]}.")
    }
    if model == "vgg16":
        _fill_vgg16(tail, kept, seed)
    else:
        _draw(tail.to_empty(device="cpu"), seed)
        tail.load_state_dict(kept, strict=False)
    return tail


def _halves(network: nn.Module, model: str, layers: Layers) -> tuple[str, nn.Module, nn.Module]:
    """Return the name of a network's last child, and what is frozen and what trained of it."""
    name = network_name(model)
    known = [
        path for path, module in network.named_modules() if list(module.parameters(recurse=False))
    ]
    if not isinstance(network.get_submodule(known[-1]), nn.Linear):
        raise ValueError(f"the last layer of {name}, {known[-1]}, is not linear: take another")
    head, _, _ = known[-1].partition(".")
    end = network.get_submodule(head)
    # It can be cut between the layers of its last part, if that is a plain row of them.
    row = [f"{head}.{child}" for child, _ in end.named_children()]
    ends = [path for path in known if path in row] if isinstance(end, nn.Sequential) else [head]
    starts = {",".join(known[known.index(path) :]): path for path in ends}
    first = starts.get(",".join(layers))
    if first is None:
        raise ValueError(
            f"trainable-layers = {','.join(layers)!r}: for {name} it must be "
            f"{' | '.join(reversed(starts))}"
        )
    if not isinstance(end, nn.Sequential):
        return head, nn.Identity(), end
    return head, end[: row.index(first)], end[row.index(first) :]


def _draw(layers: nn.Module, seed: int) -> None:
    """Draw all weights as PyTorch does."""
    with drawing(seed):
        for module in layers.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()


def _vgg16_part(state: State, layers: Layers, sample: Tensor) -> tuple[nn.Module, list[str]]:
    whole = deepcopy(empty_network("vgg16"))
    head, rest, _ = _halves(whole, "vgg16", layers)
    if layers == _CLASSIFIER:
        network = nn.Sequential(OrderedDict(features=whole.get_submodule("features")))
    else:
        parts = {"avgpool": whole.get_submodule("avgpool"), "flatten": nn.Flatten(), head: rest}
        network = nn.Sequential(OrderedDict(parts))
    # The seed is the same for every run: like pre-trained weights these are a given.
    drawn = _fill_vgg16(network, state, seed=0)
    if layers != _CLASSIFIER and sample.shape[2:] == (1, 1):
        # The pooling copies a single pixel, as of images of 32x32, 49 times. The weights for the
        # copies are summed in advance: the same up to rounding, at a fiftieth of the work.
        first = whole.get_submodule(_CLASSIFIER[0])
        assert isinstance(first, nn.Linear)
        summed = first.weight.data.view(first.out_features, sample.shape[1], -1).sum(dim=2)
        first.weight = nn.Parameter(summed)
        network.avgpool = nn.Identity()
    return network.eval().requires_grad_(False), drawn


def _fill_vgg16(network: nn.Module, state: State, seed: int) -> list[str]:
    """Put weights in, draw those that are missing, and return the layers of which they were."""
    values, drawn = {}, []
    for entry, empty in network.state_dict().items():
        if entry in state:
            values[entry] = state[entry].float().clone()
        else:
            values[entry] = _draw_vgg16(empty.shape, derive_seed(seed, "initial weights", entry))
            drawn.append(entry.rpartition(".")[0])
    network.load_state_dict(values, assign=True)
    return list(dict.fromkeys(drawn))


def _draw_vgg16(shape: torch.Size, seed: int) -> Tensor:
    """Draw weights as torchvision does for this network."""
    if len(shape) == 1:
        return torch.zeros(shape)
    random = torch.Generator().manual_seed(seed)
    # Kaiming's normal distribution of convolutions, by their fan-out; 0.01 for linear layers.
    deviation = (2 / (shape[0] * shape[2] * shape[3])) ** 0.5 if len(shape) == 4 else 0.01
    return torch.randn(shape, generator=random) * deviation
