"""How small may a sketch be? How often it chooses as the exact one, what it loses, and accuracy.

The gradients are real: those of the app's clients, at several rounds of a run with exact summaries.
Accuracy is that of whole runs with the sketch, beside those of the same seeds with whole layers.
"Sent up" is what goes up in a round in which all clients are asked, names and headers as well, over
the updates of all clients. "Similarity lost" is how much larger the mean similarity of the chosen
clients is than the least one; "of a random choice's", over what a random choice loses.

Examples
--------
python benchmarks/sketch_choice.py
python benchmarks/sketch_choice.py --dataset fashion-mnist --seeds 3
python benchmarks/sketch_choice.py --model resnet8 --lr 0.2 --shards 5
python benchmarks/sketch_choice.py --model resnet18 --side 16 --rounds 5 --seeds 3 --trained ""
"""

import argparse
import logging
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock

from pncs_flower import least_aligned_subset
from pncs_flower.protocol import SummaryRequest
from pncs_flower.similarity import layered_cosine
from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.models import small
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train
from pncs_flower.simulations.task import empty_model, load_inputs
from pncs_flower.sketches import kinds as sketches
from pncs_flower.sketches.base import Sketch
from pncs_flower.sketches.wire import Wire
from pncs_flower.strategies.replies.summaries import SummaryDecoder
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
    "coordinates:2%@int8",
    "coordinates:5%@int8",
    "coordinates:10%@int8",
    "power-moments:30",
    "power-moments:100",
    "power-moments:300",
    "power-moments:1000",
    "power-moments:1000@float16",
)
LAST = 5

_PART = "part:"
RESNET8 = "resnet8"

Gradients = list[Mapping[str, np.ndarray]]
Found = dict[str, list[tuple[float, bool, float, float]]]


