"""How small may a sketch be? Its error in cos_4, how often it chooses as the exact one, accuracy.

The gradients are real: those of the app's clients, at several rounds of a run with exact summaries.
Accuracy is that of whole runs with the sketch, and so is what goes up: the bytes of the pre-round
and of training, over those of the updates of all clients.

Examples
--------
python benchmarks/sketch_choice.py
python benchmarks/sketch_choice.py --dataset fashion-mnist --seeds 3
python benchmarks/sketch_choice.py --model resnet18 --rounds 2 --seeds 1 --only-gradients
"""

import argparse
import logging
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pncs_flower import least_aligned_subset
from pncs_flower.similarity import layered_cosine
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train
from pncs_flower.sketches import parse_sketch
from pncs_flower.strategies.rules.pncs import PNCSRule

SKETCHES = (
    "layers",
    "layers@float16",
    "layers@int8",
    "coordinates:30",
    "coordinates:100",
    "coordinates:300",
    "coordinates:1000",
    "coordinates:1000@int8",
    "coordinates:5%@int8",
    "coordinates:10%@int8",
    "coordinates:12%@int8",
    "power-moments:30",
    "power-moments:100",
    "power-moments:300",
    "power-moments:1000",
    "power-moments:1000@float16",
)
ROUNDS = (1, 5, 10, 20)  # with the last one of a shorter run
LAST = 5

Gradients = dict[int, list[Mapping[str, np.ndarray]]]


def settings(options: argparse.Namespace, seed: int, sketch: str) -> Config:
    return Config.from_run_config(
        default_run_config()
        | {
            "dataset": options.dataset,
            "partition": "shards",
            "shards-per-client": 2,
            "num-selected": options.selected,
            "num-rounds": options.rounds,
            "queue-length": options.selected,
            "model": options.model,
            "lr": options.lr,
            "checkpoint": False,
            "sketch": sketch,
            "device": "cpu",
            "seed": seed,
        }
    )


def run(
    options: argparse.Namespace, seed: int, sketch: str, keep: bool = False
) -> tuple[float, float, Gradients]:
    """Train once.

    Returns the mean accuracy of the last five rounds, the share of all clients' updates that went
    up, and if wanted the summaries received in some rounds.
    """
    config = settings(options, seed, sketch)
    kept = {number for number in (*ROUNDS, options.rounds) if number <= options.rounds}
    seen: Gradients = {}
    select = PNCSRule.select

    def watching(self: PNCSRule, state: Any, now: Any, summaries: Mapping[str, Any]) -> Any:
        if keep and now.number in kept:
            seen[now.number] = list(summaries.values())
        return select(self, state, now, summaries)

    rows: list[Mapping[str, Any]] = []
    grid = InProcessGrid(client_app, options.clients, config.to_run_config())
    PNCSRule.select = watching  # type: ignore[method-assign]
    try:
        with TemporaryDirectory() as folder:
            train(grid, config, Path(folder), rows.append)
    finally:
        PNCSRule.select = select  # type: ignore[method-assign]
    accuracy = float(np.mean([row["accuracy"] for row in rows[-LAST:]]))
    up = sum(row["bytes_up"]["pre-round"] + row["bytes_up"]["training"] for row in rows)
    update = sum(row["bytes_up"]["training"] / len(row["delivered"]) for row in rows)
    return accuracy, up / (options.clients * update), seen


def similarity(
    gradients: list[Mapping[str, np.ndarray]], sketch: str, seed: int, round: int
) -> np.ndarray:
    kind = parse_sketch(sketch)
    layers = {}
    for layer in gradients[0]:
        size = len(gradients[0][layer])
        wires = [kind.encode(g[layer], seed=seed, round=round, layer=layer) for g in gradients]
        rows = np.stack([kind.decode(wire, size) for wire in wires])
        layers[layer] = kind.pairwise_cosine(rows, 4, "squared")
    return layered_cosine(layers)


def compare(options: argparse.Namespace, sketch: str, runs: list[Gradients]) -> dict[str, float]:
    """Compare a sketch's similarities and choices with the exact ones."""
    errors, same, loss = [], [], []
    for seed, gradients in enumerate(runs):
        for number, clients in gradients.items():
            exact = similarity(clients, "layers", seed, number)
            best = least_aligned_subset(exact, options.selected)
            pairs = np.triu_indices(len(exact), 1)
            for redraw in range(options.redraws if sketch.partition("@")[0] != "layers" else 1):
                estimate = similarity(clients, sketch, 1000 * seed + redraw, number)
                errors.append(np.sqrt(np.mean((estimate - exact)[pairs] ** 2)))
                chosen = least_aligned_subset(estimate, options.selected).indices
                same.append(chosen == best.indices)
                block = exact[np.ix_(chosen, chosen)]
                mean = block[np.triu_indices(len(chosen), 1)].mean()
                loss.append(mean - best.mean_similarity)
    return {"error": np.mean(errors), "same": np.mean(same), "loss": np.mean(loss)}


def bytes_per_client(sketch: str, gradients: Gradients) -> int:
    kind = parse_sketch(sketch)
    first = next(iter(gradients.values()))
    return sum(kind.num_bytes(len(values)) for values in first[0].values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", choices=["digits", "fashion-mnist"])
    parser.add_argument("--model", default="mlp", choices=["mlp", "cnn", "resnet18"])
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--redraws", type=int, default=10, help="draws of a sketch for each round")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--selected", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--only-gradients", action="store_true", help="leave out the runs with each sketch"
    )
    parser.add_argument("--sketches", default=",".join(SKETCHES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").disabled = True
    exact = [run(options, seed, "layers", keep=True) for seed in range(options.seeds)]
    rounds = ", ".join(map(str, exact[0][2]))
    print(
        f"{options.dataset}, {options.model}, {options.clients} clients of 2 shards, "
        f"{options.selected} selected; gradients of rounds {rounds}; seeds 0 to "
        f"{options.seeds - 1}; {platform.machine()}, {os.cpu_count()} cores\n"
    )
    print(
        "| sketch | bytes per client | sent up, of all updates | error of cos_4 (rms) "
        f"| same clients chosen | similarity lost | accuracy (last {LAST} of {options.rounds}) |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for sketch in options.sketches.split(","):
        found = compare(options, sketch, [gradients for _, _, gradients in exact])
        size = bytes_per_client(sketch, exact[0][2])
        if options.only_gradients:
            print(
                f"| `{sketch}` | {size:,} | | {found['error']:.4f} | {found['same']:.0%} "
                f"| {found['loss']:.4f} | |",
                flush=True,
            )
            continue
        runs = [
            exact[seed] if sketch == "layers" else run(options, seed, sketch)
            for seed in range(options.seeds)
        ]
        accuracies = [accuracy for accuracy, _, _ in runs]
        error = np.std(accuracies, ddof=1) / len(accuracies) ** 0.5 if options.seeds > 1 else 0.0
        print(
            f"| `{sketch}` | {size:,} | {runs[0][1]:.3f} "
            f"| {found['error']:.4f} | {found['same']:.0%} | {found['loss']:.4f} "
            f"| {np.mean(accuracies):.3f} ± {error:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
