"""How much of a GPU's memory a run is going to need, and whether there is as much."""

import os
import subprocess
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pncs_flower.clients.pieces import CHUNK

from ..config import Config
from ..task import Inputs, empty_model
from ..timeouts import DRIVER_ANSWERS
from .strategy import build_strategy

__all__ = ["MemoryNeed", "check_gpu_memory", "estimate_memory", "free_gpu_memory"]

# What a process takes before it computes anything: CUDA's context and its libraries' workspaces.
_PROCESS = 700 * 2**20


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of GPU memory that one process needs at its peak, by estimate."""

    process: int  # CUDA's own share
    weights: int  # for a client that trains also gradients and momentum
    examples: int  # all of them, which lie on the GPU
    activations: int  # what a pass over a batch keeps

    @property
    def total(self) -> int:
        """The sum."""
        return self.process + self.weights + self.examples + self.activations

    def describe(self) -> str:
        """Return the parts for a person."""
        parts = {
            "weights": self.weights,
            "examples": self.examples,
            "activations": self.activations,
            "CUDA itself": self.process,
        }
        return ", ".join(f"{name} {_gigabytes(value)}" for name, value in parts.items())


def estimate_memory(
    model: nn.Module,
    examples: tuple[Tensor, Tensor],
    num_examples: int,
    batch: int,
    *,
    trains: bool = True,
    momentum: bool = False,
) -> MemoryNeed:
    """Estimate what a process needs on the GPU, from a pass of a few examples on the CPU.

    It has ``num_examples`` of them, of which ``batch`` are in one pass.
    """
    inputs, targets = examples
    outputs: list[int] = []

    def count(module: nn.Module, arguments: object, output: object) -> None:
        if isinstance(output, Tensor):
            outputs.append(_bytes(output))

    leaves = [module for module in model.modules() if not any(module.children())]
    handles = [module.register_forward_hook(count) for module in leaves]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    trained = sum(_bytes(p) for p in model.parameters() if p.requires_grad) if trains else 0
    per_example = sum(outputs) // len(inputs)
    in_pass = min(batch, num_examples)
    return MemoryNeed(
        process=_PROCESS,
        weights=sum(map(_bytes, model.state_dict().values())) + trained * (1 + momentum),
        examples=(_bytes(inputs) + _bytes(targets)) // len(inputs) * num_examples,
        # A gradient for each of the activations; the batch itself is a copy.
        activations=in_pass * (per_example * (1 + trains) + _bytes(inputs) // len(inputs)),
    )


def check_gpu_memory(
    config: Config, inputs: Inputs, num_clients: int, at_once: int, share: float, free: int
) -> None:
    """Refuse a share of a GPU with which its memory would not suffice.

    ``free`` are the bytes of the GPU that has the least; 0 if nobody knows, and nothing is checked.
    """
    if not share or not free or config.device == "cpu":
        return
    sharing = min(at_once, max(1, int(1 / share + 1e-9)))
    client, server = _client_need(config, inputs, num_clients), _server_need(config, inputs)
    if sharing * client.total + server.total <= free:
        return
    fitting = (free - server.total) // client.total
    remedy = (
        f"give each client a larger share, gpus-per-client = {_share_for(fitting)}"
        if fitting > 0
        else "not even one fits: use a smaller batch-size or model, or set device to cpu"
    )
    raise ValueError(
        f"{sharing} clients at once on a GPU need about {_gigabytes(sharing * client.total)} "
        f"({_gigabytes(client.total)} each: {client.describe()}) and the server "
        f"{_gigabytes(server.total)}, but {_gigabytes(free)} are free: {remedy}"
    )


def free_gpu_memory() -> int:
    """Return the free bytes of the visible GPU that has the least; 0 if that cannot be told.

    Asks the driver's own program: PyTorch would take memory on each GPU in order to answer.
    """
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["-i", visible]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=DRIVER_ANSWERS
        )
        return min(int(line) for line in answer.stdout.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _client_need(config: Config, inputs: Inputs, num_clients: int) -> MemoryNeed:
    parts = inputs.divide(config, num_clients)
    request = build_strategy(config).rule.request
    in_chunks = config.batch_size == 0 or (request is not None and request.kind != "update")
    return estimate_memory(
        empty_model(config, inputs),
        inputs.train_tensors(np.arange(2)),
        max(map(len, parts)),
        CHUNK if in_chunks else min(config.batch_size, CHUNK),
        momentum=config.momentum > 0,
    )


def _server_need(config: Config, inputs: Inputs) -> MemoryNeed:
    return estimate_memory(
        empty_model(config, inputs),
        inputs.train_tensors(np.arange(2)),
        len(inputs.test_labels),
        CHUNK,
        trains=False,
    )


def _share_for(clients: int) -> str:
    """Return the least share in hundredths with which no more than so many are on a GPU."""
    return f"{(100 // (clients + 1) + 1) / 100:g}"


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB"
