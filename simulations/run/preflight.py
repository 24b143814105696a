"""What can be known to go wrong before anything starts, said before anything starts."""

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from pncs_flower.clients.training import CHUNK
from pncs_flower.layers import choose_layers

from ..config import Config
from ..task import Inputs, empty_model, load_inputs
from .placement import Placement, clients_per_gpu
from .strategy import build_strategy

__all__ = ["check_device", "check_gpu_memory", "check_run", "estimate_memory"]

# What a process takes before it computes anything: CUDA's context and its libraries' workspaces.
_PROCESS = 700 * 2**20


def check_device(config: Config) -> None:
    """Refuse a GPU that this process does not have."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device = 'cuda', but PyTorch sees no GPU on this machine: leave device out, or set it "
            "to cpu"
        )


def check_run(
    config: Config, num_clients: int | None = None, placement: Placement | None = None
) -> None:
    """Check what a run needs: data, strategy, layers, enough clients, and memory on the GPUs."""
    if num_clients is not None and config.num_selected > num_clients:
        raise ValueError(
            f"num-selected = {config.num_selected}, but there are {num_clients} clients: select "
            "fewer, or have more clients"
        )
    inputs = load_inputs(config)
    model = empty_model(config, inputs)
    request = build_strategy(config).rule.request
    if request is not None:
        choose_layers(ArrayRecord(model.state_dict()), request.layers)
    if num_clients is not None:
        inputs.check_division(config, num_clients)
        if placement is not None:
            check_gpu_memory(config, inputs, num_clients, placement)


def check_gpu_memory(
    config: Config, inputs: Inputs, num_clients: int, placement: Placement
) -> None:
    """Refuse a share of a GPU with which its memory would not suffice, where that is known."""
    share, machine = placement.gpus_per_client, placement.machine
    if not share or machine is None or not machine.gpu_memory or config.device == "cpu":
        return
    model, two = empty_model(config, inputs), inputs.train_tensors(np.arange(2))
    request = build_strategy(config).rule.request
    in_chunks = config.batch_size == 0 or (request is not None and request.kind != "update")
    need = estimate_memory(
        model,
        two,
        max(map(len, inputs.divide(config, num_clients))),
        CHUNK if in_chunks else min(config.batch_size, CHUNK),
        momentum=config.momentum > 0,
    )
    client = sum(need.values())
    server = sum(estimate_memory(model, two, len(inputs.test_labels), CHUNK, trains=False).values())
    sharing, free = min(placement.at_once or 1, clients_per_gpu(share)), machine.gpu_memory
    if sharing * client + server <= free:
        return
    fitting = (free - server) // client
    remedy = (
        # The least share in hundredths with which no more than so many are on a GPU.
        f"give each client a larger share, gpus-per-client = {(100 // (fitting + 1) + 1) / 100:g}"
        if fitting > 0
        else "not even one fits: use a smaller batch-size or model, or set device to cpu"
    )
    parts = ", ".join(f"{name} {_gigabytes(value)}" for name, value in need.items())
    raise ValueError(
        f"{sharing} clients at once on a GPU need about {_gigabytes(sharing * client)} "
        f"({_gigabytes(client)} each: {parts}) and the server {_gigabytes(server)}, but "
        f"{_gigabytes(free)} are free: {remedy}"
    )


def estimate_memory(
    model: nn.Module,
    examples: tuple[Tensor, Tensor],
    num_examples: int,
    batch: int,
    *,
    trains: bool = True,
    momentum: bool = False,
) -> dict[str, int]:
    """Return the bytes that a process needs on the GPU at its peak, by what they are for.

    It has ``num_examples``, of which ``batch`` are in one pass; estimated from a pass of a few.
    """
    inputs, targets = examples
    outputs: list[int] = []

    def count(module: nn.Module, arguments: object, output: object) -> None:
        if isinstance(output, Tensor):
            outputs.append(output.nbytes)

    leaves = [module for module in model.modules() if not any(module.children())]
    handles = [module.register_forward_hook(count) for module in leaves]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad) if trains else 0
    of_one, kept = inputs.nbytes // len(inputs), sum(outputs) // len(inputs)
    return {
        "weights": sum(v.nbytes for v in model.state_dict().values()) + trained * (1 + momentum),
        "examples": (inputs.nbytes + targets.nbytes) // len(inputs) * num_examples,
        # A gradient for each of the activations; the batch itself is a copy.
        "activations": min(batch, num_examples) * (kept * (1 + trains) + of_one),
        "CUDA itself": _PROCESS,
    }


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB"
