"""What a run needs and what each client gets: what cannot work is said before anything starts."""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from subprocess import DEVNULL, SubprocessError, check_output

import numpy as np
import torch
from flwr.app import ArrayRecord
from rich.filesize import decimal
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from pncs_flower.clients.device import choose_device
from pncs_flower.clients.training import CHUNK
from pncs_flower.devices import as_fleet
from pncs_flower.layers import choose_layers
from pncs_flower.plain_text import counted
from pncs_flower.strategies.rule import parameters

from ..config import Config, check_selected
from ..machine.limits import usable_cpus
from ..task import Inputs, empty_model, load_inputs
from ..timeouts import DRIVER_ANSWERS
from .strategy import build_strategy

# What a process takes before it computes anything: CUDA's context and its libraries' workspaces.
_PROCESS = 700 * 2**20
_MANY = 1000  # clients asked in a round, of which a person is told
_REMEDY = 5  # clients to ask in their place, for each that is chosen


@dataclass(frozen=True)
class Machine:
    """What simulated clients can be given."""

    cpus: int
    gpus: int
    gpu_memory: int = 0  # bytes that are free on the GPU that has the least; 0: not known


@dataclass(frozen=True)
class Placement:
    """What each client gets while it computes."""

    cpus_per_client: int
    gpus_per_client: float  # a share, or whole GPUs above 1
    at_once: int
    machine: Machine | None  # what Ray is told to have; None on a cluster
    nodes: int = 0  # of the cluster

    def describe(self) -> str:
        """Return one line for a person."""
        own = f" and {self.gpus_per_client:g} GPU" if self.gpus_per_client else ""
        share = counted(self.cpus_per_client, "CPU") + own
        if self.machine is None:
            nodes = counted(self.nodes, "node")
            return f"each client gets {share}; {self.at_once} at once on a Ray cluster of {nodes}"
        gpus = f" and {counted(self.machine.gpus, 'GPU')}" if self.machine.gpus else ""
        has = counted(self.machine.cpus, "CPU") + gpus
        return f"each client gets {share}; {self.at_once} at once on {has}"


def detect_machine() -> Machine:
    """Return what this process may use."""
    gpus = torch.cuda.device_count()
    return Machine(usable_cpus(), gpus, free_gpu_memory() if gpus else 0)


def free_gpu_memory() -> int:
    """Return the free bytes of the visible GPU that has the least; 0 if that cannot be told."""
    # The driver's own program: PyTorch would take memory on each GPU in order to answer.
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["-i", visible]
    try:
        answer = check_output(command, text=True, stderr=DEVNULL, timeout=DRIVER_ANSWERS)
        return min(int(line) for line in answer.split()) * 2**20
    except (OSError, SubprocessError, ValueError):
        return 0


def check_shares(
    config: Config,
    *,
    on_cluster: bool,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    logical_gpus: int = 0,
) -> None:
    """Refuse shares that no client can get, whatever the machines have."""
    if cpus_per_client < 1:
        raise ValueError(f"cpus-per-client = {cpus_per_client} must be at least 1")
    if not gpus_per_client >= 0 or (gpus_per_client > 1 and gpus_per_client % 1):
        raise ValueError(
            f"gpus-per-client = {gpus_per_client} must be 0, a share of one GPU such as 0.25, or "
            "a whole number"
        )
    if config.device == "cuda" and not gpus_per_client:
        raise ValueError(
            "device = 'cuda' but gpus-per-client = 0: give each client a share of a GPU, such as "
            "0.25, or set device to auto or cpu"
        )
    if logical_gpus and on_cluster:
        raise ValueError(
            f"logical-gpus = {logical_gpus}, but clients are on the cluster that RAY_ADDRESS "
            "names: leave it out, and start nodes with ray start --num-gpus to pretend GPUs"
        )
    if logical_gpus and config.device != "cpu":
        raise ValueError(
            f"logical-gpus = {logical_gpus} are only counted, they cannot compute: set device "
            f"to cpu (it is {config.device})"
        )


def place_clients(
    config: Config,
    num_clients: int,
    machine: Machine | Sequence[Machine],
    *,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    logical_gpus: int = 0,
) -> Placement:
    """Decide what each simulated client gets, on this machine or on the nodes of a cluster."""
    check_shares(
        config,
        on_cluster=not isinstance(machine, Machine),
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
        logical_gpus=logical_gpus,
    )
    if not isinstance(machine, Machine):
        slots = sum(_slots(node, cpus_per_client, gpus_per_client) for node in machine)
        if not slots:
            has = "; ".join(
                f"{counted(n.cpus, 'CPU')} and {counted(n.gpus, 'GPU')}" for n in machine
            )
            raise ValueError(
                f"cpus-per-client = {cpus_per_client} and gpus-per-client = {gpus_per_client:g}, "
                f"but no node of the Ray cluster has that much ({has}): ask for less"
            )
        at_once = min(slots, num_clients)
        return Placement(cpus_per_client, gpus_per_client, at_once, None, len(machine))
    if logical_gpus:
        machine = Machine(machine.cpus, logical_gpus)
    if gpus_per_client > machine.gpus:
        there = (
            f"logical-gpus = {logical_gpus}: pretend more, or ask less"
            if logical_gpus
            else f"PyTorch sees {counted(machine.gpus, 'GPU')} on this machine: leave "
            "gpus-per-client out to compute on the CPU; mend the driver or install a PyTorch that "
            "matches it, if there is a GPU; or rehearse the placement with device = cpu and "
            "logical-gpus = 1"
        )
        raise ValueError(f"gpus-per-client = {gpus_per_client:g}, but {there}")
    if cpus_per_client > machine.cpus:
        raise ValueError(
            f"cpus-per-client = {cpus_per_client}, but this machine has "
            f"{counted(machine.cpus, 'CPU')}: ask for at most {machine.cpus}"
        )
    at_once = min(_slots(machine, cpus_per_client, gpus_per_client), num_clients)
    return Placement(cpus_per_client, gpus_per_client, at_once, machine)


