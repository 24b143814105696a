"""Files of pre-trained weights: tensors by name, and no other objects."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["State", "read_state", "weights_file"]

State = Mapping[str, Tensor]


def weights_file(path: str, network: str) -> Path:
    """Return the file of weights of one of torchvision's networks."""
    file = Path(path).expanduser()
    if not path or not file.is_file():
        raise FileNotFoundError(
            f"weights = {path!r}: model {network} needs a file with its state dict. To have it: "
            'python -c "import torch, torchvision; torch.save(torchvision.models.'
            f"get_model('{network}', weights='DEFAULT').state_dict(), '{network}.pth')\""
        )
    return file


def read_state(path: str, network: str) -> State:
    """Read a state dict."""
    file = weights_file(path, network)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no such file makes the reader raise nearly anything
        reason = str(error).partition("\n")[0]
        raise ValueError(f"weights = {path!r} is not a state dict of tensors: {reason}") from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"weights = {path!r} is not a state dict of tensors")
    return state
