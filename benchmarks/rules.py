"""Compare selection rules on one federation: final accuracy over seeds, paired, in process.

Examples
--------
python benchmarks/rules.py --quick
python benchmarks/rules.py --clients 100 --selected 10 --rounds 40 --seeds 10 --output rules.json
python benchmarks/rules.py --clients 1000 --selected 20 --seeds 5 --rules all,uniform,memory
"""

import argparse
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from scipy.stats import ttest_rel

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.data.datasets import load_dataset
from pncs_flower.simulations.data.images import as_float
from pncs_flower.simulations.models.small import build_model
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import evaluate
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    DivFL,
    GradientMemory,
    GradientNorm,
    PowerOfChoice,
    RoundRobin,
    SelectionStrategy,
    UniformSelection,
)

# What may differ between a start and the next that goes on with its file.
_NOT_SETTINGS = ("output", "rules", "seeds", "workers", "quick", "against")

LAST = 5  # the final accuracy is the mean over this many last rounds

Maker = Callable[..., SelectionStrategy]


def rules(clients: int, selected: int, sketch: int) -> dict[str, Maker]:
    """Return the rules by name; a sketch has so many numbers in all, over two layers."""
    some = {"num_selected": selected}
    count = f"count:{sketch // 2}"
    by_name: dict[str, Maker] = {
        "all": partial(UniformSelection, num_selected=clients),
        "uniform": partial(UniformSelection, **some),
        "round-robin": partial(RoundRobin, **some),
        "pncs": partial(PNCS, **some, queue_length=0),
        "pncs-queue": partial(PNCS, **some, queue_length=2 * selected),
        "pncs-gradient": partial(PNCS, **some, queue_length=2 * selected, summary="gradient"),
        "memory": partial(GradientMemory, **some, sketch=count),
        "memory-normalized": partial(GradientMemory, **some, sketch=count, normalize=True),
        "memory-gradient": partial(GradientMemory, **some, sketch=count, summary="gradient"),
        "memory-layers": partial(GradientMemory, **some, sketch="layers"),
    }
    for share in (20, 40, 60):
        asked = max(selected, clients * share // 100)
        by_name[f"memory-ask-{share}%"] = partial(
            GradientMemory, **some, sketch=count, candidates=asked
        )
    for percent in (80, 90):
        by_name[f"memory-keep-{percent}%"] = partial(
            GradientMemory, **some, sketch=count, forgetting=percent / 100
        )
    return by_name | {
        "active-fl": partial(ActiveFL, **some, unseen="first"),
        "power-of-choice": partial(PowerOfChoice, **some, candidates=max(selected, clients // 2)),
        "divfl": partial(DivFL, **some),
        "divfl-gradient": partial(DivFL, **some, summary="gradient"),
        "gradient-norm": partial(GradientNorm, **some),
    }


def run_cell(cell: tuple[str, int], options: argparse.Namespace) -> dict[str, object]:
    """Train once and return the accuracy after each round, and bytes and seconds."""
    rule, seed = cell
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = Config.from_run_config(
        default_run_config()
        | {
            "dataset": options.dataset,
            "data-dir": options.data_dir,
            "model": options.model,
            "partition": options.partition,
            "shards-per-client": options.shards,
            "dirichlet-alpha": options.alpha,
            "lr": options.lr,
            "local-epochs": options.epochs,
            "batch-size": options.batch_size,
            "device": "cpu",
            "seed": seed,
        }
    )
    data = load_dataset(config.dataset, config.data_dir)
    images = torch.from_numpy(as_float(data.test_images, data.max_value))
    labels = torch.from_numpy(data.test_labels)
    model = build_model(config.model, data.train_images.shape[1:], data.num_classes, seed)
    base = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = rules(options.clients, options.selected, options.sketch)[rule](base, seed=seed)
    grid = InProcessGrid(client_app, options.clients, config.to_run_config())
    accuracies: list[float] = []

    def after_round(number: int, arrays: ArrayRecord) -> None:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracies.append(evaluate(model, images, labels)[0])

    start = time.perf_counter()
    strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=options.rounds, evaluate_fn=after_round
    )
    return {
        "rule": rule,
        "seed": seed,
        "accuracies": accuracies[1:],
        "bytes-up": sum(sum(record.bytes_up.values()) for record in strategy.history),
        "seconds": time.perf_counter() - start,
    }


def finished(output: Path | None, settings: dict[str, object]) -> list[dict]:
    """Return the cells that an earlier start with the same settings has finished."""
    if output is None or not output.exists():
        return []
    earlier = json.loads(output.read_text(encoding="utf-8"))
    if earlier["settings"] != settings:
        changed = {k for k, v in settings.items() if earlier["settings"].get(k) != v}
        raise SystemExit(
            f"{output} was made with other settings ({', '.join(sorted(changed))}): name another"
        )
    return list(earlier["results"])


def table(results: list[dict], options: argparse.Namespace) -> str:
    """Return the results as Markdown: means, standard errors and paired differences."""
    early = max(1, options.rounds // 8)
    by_rule: dict[str, list[dict]] = {}
    for result in sorted(results, key=lambda r: r["seed"]):
        by_rule.setdefault(result["rule"], []).append(result)
    final = {
        rule: np.array([np.mean(r["accuracies"][-LAST:]) for r in cells])
        for rule, cells in by_rule.items()
    }
    reference = options.against
    lines = [
        f"| rule | final accuracy (last {LAST} rounds) | round {early} "
        f"| {reference} less this, paired | way from uniform to all | MB up a run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in sorted(by_rule, key=lambda rule: -final[rule].mean()):
        cells, values = by_rule[rule], final[rule]
        n = len(cells)
        error = f" ± {values.std(ddof=1) / n**0.5:.4f}" if n > 1 else ""
        first = np.mean([r["accuracies"][early - 1] for r in cells])
        against = way = "-"
        if reference in final and rule != reference and n == len(final[reference]) > 1:
            difference = final[reference] - values
            p = ttest_rel(final[reference], values).pvalue
            against = f"{difference.mean():+.4f} (p = {p:.1g})"
        if {"uniform", "all"} <= final.keys() and rule not in ("uniform", "all"):
            whole = final["all"].mean() - final["uniform"].mean()
            way = f"{(values.mean() - final['uniform'].mean()) / whole:.0%}"
        megabytes = np.mean([r["bytes-up"] for r in cells]) / 1e6
        lines.append(
            f"| {rule} | {values.mean():.4f}{error} | {first:.3f} | {against} | {way} "
            f"| {megabytes:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", default="all,uniform,round-robin,pncs,memory,memory-gradient")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--selected", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sketch", type=int, default=256, help="numbers a client sends (memory)")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--partition", default="shards")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--against", default="memory", help="rule that others are paired with")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--output",
        type=Path,
        help="JSON with every accuracy; cells that it holds are not run again",
    )
    parser.add_argument("--quick", action="store_true", help="digits, 20 clients, 5 rounds")
    options = parser.parse_args()
    if options.quick:
        options.dataset, options.clients, options.selected = "digits", 20, 4
        options.rounds, options.seeds = 5, 2
    names = list(options.rules.split(","))
    unknown = set(names) - set(rules(options.clients, options.selected, options.sketch))
    if unknown:
        known = ", ".join(rules(options.clients, options.selected, options.sketch))
        parser.error(f"unknown rule {', '.join(unknown)}: there are {known}")
    settings = {k: v for k, v in vars(options).items() if k not in _NOT_SETTINGS}
    results = finished(options.output, settings)
    done = {(result["rule"], result["seed"]) for result in results}
    cells = [(rule, seed) for seed in range(options.seeds) for rule in names]
    cells = [cell for cell in cells if cell not in done]
    with ProcessPoolExecutor(options.workers) as pool:
        for result in pool.map(partial(run_cell, options=options), cells):
            results.append(result)
            mean = np.mean(result["accuracies"][-LAST:])
            print(f"seed {result['seed']} {result['rule']}: {mean:.4f}", flush=True)
            if options.output:
                text = json.dumps({"settings": settings, "results": results})
                partial_file = options.output.with_suffix(".partial")
                partial_file.write_text(text, encoding="utf-8")
                partial_file.replace(options.output)
    print(
        f"\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores; seeds 0 to "
        f"{options.seeds - 1}\n\n{table(results, options)}"
    )


if __name__ == "__main__":
    main()
