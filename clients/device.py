"""Which device a PyTorch client computes on: the one that it was given, never another's."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

__all__ = ["Precision", "choose_device", "compute_in", "granted_gpus", "releasing_memory"]

Precision = Literal["float32", "bfloat16"]
"""What a forward pass computes in. Weights, sums and what travels are float32 in either."""


def granted_gpus() -> list[str] | None:
    """Return the GPUs that Ray gave to this worker; None outside a Ray worker.

    A worker that was given none may still see them all, so what is visible says nothing. They are
    numbers, or what ``CUDA_VISIBLE_DEVICES`` names them by: "GPU-3f2a..." or "MIG-...".
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return [str(gpu) for gpu in ray.get_gpu_ids()]


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device for a client.

    Parameters
    ----------
    wanted : {"auto", "cpu", "cuda"} (default: "auto")
        ``"auto"`` takes the GPU that the client was given, and the CPU if it was given none.
        Outside Ray, a GPU that PyTorch sees counts as given.

    Returns
    -------
    torch.device
        The CPU or the first GPU that is visible.

    Raises
    ------
    ValueError
        If ``wanted`` is none of the three.
    RuntimeError
        If a GPU was given or is wanted, but there is none: a client that falls back to the CPU in
        silence is slow without a reason. ``"cpu"`` is the way to want that.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {wanted!r}, but must be 'auto', 'cpu' or 'cuda'")
    if wanted == "cpu":
        return torch.device("cpu")
    granted = granted_gpus()
    given = torch.cuda.is_available() if granted is None else bool(granted)
    if wanted == "auto" and not given:
        return torch.device("cpu")
    if not given or not torch.cuda.is_available():
        reason = (
            f"Ray gave it {f'GPU {granted[0]}' if granted else 'none'}"
            if granted is not None
            else "it is not in a Ray worker"
        )
        raise RuntimeError(
            f"this client wants a GPU (device={wanted!r}), but has none: {reason}, and PyTorch "
            f"sees {torch.cuda.device_count()}. Set device='cpu', or give each client a share of "
            "a GPU (client-resources-num-gpus) on a machine that has one"
        )
    return torch.device("cuda")


def compute_in(precision: str, device: torch.device) -> torch.autocast:
    """Return a context in which forward passes compute in a precision (PyTorch's autocast).

    bfloat16 has float32's range, so that gradients need no scaling, as those of float16 would.

    Parameters
    ----------
    precision : {"float32", "bfloat16"}
        See `Precision`.
    device : torch.device
        Where the pass is computed; the CPU can do it too.

    Raises
    ------
    ValueError
        If there is no such precision.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {precision!r}, but must be 'float32' or 'bfloat16'")
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def releasing_memory() -> Iterator[None]:
    """Give the GPU's memory back at the end, as PyTorch would keep it for this process.

    Clients that share a GPU are processes, and what one keeps the others cannot have. What was
    computed inside must be out of use by then: call a function in it that returns what is wanted.
    """
    try:
        yield
    finally:
        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