def _slots(machine: Machine, cpus_per_client: int, gpus_per_client: float) -> int:
    """Return how many clients compute at once on a machine."""
    slots = machine.cpus // cpus_per_client
    if gpus_per_client:
        shared = int(machine.gpus // max(1.0, gpus_per_client))
        slots = min(slots, shared * _clients_per_gpu(gpus_per_client))
    return slots


def _clients_per_gpu(share: float) -> int:
    """Return how many clients with that share, or with one or more whole GPUs, are on each."""
    return max(1, int(1 / share + 1e-9))


def check_device(config: Config) -> None:
    """Refuse a GPU that this process does not have."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device = 'cuda', but PyTorch sees no GPU on this machine: leave device out, or set it "
            "to cpu"
        )


def choose_workers(config: Config, clients: int, wanted: int | None = None) -> Placement:
    """Return how many processes play clients in process, and what each has of a GPU."""
    # If nobody says it, as many as there are GPUs, or cores where clients compute on the CPU: what
    # fits on a GPU beside the first one depends on the model, and a GPU may be busy with one.
    from .in_process import check_workers  # how PyTorch looks for a GPU is another then

    on_cpu = choose_device(config.device).type == "cpu"
    machine = Machine(usable_cpus(), 0) if on_cpu else detect_machine()
    if wanted is None:
        wanted = (machine.gpus or machine.cpus) if sys.platform == "linux" else 1
    count = min(wanted, clients)
    check_workers(count)
    # One alone is this process, which is the server too.
    share = 1 / math.ceil(count / machine.gpus) if machine.gpus and count > 1 else 0.0
    return Placement(1, share, count, machine)


def check_run(
    config: Config, num_clients: int | None = None, placement: Placement | None = None
) -> None:
    """Check what a run needs: data, strategy, layers, enough clients, and memory on the GPUs."""
    if num_clients is not None:
        check_selected(config, num_clients)
    inputs = load_inputs(config)
    model = empty_model(config, inputs)
    request = build_strategy(config).rule.request
    if request is not None:
        choose_layers(ArrayRecord(model.state_dict()), request.layers)
    if num_clients is not None:
        inputs.divide(config, num_clients)
        if config.has_devices_file:
            fleet = as_fleet(config.devices)
            for client in range(num_clients):
                fleet.device(str(client), config.seed)  # each must have one
        if placement is not None:
            check_gpu_memory(config, inputs, num_clients, placement)


def note_on_asking(config: Config, num_clients: int) -> str | None:
    """Say what the first round's pre-round takes, if it asks very many."""
    if num_clients < _MANY:
        return None
    strategy, model = build_strategy(config), empty_model(config, load_inputs(config))
    clients = [str(client) for client in range(num_clients)]
    asked, num_bytes = strategy.asks(clients, ArrayRecord(model.state_dict()))
    if asked < _MANY or strategy.rule.request is None:
        return None
    work = {"update": "trainings", "gradient": "gradients", "loss": "evaluations"}
    remedy = "pncs rules lists others, some of which ask nobody"
    fewer = _REMEDY * config.num_selected
    if fewer < asked and "candidates" in parameters(type(strategy.rule)):
        remedy = f"with --set rule.candidates={fewer} it asks {fewer}"
    return (
        f"the first round asks {asked:,} of {num_clients:,} clients: {asked:,} messages and "
        f"{work[strategy.rule.request.kind]}, and {decimal(num_bytes)} up; {remedy}"
    )


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
    sharing, free = min(placement.at_once, _clients_per_gpu(share)), machine.gpu_memory
    if sharing * client + server <= free:
        return
    fitting = (free - server) // client
    remedy = (
        # The least share in hundredths with which no more than so many are on a GPU.
        f"give each client a larger share, gpus-per-client = {(100 // (fitting + 1) + 1) / 100:g}, "
        f"or in process workers = {fitting * machine.gpus}"
        if fitting > 0
        else "not even one fits: use a smaller batch-size or model, or set device to cpu"
    )
    parts = ", ".join(f"{name} {_gigabytes(value)}" for name, value in need.items())
    raise ValueError(
        f"{counted(sharing, 'client on a GPU needs', 'clients at once on a GPU need')} about "
        f"{_gigabytes(sharing * client)} "
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
    """Return the bytes that a process needs on the GPU at its peak, by what they are for."""
    # It has ``num_examples``, of which ``batch`` are in one pass; estimated from a pass of a few.
    inputs, targets = examples
    outputs: list[int] = []

    def count(module: nn.Module, arguments: object, output: object) -> None:
        if isinstance(output, Tensor) and not any(module.children()):
            outputs.append(output.nbytes)

    with torch.no_grad(), register_module_forward_hook(count):
        model(inputs)
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
