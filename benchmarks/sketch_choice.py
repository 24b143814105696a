"""How small may a sketch be? Its error in cos_4, how often it chooses as the exact one, accuracy.

The gradients are real: those of the app's clients, at several rounds of a run with exact summaries.
Accuracy is that of whole runs with the sketch.

Examples
--------
python benchmarks/sketch_choice.py
python benchmarks/sketch_choice.py --dataset fashion-mnist --seeds 3
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
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.simulations.training import train
from pncs_flower.sketches import parse_sketch
from pncs_flower.strategies.pncs import PNCSRule

SKETCHES = (
    "layers",
    "layers@float16",
    "layers@int8",
    "coordinates:30",
    "coordinates:100",
    "coordinates:300",
    "coordinates:1000",
    "coordinates:1000@int8",
    "power-moments:30",
    "power-moments:100",
    "power-moments:300",
    "power-moments:1000",
    "power-moments:1000@float16",
)
ROUNDS = (1, 5, 10, 20)
REDRAWS = 10

Gradients = dict[int, list[Mapping[str, np.ndarray]]]


def settings(options: argparse.Namespace, seed: int, sketch: str) -> Config:
    return Config.from_run_config(
        default_run_config()
        | {
            "dataset": options.dataset,
            "partition": "shards",
            "shards-per-client": 2,
            "num-selected": options.selected,
            "num-rounds": max(ROUNDS),
            "queue-length": options.selected,
            "model": "mlp",
            "lr": 0.1,
            "sketch": sketch,
            "device": "cpu",
            "seed": seed,
        }
    )


def run(options: argparse.Namespace, seed: int, sketch: str) -> tuple[float, Gradients]:
    """Train once; return the mean accuracy of the last five rounds, and the summaries received."""
    config = settings(options, seed, sketch)
    seen: Gradients = {}
    select = PNCSRule.select

    def watching(self: PNCSRule, state: Any, now: Any, summaries: Mapping[str, Any]) -> Any:
        if now.number in ROUNDS:
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
    return float(np.mean([row["accuracy"] for row in rows[-5:]])), seen


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
            for redraw in range(REDRAWS if sketch.partition("@")[0] != "layers" else 1):
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
    return sum(kind.num_bytes(len(values)) for values in gradients[1][0].values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", choices=["digits", "fashion-mnist"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--selected", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sketches", default=",".join(SKETCHES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").disabled = True
    exact = [run(options, seed, "layers") for seed in range(options.seeds)]
    print(
        f"{options.dataset}, MLP, {options.clients} clients of 2 shards, {options.selected} "
        f"selected; gradients of rounds {', '.join(map(str, ROUNDS))}; seeds 0 to "
        f"{options.seeds - 1}; {platform.machine()}, {os.cpu_count()} cores\n"
    )
    print(
        "| sketch | bytes per client | error of cos_4 (rms) | same clients chosen "
        "| similarity lost | accuracy (last 5 of 20 rounds) |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for sketch in options.sketches.split(","):
        found = compare(options, sketch, [gradients for _, gradients in exact])
        accuracies = [
            exact[seed][0] if sketch == "layers" else run(options, seed, sketch)[0]
            for seed in range(options.seeds)
        ]
        error = np.std(accuracies, ddof=1) / len(accuracies) ** 0.5 if options.seeds > 1 else 0.0
        print(
            f"| `{sketch}` | {bytes_per_client(sketch, exact[0][1]):,} | {found['error']:.4f} "
            f"| {found['same']:.0%} | {found['loss']:.4f} "
            f"| {np.mean(accuracies):.3f} ± {error:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
