"""What each simulated client gets of the machine, and how many compute at once."""

import os
import subprocess
from dataclasses import dataclass

import torch

from ..config import Config
from ..machine.limits import usable_cpus
from ..timeouts import DRIVER_ANSWERS

__all__ = [
    "Machine",
    "Placement",
    "clients_per_gpu",
    "detect_machine",
    "free_gpu_memory",
    "place_clients",
]


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
    at_once: int | None  # None on a cluster, which decides itself
    machine: Machine | None  # what Ray is told to have; None on a cluster

    def describe(self) -> str:
        """Return one line for a person."""
        share = _count(self.cpus_per_client, "CPU")
        if self.gpus_per_client:
            share += f" and {self.gpus_per_client:g} GPU"
        if self.machine is None:
            return f"each client gets {share} of the Ray cluster"
        has = _count(self.machine.cpus, "CPU")
        if self.machine.gpus:
            has += f" and {_count(self.machine.gpus, 'GPU')}"
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
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=DRIVER_ANSWERS
        )
        return min(int(line) for line in answer.stdout.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def place_clients(
    config: Config,
    num_clients: int,
    machine: Machine | None,
    *,
    cpus_per_client: int = 1,
    gpus_per_client: float = 0.0,
    logical_gpus: int = 0,
) -> Placement:
    """Decide what each simulated client gets, on this machine or, if it is None, on a cluster."""
    if cpus_per_client < 1:
        raise ValueError(f"cpus-per-client = {cpus_per_client} must be at least 1")
    if gpus_per_client < 0 or (gpus_per_client > 1 and gpus_per_client % 1):
        raise ValueError(
            f"gpus-per-client = {gpus_per_client} must be 0, a share of one GPU such as 0.25, or "
            "a whole number"
        )
    if config.device == "cuda" and not gpus_per_client:
        raise ValueError(
            "device = 'cuda' but gpus-per-client = 0: give each client a share of a GPU, such as "
            "0.25, or set device to auto or cpu"
        )
    if machine is None:
        return Placement(cpus_per_client, gpus_per_client, None, None)
    if logical_gpus:
        if config.device != "cpu":
            raise ValueError(
                f"logical-gpus = {logical_gpus} are only counted, they cannot compute: set device "
                f"to cpu (it is {config.device})"
            )
        machine = Machine(machine.cpus, logical_gpus)
    if gpus_per_client > machine.gpus:
        there = (
            f"logical-gpus = {logical_gpus}: pretend more, or ask less"
            if logical_gpus
            else f"PyTorch sees {_count(machine.gpus, 'GPU')} on this machine: leave "
            "gpus-per-client out to compute on the CPU; mend the driver or install a PyTorch that "
            "matches it, if there is a GPU; or rehearse the placement with device = cpu and "
            "logical-gpus = 1"
        )
        raise ValueError(f"gpus-per-client = {gpus_per_client:g}, but {there}")
    if cpus_per_client > machine.cpus:
        raise ValueError(
            f"cpus-per-client = {cpus_per_client}, but this machine has {machine.cpus} CPUs: ask "
            f"for at most {machine.cpus}"
        )
    slots = machine.cpus // cpus_per_client
    if gpus_per_client:
        shared = int(machine.gpus // max(1.0, gpus_per_client))
        slots = min(slots, shared * clients_per_gpu(gpus_per_client))
    return Placement(cpus_per_client, gpus_per_client, min(slots, num_clients), machine)


def clients_per_gpu(share: float) -> int:
    """Return how many clients with that share, or with one or more whole GPUs, are on each."""
    return max(1, int(1 / share + 1e-9))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
