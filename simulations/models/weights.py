"""torchvision's networks by name, and files of pre-trained weights for them."""

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor, nn

from ..choices import nearest

State = Mapping[str, Tensor]


def network_name(model: str) -> str:
    """Return what torchvision calls a model: ``resnet18`` for ``torchvision/resnet18``."""
    return model.removeprefix("torchvision/")


def build_network(model: str) -> nn.Module:
    """Return one of torchvision's classifiers, with weights drawn at random."""
    from torchvision import models

    name, known = network_name(model), models.list_models(module=models)
    if name not in known:
        raise ValueError(f"torchvision has no classifier {name!r}: {nearest(name, known)}")
    with torch.random.fork_rng(devices=[]):
        network: nn.Module = models.get_model(name, weights=None)
    return network


@cache
def empty_network(model: str) -> nn.Module:
    """Return a network without weights; all that look at it share it."""
    try:
        with torch.device("meta"):  # neither memory nor time
            return build_network(model)
    except NotImplementedError:  # some compute the width of their blocks with tensors
        return build_network(model).to("meta")


def read_weights(path: str, model: str) -> State:
    """Read a state dict; tensors only, and of VGG16 without what is not finite."""
    file, name = _file(path, model), network_name(model)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no such file makes the reader raise nearly anything
        reason = str(error).partition("\n")[0]
        raise ValueError(f"weights = {path!r} is not a state dict of tensors: {reason}") from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"weights = {path!r} is not a state dict of tensors")
    shapes = {entry: value.shape for entry, value in empty_network(model).state_dict().items()}
    entries = [*shapes]
    if not state.keys() & shapes.keys():
        raise ValueError(f"weights = {path!r} holds no weights of {name}, such as {entries[0]}")
    last_layer, _, _ = entries[-1].rpartition(".")
    for entry in [entry for entry in entries if entry in state]:
        if entry.startswith(f"{last_layer}."):
            continue  # it is made anew: its classes are others
        if state[entry].shape != shapes[entry]:
            raise ValueError(
                f"weights = {path!r}: {entry} has shape {tuple(state[entry].shape)}, but {name} "
                f"has {tuple(shapes[entry])}: give weights of torchvision's {name}"
            )
        if not torch.isfinite(state[entry]).all():
            if model != "vgg16":
                raise ValueError(f"weights = {path!r}: {entry} is not finite: give other weights")
            # torchvision publishes its VGG16 with the features alone and a classifier of NaN.
            del state[entry]
    return state


@cache
def weights_fingerprint(path: str, model: str) -> str:
    """Hash a file of weights, to 32 hexadecimal digits."""
    return blake2b(_file(path, model).read_bytes(), digest_size=16).hexdigest()


def _file(path: str, model: str) -> Path:
    file, name = Path(path).expanduser(), network_name(model)
    if not path or not file.is_file():
        empty_network(model)  # of one that torchvision does not have there are no weights
        raise FileNotFoundError(
            f"weights = {path!r}: model {name} needs a file with its state dict. To have it: "
            'python -c "import torch, torchvision; torch.save(torchvision.models.'
            f"get_model('{name}', weights='DEFAULT').state_dict(), '{name}.pth')\""
        )
    return file