@dataclass(frozen=True)
class PartOfEach(Sketch):
    """Coordinates in proportion to each layer, at least 100: ``part:8%@int8``, to compare with."""

    name: ClassVar[str] = "part"
    percent: int
    wire: Wire

    def encode(self, values: np.ndarray, *, seed: int, round: int, layer: str) -> np.ndarray:
        count = self._count(values.size)
        drawn = sketches.Coordinates(count, self.wire)
        return drawn.encode(values, seed=seed, round=round, layer=layer)

    def _count(self, num_values: int) -> int:
        return min(num_values, max(100, -(-num_values * self.percent // 100)))


class ResNet8(nn.Module):
    """A residual network for small images: three blocks of 16, 32 and 64 channels."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(block(16, 16), block(16, 32), block(32, 64))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(functional.relu(self.norm(self.first(images))))
        logits: torch.Tensor = self.fc(hidden.mean((2, 3)))
        return logits


def block(inputs: int, outputs: int) -> nn.Module:
    halved = None
    if inputs != outputs:
        halved = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs)
        )
    return BasicBlock(inputs, outputs, 2 if halved else 1, halved)


def decoder(name: str, model: ArrayRecord) -> SummaryDecoder:
    """Return how a sketch of the model is read; the sketch as it is fitted to the model."""
    if not name.startswith(_PART):
        return SummaryDecoder.for_model(SummaryRequest("update", name), model)
    percent, _, wire = name.removeprefix(_PART).partition("%@")
    sizes = SummaryDecoder.for_model(SummaryRequest("update", "layers"), model).sizes
    return SummaryDecoder(PartOfEach(int(percent), cast(Wire, wire)), sizes)


def settings(options: argparse.Namespace, seed: int, sketch: str) -> Config:
    return Config.from_run_config(
        default_run_config()
        | {
            "dataset": options.dataset,
            "partition": "shards",
            "shards-per-client": options.shards,
            "num-selected": options.selected,
            "num-rounds": options.rounds,
            "queue-length": options.selected,
            "model": "cnn" if options.model == RESNET8 else options.model,
            "lr": options.lr,
            "batch-size": options.batch_size,
            "checkpoint": False,
            "rule.sketch": sketch,
            "device": "cpu",
            "seed": seed,
        }
    )


def run(
    options: argparse.Namespace,
    seed: int,
    sketch: str,
    see: Callable[[int, Gradients], None] | None = None,
) -> list[Mapping[str, Any]]:
    """Train once, and return the rounds; ``see`` is shown the summaries of some of them."""
    config = settings(options, seed, sketch)
    seen = {number for number in (*options.observed, options.rounds) if number <= options.rounds}
    select = PNCSRule.select

    def watching(self: PNCSRule, state: Any, now: Any, summaries: Mapping[str, Any]) -> Any:
        if see is not None and now.number in seen:
            see(now.number, list(summaries.values()))
        return select(self, state, now, summaries)

    rows: list[Mapping[str, Any]] = []
    grid = InProcessGrid(client_app, options.clients, config.to_run_config())
    PNCSRule.select = watching  # type: ignore[method-assign]
    try:
        with TemporaryDirectory() as folder:
            train(grid, config, Path(folder), rows.append)
    finally:
        PNCSRule.select = select  # type: ignore[method-assign]
    return rows


def similarity(gradients: Gradients, kind: Sketch, seed: int, round: int) -> np.ndarray:
    layers = {}
    for layer in gradients[0]:
        size = len(gradients[0][layer])
        wires = [kind.encode(g[layer], seed=seed, round=round, layer=layer) for g in gradients]
        rows = np.stack([kind.decode(wire, size) for wire in wires])
        layers[layer] = kind.pairwise_cosine(rows, 4, "squared")
    return layered_cosine(layers)


def compare(
    options: argparse.Namespace,
    kinds: Mapping[str, Sketch],
    found: Found,
    seed: int,
    number: int,
    clients: Gradients,
) -> None:
    """Add each sketch's error, whether it chose as the exact one, and what it and chance lose."""
    exact = similarity(clients, sketches.parse_sketch("layers"), seed, number)
    best = least_aligned_subset(exact, options.selected)
    pairs = np.triu_indices(len(exact), 1)
    chance = float(exact[pairs].mean()) - best.mean_similarity
    for name, kind in kinds.items():
        for redraw in range(options.redraws if name.partition("@")[0] != "layers" else 1):
            estimate = similarity(clients, kind, 1000 * seed + redraw, number)
            error = float(np.sqrt(np.mean((estimate - exact)[pairs] ** 2)))
            chosen = least_aligned_subset(estimate, options.selected).indices
            block = exact[np.ix_(chosen, chosen)]
            mean = float(block[np.triu_indices(len(chosen), 1)].mean())
            found[name].append((error, chosen == best.indices, mean - best.mean_similarity, chance))


def sent_up(options: argparse.Namespace, exact: Mapping[str, Any], size: int, whole: int) -> float:
    """Return what a round sends up in which all are asked, from the first with whole layers."""
    up = exact["bytes_up"]
    framing = up["pre-round"] - len(exact["asked"]) * whole
    of_all = options.clients * up["training"] / len(exact["delivered"])
    return float((framing + options.clients * size + up["training"]) / of_all)


def of_accuracy(options: argparse.Namespace, runs: list[Any], exact: list[Any]) -> str:
    """Return the accuracy of the last rounds, and that beside whole layers, seed by seed."""
    mine, theirs = (
        [fmean(row["accuracy"] for row in rows[-LAST:]) for rows in each] for each in (runs, exact)
    )
    apart = [one - other for one, other in zip(mine, theirs, strict=True)]

    def spread(values: list[float]) -> float:
        return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    text = f"{fmean(mine):.3f} ± {spread(mine):.3f}"
    return f"{text} | " if runs is exact else f"{text} | {fmean(apart):+.3f} ± {spread(apart):.3f}"


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", choices=["digits", "fashion-mnist"])
    parser.add_argument("--model", default="mlp", choices=["mlp", "cnn", RESNET8, "resnet18"])
    parser.add_argument("--side", type=int, default=64, help="what resnet18's images are framed to")
    parser.add_argument("--shards", type=int, default=2, help="label shards per client")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--observed", type=numbers, default=[1, 5, 10, 20], help="with the last of a shorter run"
    )
    parser.add_argument("--redraws", type=int, default=10, help="draws of a sketch for each round")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--selected", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sketches", type=listed, default=list(SKETCHES))
    parser.add_argument(
        "--trained", type=listed, help="sketches to train with; all of them if not given"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").disabled = True
    small._SIDE = options.side
    if options.model == RESNET8:
        small.MODELS["cnn"] = ResNet8
    # The same for all clients and sketches of a layer.
    sketches._draw_indices = lru_cache(256)(sketches._draw_indices)
    start = settings(options, 0, "layers")
    model = ArrayRecord(empty_model(start, load_inputs(start)).state_dict())
    decoders = {name: decoder(name, model) for name in ["layers", *options.sketches]}
    whole = decoders["layers"]
    trained = options.sketches if options.trained is None else options.trained
    found: Found = defaultdict(list)
    kinds = {name: decoders[name].sketch for name in options.sketches}
    exact = []
    for seed in range(options.seeds):

        def see(number: int, clients: Gradients, seed: int = seed) -> None:
            compare(options, kinds, found, seed, number, clients)

        exact.append(run(options, seed, "layers", see))
    rounds = sorted({n for n in (*options.observed, options.rounds) if n <= options.rounds})
    print(
        f"{options.dataset}, {options.model}, {sum(whole.sizes.values()):,} weights in "
        f"{len(whole.sizes)} layers; {options.clients} clients of {options.shards} shards, "
        f"{options.selected} selected; gradients of rounds {', '.join(map(str, rounds))}; seeds 0 "
        f"to {options.seeds - 1}; {platform.machine()}, {os.cpu_count()} cores\n"
    )
    print(
        "| sketch | bytes per client | sent up, of all updates | error of cos_4 (rms) "
        "| same clients chosen | similarity lost | of a random choice's "
        + (f"| accuracy (last {LAST} of {options.rounds}) | beside `layers` |" if trained else "|")
    )
    print("| --- " * (9 if trained else 7) + "|")
    for name in options.sketches:
        error, same, lost, chance = zip(*found[name], strict=True)
        size = decoders[name].num_bytes
        share = sent_up(options, exact[0][0], size, whole.num_bytes)
        line = (
            f"| `{name}` | {size:,} | {share:.3f} | {fmean(error):.4f} | {fmean(same):.0%} "
            f"| {fmean(lost):.4f} | {fmean(lost) / fmean(chance):.1%} |"
        )
        if trained and name in trained:
            seeds = range(options.seeds)
            runs = exact if name == "layers" else [run(options, seed, name) for seed in seeds]
            line += f" {of_accuracy(options, runs, exact)} |"
        elif trained:
            line += " | |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
