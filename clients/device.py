"""Where a PyTorch client computes: on the device that it was given, never on another's."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch


def granted_gpus() -> list[str] | None:
    """Return the GPUs that Ray gave to this worker; None outside a Ray worker."""
    # They are numbers, or what ``CUDA_VISIBLE_DEVICES`` names them by: "GPU-3f2a..." or
    # "MIG-...".
    ray = sys.modules.get("ray")
    # In the server's process, another thread may be importing it at this very moment.
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return None
    if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return [str(gpu) for gpu in ray.get_gpu_ids()]


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device for a client: "cpu", "cuda", or "auto" for the GPU if it was given one."""
    # Outside Ray, a GPU that PyTorch sees counts as given; a Ray worker may see some that are
    # others'. A GPU that was given or is wanted, but is not there, is a RuntimeError: a client
    # that falls back to the CPU in silence is slow without a reason.
    if wanted not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {wanted!r}, but must be 'auto', 'cpu' or 'cuda'")
    if wanted == "cpu":
        return torch.device("cpu")
    granted = granted_gpus()
    given = torch.cuda.is_available() if granted is None else bool(granted)
    if wanted == "auto" and not given:
        return torch.device("cpu")
    if given and torch.cuda.is_available():
        return torch.device("cuda")
    bad = torch.cuda._is_in_bad_fork()
    forked = " in this process, forked from one that had CUDA in use" if bad else ""
    grant = f"Ray gave it {f'GPU {granted[0]}' if granted else 'none'}"
    raise RuntimeError(
        f"this client wants a GPU (device={wanted!r}), but has none: "
        f"{'it is not in a Ray worker' if granted is None else grant}, and PyTorch sees "
        f"{torch.cuda.device_count()}{forked}. Set device='cpu', or give each client a share of a "
        "GPU (client-resources-num-gpus) on a machine that has one"
    )


def compute_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which forward passes compute in "float32" or "bfloat16" (autocast)."""
    # bfloat16 has float32's range, so that gradients need no scaling, as those of float16 would.
    # Weights, sums and what travels are float32 in either.
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision is {precision!r}, but must be 'float32' or 'bfloat16'")
    if precision == "float32":  # to switch autocast off takes as long as a small layer
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
