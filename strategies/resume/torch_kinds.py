"""PyTorch's values in a checkpoint. It is not imported unless they are there."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsavableError

if TYPE_CHECKING:
    from .snapshot import Decoder, Encoder

__all__ = ["get_tensor", "get_torch_generator", "put_torch", "torch_kind"]

Put = Callable[["Encoder", Any, str], Any]


def torch_kind(value: Any, path: str) -> tuple[str, Put] | None:
    """Return the kind of one of PyTorch's values, and how it is written; None for others."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):
        return None
    if type(value) is torch.Generator:
        return "torch-generator", _put_generator
    if type(value) in (torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device):
        return "torch", put_torch
    if isinstance(value, torch.Tensor):
        raise UnsavableError(
            f"{path} is a {type(value).__name__}: of PyTorch, keep plain tensors and parameters"
        )
    return None


def put_torch(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    """Write a tensor as its bytes, dtype, shape and device; a size, a dtype or a device as text."""
    torch: Any = sys.modules["torch"]
    if type(value) is torch.Size:
        return ["Size", list(value)]
    if type(value) in (torch.dtype, torch.device):
        return [type(value).__name__, str(value).removeprefix("torch.")]
    problem = ""
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        problem = f"has the layout {value.layout} on {value.device}"
    elif not value.is_leaf or value.grad is not None:
        problem = "belongs to a computation: keep its .detach().clone()"
    elif value.is_conj() or value.is_neg():
        problem = "is a conjugate or negative view: keep its .resolve_conj().resolve_neg()"
    elif vars(value):
        problem = f"has attributes of its own: {', '.join(vars(value))}"
    if problem:
        raise UnsavableError(f"{path} is a tensor that {problem}")
    storage = value.untyped_storage()
    if storage.nbytes() and encoder.first(storage.data_ptr(), path) != path:
        raise UnsavableError(
            f"{path} shares memory with {encoder.first(storage.data_ptr(), path)}, so that to "
            "change one is to change the other: a checkpoint cannot hold that. Keep its .clone()"
        )
    data = value.detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy() if value.numel() else np.zeros(0, np.uint8)
    strides = list(value.stride())
    if strides != list(data.stride()):
        order = sorted(range(value.dim()), key=lambda axis: -strides[axis])
        raw = value.detach().cpu().permute(order).contiguous().reshape(-1).view(torch.uint8).numpy()
    else:
        order = None
    return [
        type(value).__name__,
        str(value.dtype).removeprefix("torch."),
        list(value.shape),
        order,
        str(value.device),
        value.requires_grad,
        encoder.array(raw, raw, path),
    ]


def get_tensor(decoder: "Decoder", content: list[Any]) -> Any:
    """Read a tensor, onto the device that it was on."""
    torch: Any = import_module("torch")
    kind = content[0]
    if kind == "Size":
        return torch.Size(content[1])
    if kind == "dtype":
        return getattr(torch, content[1])
    if kind == "device":
        return torch.device(content[1])
    _, dtype, shape, order, device, requires_grad, name = content
    raw = torch.from_numpy(decoder.arrays[name].copy())
    value = (
        raw.view(getattr(torch, dtype))
        if raw.numel()
        else torch.empty(0, dtype=getattr(torch, dtype))
    )
    if order is None:
        value = value.reshape(shape)
    else:
        value = value.reshape([shape[axis] for axis in order]).permute(*np.argsort(order).tolist())
    try:
        value = value.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"a tensor of the checkpoint was on {device}: {error}") from None
    if kind == "Parameter":
        return torch.nn.Parameter(value, requires_grad=requires_grad)
    return value.requires_grad_(requires_grad)


def _put_generator(encoder: "Encoder", value: Any, path: str) -> list[Any]:
    state = value.get_state().numpy()
    return [str(value.device), encoder.array(state, state, path)]


def get_torch_generator(decoder: "Decoder", content: list[Any]) -> Any:
    """Read a generator of random numbers."""
    torch: Any = import_module("torch")
    try:
        generator = torch.Generator(device=content[0])
    except RuntimeError as error:
        raise ValueError(f"a generator of the checkpoint was on {content[0]}: {error}") from None
    generator.set_state(torch.from_numpy(decoder.arrays[content[1]].copy()))
    return generator
