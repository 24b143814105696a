"""Rounds with ten VGG16 clients on a GPU: their speed, their memory, and the CPU's choices.

Ten clients train VGG16's three fully connected layers (119.6 million parameters; 40,970 with
`--layers classifier.6`) on features drawn from a seed, one client after the other in this process,
and PNCS chooses by the last layer. A round has ten local trainings, and the mean of three updates.
For each device and precision it prints rounds per second without the first, the peak of the memory
that PyTorch allocated beside the estimate that a run is checked by, in how many rounds the choices
are the CPU's, and the largest difference in mean similarity.

It has not been run on a GPU yet. `--device cpu` runs it without one.

Examples
--------
python benchmarks/gpu.py
python benchmarks/gpu.py --rounds 20 --examples 1000
python benchmarks/gpu.py --device cpu --layers classifier.6 --rounds 2 --examples 20
"""

import argparse
import logging
import time
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp.strategy import FedAvg
from measure import machine
from torch import Tensor, nn

from pncs_flower.clients.pytorch import pytorch_client
from pncs_flower.randomness import derive_seed
from pncs_flower.simulations.models.pretrained import build_last_layers
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.preflight import estimate_memory
from pncs_flower.strategies import PNCS

CLIENTS, SELECTED, CLASSES, BATCH = 10, 3, 10, 32
CHECK_ROUNDS = 2


@dataclass(frozen=True)
class Outcome:
    """What one run showed."""

    choices: list[list[str]]
    similarity: list[float]
    rounds_per_second: float
    peak_bytes: int


def make_model(layers: tuple[str, ...], seed: int | None) -> nn.Module:
    if seed is None:
        return build_last_layers("vgg16", layers, CLASSES)
    return build_last_layers("vgg16", layers, CLASSES, {}, seed)


def examples_of(client: int, number: int, layers: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return features around a few classes' centres, of which each client has two."""
    shape = (512, 1, 1) if layers[0] == "classifier.0" else (4096,)
    random = torch.Generator().manual_seed(derive_seed(0, "features", client))
    centres = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(number) % 2 + client) % CLASSES
    noise = torch.randn(number, *shape, generator=random)
    return torch.relu(centres[labels] + noise), labels


def run(device: str, precision: str, options: argparse.Namespace, rounds: int) -> Outcome:
    layers = tuple(options.layers.split(","))

    def load(context: Context) -> tuple[Tensor, Tensor]:
        return examples_of(int(context.node_config["partition-id"]), options.examples, layers)

    app = pytorch_client(lambda context: make_model(layers, None), load)
    config = {"device": device, "precision": precision, "lr": 0.001, "batch-size": BATCH}
    threads = torch.get_num_threads()
    grid = InProcessGrid(app, CLIENTS, {**config, "threads": threads})
    ends = [time.perf_counter()]

    def after_round(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = PNCS(
        FedAvg(fraction_evaluate=0.0),
        num_selected=SELECTED,
        layers=["classifier.6"],
        sketch="layers",
    )
    strategy.start(
        grid,
        ArrayRecord(make_model(layers, 0).state_dict()),
        num_rounds=rounds,
        evaluate_fn=after_round,
    )
    history = strategy.history
    rejected = {client: why for record in history for client, why in record.rejected.items()}
    if rejected:
        raise SystemExit(f"clients failed: {rejected}")
    warm = ends[2:]  # the first round loads CUDA's libraries
    return Outcome(
        [record.chosen for record in history],
        [float(record.mean_similarity or 0) for record in history],
        (len(warm) - 1) / (warm[-1] - warm[0]),
        torch.cuda.max_memory_allocated() if device == "cuda" else 0,
    )


def estimated_bytes(options: argparse.Namespace) -> int:
    layers = tuple(options.layers.split(","))
    need = estimate_memory(
        make_model(layers, None), examples_of(0, 2, layers), options.examples, BATCH
    )
    return sum(need.values()) - need["CUDA itself"]  # PyTorch does not count that


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5, help="at least 2 (default: 5)")
    parser.add_argument("--examples", type=int, default=256, help="of a client (default: 256)")
    parser.add_argument("--layers", default="classifier.0,classifier.3,classifier.6")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU on this machine: add --device cpu")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "no GPU"
    print(f"{machine()}, torch {torch.__version__}, {name}")
    print(f"{'':24}{'rounds/s':>9}{'peak MB':>9}{'estimate':>9}  choices, similarity")
    cpu = run("cpu", "float32", options, CHECK_ROUNDS)
    show("cpu, float32", cpu, cpu, options)
    for precision in ("float32", "bfloat16"):
        outcome = run(options.device, precision, options, max(options.rounds, CHECK_ROUNDS))
        show(f"{options.device}, {precision}", outcome, cpu, options)


def show(name: str, outcome: Outcome, cpu: Outcome, options: argparse.Namespace) -> None:
    same = sum(a == b for a, b in zip(cpu.choices, outcome.choices, strict=False))
    apart = max(abs(a - b) for a, b in zip(cpu.similarity, outcome.similarity, strict=False))
    print(
        f"{name:24}{outcome.rounds_per_second:9.3f}{outcome.peak_bytes / 1e6:9.0f}"
        f"{estimated_bytes(options) / 1e6:9.0f}  {same} of {len(cpu.choices)} rounds as on the "
        f"CPU, at most {apart:.1e} apart",
        flush=True,
    )


if __name__ == "__main__":
    main()
