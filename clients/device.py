"""Which device a PyTorch client computes on: the one that it was given, never another's."""

import sys

import torch

__all__ = ["choose_device", "granted_gpus"]


def granted_gpus() -> list[int] | None:
    """Return the GPUs that Ray gave to this worker; None outside a Ray worker.

    A worker that was given none may still see them all, so what is visible says nothing.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return [int(gpu) for gpu in ray.get_gpu_ids()]


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
            f"Ray gave it {'GPU ' + str(granted[0]) if granted else 'none'}"
            if granted is not None
            else "it is not in a Ray worker"
        )
        raise RuntimeError(
            f"this client wants a GPU (device={wanted!r}), but has none: {reason}, and PyTorch "
            f"sees {torch.cuda.device_count()}. Set device='cpu', or give each client a share of "
            "a GPU (client-resources-num-gpus) on a machine that has one"
        )
    return torch.device("cuda")
