"""Where a PyTorch client computes: on the device that it was given, never on another's."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["choose_device", "compute_in", "granted_gpus", "reproducible"]


def granted_gpus() -> list[str] | None:
    """Return the GPUs that Ray gave to this worker; None outside a Ray worker.

    They are numbers, or what ``CUDA_VISIBLE_DEVICES`` names them by: "GPU-3f2a..." or "MIG-...".
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return [str(gpu) for gpu in ray.get_gpu_ids()]


def choose_device(wanted: str = "auto") -> torch.device:
    """Return the device for a client: "cpu", "cuda", or "auto" for the GPU if it was given one.

    Outside Ray, a GPU that PyTorch sees counts as given; a Ray worker may see some that are
    others'. A GPU that was given or is wanted, but is not there, is a RuntimeError: a client that
    falls back to the CPU in silence is slow without a reason.
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
    """Return a context in which forward passes compute in "float32" or "bfloat16" (autocast).

    bfloat16 has float32's range, so that gradients need no scaling, as those of float16 would.
    Weights, sums and what travels are float32 in either.
    """
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision is {precision!r}, but must be 'float32' or 'bfloat16'")
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """Fix what a sum's last bits depend on, and leave the process and the GPU as they were.

    PyTorch would keep the GPU's memory for this process, and the clients that share it are
    processes. What was computed inside must be out of use at the end: call a function in it.
    """
    cudnn = torch.backends.cudnn
    before = torch.get_num_threads(), torch.get_rng_state(), cudnn.deterministic, cudnn.benchmark
    if threads > 0:
        torch.set_num_threads(threads)
    cudnn.deterministic, cudnn.benchmark = True, False  # it would choose by time
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_rng_state(before[1])
        cudnn.deterministic, cudnn.benchmark = before[2:]
        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
