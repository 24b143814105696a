"""Rounds with ten VGG16 clients on a GPU: their speed, their memory, and the CPU's choices.

Ten clients train VGG16's three fully connected layers (119.6 million parameters; 40,970 with
`--layers classifier.6`) on features drawn from a seed, and PNCS chooses by the last layer. A round
has ten local trainings, and the mean of three updates. One client after the other computes in this
process, or several at once in worker processes, which share the GPU, or take turns with several.
For each it prints the seconds of a round without the first; the peak of the memory that PyTorch
allocated (the sum of the processes' own) beside the estimate that a run is checked by; what the
GPU then had less than before the run, with its processes still there (CUDA itself, and nothing
else, if all is given back); in how many rounds the choices are the CPU's, and the largest
difference in mean similarity.

It has not been run on a GPU yet. `--device cpu` runs it without one.

Examples
--------
python benchmarks/gpu.py
python benchmarks/gpu.py --rounds 20 --examples 1000 --workers 1,2,4,8
python benchmarks/gpu.py --device cpu --layers classifier.6 --rounds 2 --examples 20 --workers 1,2
"""

import argparse
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp.strategy import FedAvg
from measure import machine
from torch import Tensor, nn

from pncs_flower.clients.pytorch import pytorch_client
from pncs_flower.randomness import derive_seed
from pncs_flower.simulations.models.pretrained import build_last_layers
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.preflight import estimate_memory, free_gpu_memory
from pncs_flower.strategies import PNCS

CLIENTS, SELECTED, CLASSES, BATCH = 10, 3, 10, 32
CHECK_ROUNDS = 2


@dataclass(frozen=True)
class Outcome:
    """What one run showed."""

    choices: list[list[str]]
    similarity: list[float]
    seconds: float  # of a round
    peak_bytes: int
    kept_bytes: int


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


def run(
    device: str, precision: str, options: argparse.Namespace, rounds: int, workers: int = 1
) -> Outcome:
    """Run all rounds; with workers, this process must not have used CUDA."""
    with TemporaryDirectory() as folder:
        return run_in(Path(folder), device, precision, options, rounds, workers)


def run_in(
    peaks: Path,
    device: str,
    precision: str,
    options: argparse.Namespace,
    rounds: int,
    workers: int,
) -> Outcome:
    layers = tuple(options.layers.split(","))

    def load(context: Context) -> tuple[Tensor, Tensor]:
        # Up to the client before, who needed as much.
        if torch.cuda.is_initialized():
            peak = torch.cuda.max_memory_allocated()
            (peaks / str(os.getpid())).write_text(str(peak))
        return examples_of(int(context.node_config["partition-id"]), options.examples, layers)

    app = pytorch_client(lambda context: make_model(layers, None), load)
    config = {"device": device, "precision": precision, "lr": 0.001, "batch-size": BATCH}
    threads = max(1, torch.get_num_threads() // workers)
    free = free_gpu_memory() if device == "cuda" else 0
    ends = [time.perf_counter()]

    def after_round(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = PNCS(
        FedAvg(fraction_evaluate=0.0),
        num_selected=SELECTED,
        queue_length=4,
        layers=["classifier.6"],
        sketch="layers",
    )
    settings = {**config, "threads": threads}
    with InProcessGrid(app, CLIENTS, settings, workers=workers) as grid:
        strategy.start(
            grid,
            ArrayRecord(make_model(layers, 0).state_dict()),
            num_rounds=rounds,
            evaluate_fn=after_round,
        )
        time.sleep(0.5)  # in which workers that have nothing to do give memory back
        kept = free - free_gpu_memory() if device == "cuda" else 0
    history = strategy.history
    rejected = {client: why for record in history for client, why in record.rejected.items()}
    if rejected:
        raise SystemExit(f"clients failed: {rejected}")
    warm = ends[2:]  # the first round loads CUDA's libraries
    return Outcome(
        [record.chosen for record in history],
        [float(record.mean_similarity or 0) for record in history],
        (warm[-1] - warm[0]) / (len(warm) - 1),
        sum(int(file.read_text()) for file in peaks.iterdir()),
        kept,
    )


def estimated_bytes(options: argparse.Namespace, workers: int) -> int:
    layers = tuple(options.layers.split(","))
    need = estimate_memory(
        make_model(layers, None), examples_of(0, 2, layers), options.examples, BATCH
    )
    return workers * (sum(need.values()) - need["CUDA itself"])  # PyTorch does not count that


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=5, help="at least 2 (default: 5)")
    parser.add_argument("--examples", type=int, default=256, help="of a client (default: 256)")
    parser.add_argument("--layers", default="classifier.0,classifier.3,classifier.6")
    parser.add_argument(
        "--workers", default="1,2,4", help="processes that play clients (default: 1,2,4)"
    )
    options = parser.parse_args()
    device, rounds = options.device, max(options.rounds, CHECK_ROUNDS)
    if device == "cuda" and not torch.cuda.is_available():
        why = "it sees none on this machine" if torch.version.cuda else "it was built without CUDA"
        raise SystemExit(
            f"Skipped: PyTorch {torch.__version__} has no GPU, for {why}. To run it on the CPU, "
            "add --device cpu"
        )
    print(f"{machine()}, torch {torch.__version__}")
    heads = "".join(f"{head:>10}" for head in ("s a round", "peak MB", "estimate", "after MB"))
    print(f"{'':26}{heads}  choices, similarity")
    cpu = run("cpu", "float32", options, CHECK_ROUNDS)
    show("cpu, float32", cpu, cpu, options, 1)
    # Those with one last: this process then uses CUDA, and could fork no others that do.
    for workers in sorted({int(text) for text in options.workers.split(",")} - {1}):
        outcome = run(device, "float32", options, rounds, workers)
        show(f"{device}, float32, {workers} workers", outcome, cpu, options, workers)
    for precision in ("float32", "bfloat16"):
        outcome = run(device, precision, options, rounds)
        show(f"{device}, {precision}", outcome, cpu, options, 1)
    if device == "cuda":
        print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")


def show(
    name: str, outcome: Outcome, cpu: Outcome, options: argparse.Namespace, workers: int
) -> None:
    same = sum(a == b for a, b in zip(cpu.choices, outcome.choices, strict=False))
    apart = max(abs(a - b) for a, b in zip(cpu.similarity, outcome.similarity, strict=False))
    sizes = outcome.peak_bytes, estimated_bytes(options, workers), outcome.kept_bytes
    print(
        f"{name:26}{outcome.seconds:10.3f}{''.join(f'{size / 1e6:10.0f}' for size in sizes)}"
        f"  {same} of {len(cpu.choices)} rounds as on the CPU, at most {apart:.1e} apart",
        flush=True,
    )


if __name__ == "__main__":
    main()
