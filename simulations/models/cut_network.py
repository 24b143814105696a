"""Any of torchvision's classifiers cut in two: what is frozen and run once, and the last layers."""

from collections import OrderedDict
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from pncs_flower.randomness import derive_seed

from .state_dict import State

__all__ = ["FROZEN_PREFIX", "build_tail", "cut_before", "frozen_part"]

FROZEN_PREFIX = "torchvision/"
"""How the setting begins that names one of them, such as ``torchvision/resnet18``."""


class _ReachedError(Exception):
    """Carries what the first trained layer is given, out of the middle of a forward pass."""

    def __init__(self, features: Tensor) -> None:
        self.features = features


class _UpTo(nn.Module):
    """A network that stops before one of its modules and returns what that would be given."""

    def __init__(self, network: nn.Module, first: str) -> None:
        super().__init__()
        self.network, self.first = network, first

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, shape (N, ...)."""

        def stop(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            raise _ReachedError(arguments[0])

        # Only for this pass: the module is also the first of the last layers.
        with self.network.get_submodule(self.first).register_forward_pre_hook(stop):
            try:
                self.network(images)
            except _ReachedError as reached:
                return reached.features
        raise RuntimeError("the network never came to its last layers")


def cut_before(name: str, layers: Sequence[str]) -> str:
    """Return the first trained layer, before which a network is cut."""
    _tail(_empty(name), name, layers)
    return layers[0]


def frozen_part(name: str, state: State, layers: Sequence[str], sample: Tensor) -> nn.Module:
    """Return a network up to its trained layers, in evaluation mode."""
    with torch.random.fork_rng(
        devices=[]
    ):  # what it draws is overwritten, but for buffers it keeps
        network = _build(name)
    tail = _tail(network, name, layers)
    trained = tail.state_dict().keys()
    frozen = {k: v for k, v in state.items() if k not in trained}
    for entry, value in frozen.items():
        if not torch.isfinite(value).all():
            raise ValueError(f"weights: {entry} is not finite")
    try:
        missing, _ = network.load_state_dict(frozen, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"weights do not fit torchvision's {name}: {reason}") from None
    absent = [entry for entry in missing if entry not in trained]
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
        part = _UpTo(network, layers[0])
        if not torch.allclose(whole, tail.eval()(part(sample)), rtol=1e-4, atol=1e-5):
            raise ValueError(f"{name} does more after {layers[0]} than its last layers do")
    return part


def build_tail(
    name: str,
    layers: Sequence[str],
    num_classes: int,
    state: State | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return the trained layers, under torchvision's names."""
    tail = _tail(_empty(name), name, layers)
    *parents, own = layers[-1].split(".")
    last: Any = tail.get_submodule(layers[-1])
    with torch.device("meta"):
        fresh = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
    setattr(tail.get_submodule(".".join(parents)), own, fresh)
    tail.to_empty(device="cpu")
    if state is not None:
        _draw(tail, seed)
        kept = {
            entry: state[entry].float()
            for entry in tail.state_dict()
            if entry in state and not entry.startswith(f"{layers[-1]}.")
        }
        tail.load_state_dict(kept, strict=False)
    return tail


class _Tail(nn.Module):
    """The last child of a network, or the end of it, under its name."""

    def __init__(self, name: str, layers: nn.Module) -> None:
        super().__init__()
        self._name = name
        self.add_module(name, layers)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, shape (N, num_classes)."""
        logits: Tensor = self.get_submodule(self._name)(features)
        return logits


def _tail(network: nn.Module, name: str, layers: Sequence[str]) -> _Tail:
    """Return the layers from the first trained one on; they are the network's own."""
    known = [
        path for path, module in network.named_modules() if list(module.parameters(recurse=False))
    ]
    if not isinstance(network.get_submodule(known[-1]), nn.Linear):
        raise ValueError(f"the last layer of {name}, {known[-1]}, is not linear: take another")
    head, _, _ = known[-1].partition(".")
    end = network.get_submodule(head)
    # It can be cut between the layers of its last part, if that is a plain row of them.
    row = [f"{head}.{child}" for child in dict(end.named_children())]
    cuts = [path for path in known if path in row] if isinstance(end, nn.Sequential) else [head]
    starts = {",".join(known[known.index(path) :]): path for path in cuts}
    first = starts.get(",".join(layers))
    if first is None:
        raise ValueError(
            f"trainable-layers = {','.join(layers)!r}: for {name} it must be "
            f"{' | '.join(reversed(starts))}"
        )
    if not isinstance(end, nn.Sequential):
        return _Tail(head, end)
    children = list(end.named_children())
    return _Tail(head, nn.Sequential(OrderedDict(children[row.index(first) :])))


def _empty(name: str) -> nn.Module:
    with torch.device("meta"):  # neither memory nor time, until weights are put in
        return _build(name)


def _build(name: str) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise ValueError(f"torchvision has no classifier {name!r}: {hint}")
    network: nn.Module = models.get_model(name, weights=None)
    return network


def _draw(layers: nn.Module, seed: int) -> None:
    """Draw all weights as PyTorch does, and leave its global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "initial weights"))
        for module in layers.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
