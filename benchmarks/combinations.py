r"""Compare selection rules and combinations on one federation: accuracy over rounds, paired seeds.

Every line runs the product's strategy on the grid of `batched.py`. A line that is not among the
names is given by its parts, in TOML. With --tune, each line has the rate that is best for it on
validation examples, a tenth of the training examples.

The way of a line from one to another is the ratio of mean differences over the paired seeds; its
interval, of Student's t, is linear in both of them (the delta method).

Examples
--------
python benchmarks/combinations.py --quick
python benchmarks/combinations.py --tune .03,.1,.3 --seeds 10 --output shards.jsonl
python benchmarks/combinations.py --clients 1000 --selected 20 --lines all,uniform,sketched-mean
python benchmarks/combinations.py --lose 0.2 --line 'name = "mine", strategy = "RoundRobin",
    combine = "surrogates:0.5", base = "FedAvgM", with = {server_momentum = 0.5}'
python benchmarks/combinations.py --hostile 0.05 --attack false-sketch --lines all,sketched-mean
"""

import argparse
import json
import logging
import os
import shlex
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import flwr.serverapp.strategy as bases
import numpy as np
import torch
from batched import ATTACKS, BatchedGrid, Faults, check_settings
from flwr.app import ArrayRecord
from measure import machine, read_rows
from torch import Tensor, nn

import pncs_flower
from pncs_flower import clients as clients_package
from pncs_flower import strategies
from pncs_flower.layers import choose_layers
from pncs_flower.simulations.cli.console import parse_setting
from pncs_flower.simulations.config import (
    Agreeing,
    Config,
    default_run_config,
    parse_rule,
    unused_settings,
)
from pncs_flower.simulations.models.pretrained import build_last_layers
from pncs_flower.simulations.models.small import build_model
from pncs_flower.simulations.run.training import evaluate
from pncs_flower.simulations.sweep.statistics import holm, mean_interval, wilcoxon
from pncs_flower.simulations.task import initial_model, load_inputs
from pncs_flower.strategies import EmptyRoundsError

LAST = 5  # the final accuracy is the mean over this many last rounds
ROUNDS = (5, 10, 20)  # that the table shows besides
TUNED_FROM = 1000  # the first seed of the runs that choose a rate
DEFAULT = (
    "all,uniform,round-robin,gradient-memory,fedvarp,fedstale-.5,fedstale-.8,mifa,sketched-mean,"
    "sketched-mean-1024,pncs,pncs+sketched-mean,divfl,power-of-choice"
)

# Settings of the app that are given otherwise here, and how.
_INSTEAD = {
    **dict.fromkeys(("strategy", "rule", "combine", "queue-length"), "--line"),
    **dict.fromkeys(("num-rounds", "stop-after"), "--rounds"),
    **dict.fromkeys(("output-dir", "checkpoint", "resume", "tensorboard"), "--output"),
    "num-selected": "--selected",
    "lr": "--lr",
    "seed": "--seeds",
    "evaluate-on": "--tune",
}


def _code() -> str:
    """Return a short digest of the product's source."""
    hashed = blake2b(digest_size=4)
    for package in (pncs_flower, strategies, clients_package):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


CODE = _code()  # when it is imported: it may be changed while it runs


def named_lines(clients: int, selected: int, layers: int) -> dict[str, dict[str, Any]]:
    """Return the lines by name: strategy, its options, and the base strategy with its options."""

    def line(strategy: str, base: str = "FedAvg", /, **options: Any) -> dict[str, Any]:
        name, _, value = base.partition(":")
        given = {"with": dict([_OPTIONS[name](value)])} if value else {}
        return {"strategy": strategy, "base": name, **given, "num_selected": selected, **options}

    uniform, sketched = partial(line, "UniformSelection"), partial(line, "SketchedMean")
    lines = {
        "all": uniform(num_selected=clients),
        "uniform": uniform(),
        "round-robin": line("RoundRobin"),
        "gradient-memory": line("GradientMemory", sketch=f"count:{max(1, 256 // layers)}"),
        "active-fl": line("ActiveFL", unseen="first"),
        "divfl": line("DivFL"),
        "gradient-norm": line("GradientNorm"),
        "power-of-choice": line("PowerOfChoice", candidates=max(selected, clients // 2)),
        "mifa": uniform(combine="mifa"),
        "fedvarp": uniform(combine="fedvarp"),
        "round-robin+fedvarp": line("RoundRobin", combine="fedvarp"),
        "round-robin+mifa": line("RoundRobin", combine="mifa"),
        "proportional": line("ProportionalSelection"),
        "proportional+fedvarp": line("ProportionalSelection", combine="fedvarp"),
        "proportional+fedstale-.8": line("ProportionalSelection", combine="surrogates:0.8"),
        "proportional+mifa": line("ProportionalSelection", combine="mifa"),
        "sketched-mean": sketched(),
        "sketched-mean-1024": sketched(sketch="count:1024"),
        "sketched-mean-float16": sketched(combine="sketched-mean:dtype=float16"),
        "gradient-memory+sketched-mean": line("GradientMemory", combine="sketched-mean"),
    }
    for beta in (".2", ".5", ".8"):
        lines[f"fedstale-{beta}"] = uniform(combine=f"surrogates:0{beta}")
    for store in (0, 20, 50, 100, 200):
        lines[f"sketched-mean-store-{store}"] = sketched(combine=f"sketched-mean:store={store}")
    for percent in (10, 20, 40):
        asked = max(selected, clients * percent // 100)
        lines[f"sketched-mean-ask-{percent}%"] = sketched(candidates=asked)
    for queue in (0, 2, 4, 8):
        length, name = queue * selected, "pncs" if queue == 2 else f"pncs-queue-{queue}x"
        lines[name] = line("PNCS", queue_length=length)
        fit = {"queue_length": length, "combine": "sketched-mean"}
        lines[f"{name}+sketched-mean"] = line("PNCS", **fit)
    for name, base in {
        "fedavgm-.5": "FedAvgM:0.5",
        "fedavgm-.8": "FedAvgM:0.8",
        "fedavgm-.9": "FedAvgM:0.9",
        "fedadam": "FedAdam:0.01",
        "fedprox-.1": "FedProx:0.1",
    }.items():
        lines[f"all/{name}"] = line("UniformSelection", base, num_selected=clients)
        lines[f"uniform/{name}"] = line("UniformSelection", base)
        lines[f"round-robin/{name}"] = line("RoundRobin", base)
        lines[f"fedvarp/{name}"] = line("UniformSelection", base, combine="fedvarp")
        lines[f"sketched-mean/{name}"] = line("SketchedMean", base)
    return lines


_OPTIONS = {
    "FedAvgM": lambda value: ("server_momentum", float(value)),
    "FedAdam": lambda value: ("eta", float(value)),
    "FedProx": lambda value: ("proximal_mu", float(value)),
}


@lru_cache(maxsize=2)
def _test_examples(agreeing: Agreeing) -> tuple[Tensor, Tensor]:
    return load_inputs(agreeing.config).test_tensors()


def run_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """Train once; return the cell with the accuracy after each round, bytes up and CPU seconds."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    config = Config.from_run_config(default_run_config() | cell["settings"])
    images, labels = _test_examples(config.of_inputs())
    model = initial_model(config, load_inputs(config))
    options = dict(cell["line"])
    make_base, make = getattr(bases, options.pop("base")), options.pop("strategy")
    given = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    if config.aggregation == "uniform":
        given["weighted_by_key"] = "uniform-weight"
    base = make_base(**given | options.pop("with", {}))
    # Nobody has to be waited for: who is not there is away.
    options |= {"seed": config.seed, "wait_timeout": 0.1}
    strategy = getattr(strategies, make)(base, **options)
    grid = BatchedGrid(config, cell["clients"], Faults(**cell["faults"]))
    strategy.listeners.append(grid)
    if strategy.rule.num_selected == cell["clients"]:
        grid.everybody = strategy.rule
    accuracies: list[float] = []

    def after_round(number: int, arrays: ArrayRecord) -> None:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracies.append(evaluate(model, images, labels)[0])

    start, ended = time.process_time(), ""
    initial = ArrayRecord(model.state_dict())
    try:
        strategy.start(grid, initial, num_rounds=cell["rounds"], evaluate_fn=after_round)
    except EmptyRoundsError as error:  # nobody's update can be used any more: the model stays
        ended = f"round {len(accuracies)}: {error}"
    accuracies += accuracies[-1:] * (cell["rounds"] + 1 - len(accuracies))
    return cell | {
        "accuracies": accuracies[1:],
        "ended": ended,
        "bytes-up": sum(sum(record.bytes_up.values()) for record in strategy.history),
        "excluded": strategy.state()["excluded"],
        "seconds": round(time.process_time() - start, 2),
        "code": CODE,
    }


def final(result: dict[str, Any]) -> float:
    return float(np.mean(result["accuracies"][-LAST:]))


class Results:
    """The cells that are done, in a file if there is one, so that a later start goes on."""

    def __init__(self, output: Path | None, workers: int) -> None:
        self._output, self._workers = output, workers
        self._done: dict[str, dict[str, Any]] = {}
        if output and output.exists():
            self._done = {_key(result): result for result in read_rows(output)}
            text = output.read_text(encoding="utf-8")
            if not text.endswith("\n"):
                output.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    def of(self, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of cells; those that are not there yet are computed."""
        # Lines of other names may be the same, now or in the file.
        by_key = {_key(cell): cell for cell in cells}
        absent = [cell for key, cell in by_key.items() if key not in self._done]
        failed = []
        with ProcessPoolExecutor(self._workers) as pool:
            running = {pool.submit(run_cell, cell): cell["name"] for cell in absent}
            for number, future in enumerate(as_completed(running)):
                if error := future.exception():
                    failed.append(f"{running[future]}: {type(error).__name__}: {error}")
                    print(f"FAILED {failed[-1]}", file=sys.stderr, flush=True)
                    continue
                result = future.result()
                self._done[_key(result)] = result
                if self._output:
                    with self._output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(result) + "\n")
                settings = result["settings"]
                print(
                    f"{number + 1}/{len(absent)} {result['name']}, seed {settings['seed']}, rate "
                    f"{settings['lr']}, {settings['evaluate-on']}: {final(result):.4f} "
                    f"({result['seconds']:.0f} s){' ENDED EARLY' if result['ended'] else ''}",
                    file=sys.stderr,
                    flush=True,
                )
        if failed:
            raise SystemExit(f"{len(failed)} of {len(absent)} runs failed; the others are kept")
        return [self._done[_key(cell)] | {"name": cell["name"]} for cell in cells]


def _key(cell: dict[str, Any]) -> str:
    """Return what a cell's result depends on."""
    wanted = ("line", "settings", "clients", "rounds", "faults")
    return json.dumps({key: cell[key] for key in wanted}, sort_keys=True)


def table(by_line: dict[str, list[dict[str, Any]]], against: str, between: str) -> list[str]:
    """Return Markdown: accuracies with 95% intervals, the way between two lines, paired tests."""
    columns: dict[str, dict[str, np.ndarray]] = {}
    rounds = len(next(iter(by_line.values()))[0]["accuracies"])
    for number in (number for number in ROUNDS if number <= rounds):
        columns[f"round {number}"] = {
            name: np.array([r["accuracies"][number - 1] for r in results])
            for name, results in by_line.items()
        }
    last = {name: np.array([final(r) for r in results]) for name, results in by_line.items()}
    columns[f"last {LAST} rounds"] = last
    tests = (
        {n: wilcoxon(last[against] - v) for n, v in last.items() if n != against}
        if (against in last and len(last[against]) > 1)
        else {}
    )
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    titles = ["line", "rate", *columns, f"{against} less this", "p, Holm", "MB up", "CPU s a run"]
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name in sorted(by_line, key=lambda name: -last[name].mean()):
        results = by_line[name]
        entries = [name, f"{results[0]['settings']['lr']:g}"]
        for values in columns.values():
            mean, interval = mean_interval(values[name])
            error = f" ± {interval:.3f}" if len(values[name]) > 1 else ""
            way = _way(values, name, between, with_interval=values is last)
            entries.append(f"{mean:.3f}{error}{way}")
        entries += ["-", "-"]
        if name in tests:
            entries[-2:] = f"{(last[against] - last[name]).mean():+.4f}", f"{corrected[name]:.2g}"
        entries.append(f"{np.mean([r['bytes-up'] for r in results]) / 1e6:.1f}")
        entries.append(f"{np.mean([r['seconds'] for r in results]):.0f}")
        lines.append(f"| {' | '.join(entries)} |")
        if ended := sum(bool(r["ended"]) for r in results):
            lines[-1] += f" {ended} of {len(results)} ended early"
    return lines


def _way(
    values: dict[str, np.ndarray], name: str, between: str, *, with_interval: bool = False
) -> str:
    """Return how far a line's mean is on the way from one line to another."""
    low, _, high = between.partition(",")
    if not {low, high} <= values.keys() or name in (low, high):
        return ""
    own, all_the_way = values[name] - values[low], values[high] - values[low]
    whole = all_the_way.mean()
    if not whole > 0:
        return ""
    way = own.mean() / whole
    if not with_interval or len(own) == 1:
        return f" ({way:.0%})"
    return f" ({way:.0%} ± {mean_interval(own - way * all_the_way)[1] / whole:.0%})"


def least_p(pairs: int, lines: int) -> str:
    """Say what `wilcoxon` and `holm` give at the least."""
    least = max(2.0 ** (1 - pairs), 2e-4)  # of all signs, or of 9,999 draws
    return (
        f"p of {pairs} pairs is at least {least:.2g}, in Holm's column {min(1, lines * least):.2g}"
    )


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--lines", default=DEFAULT, help="names, separated by commas")
    add("--line", action="append", default=[], help="one more line, of its parts")
    add("--list", action="store_true", help="print the names and what they stand for")
    add("--clients", type=int, default=100)
    add("--selected", type=int, default=10)
    add("--rounds", type=int, default=40)
    add("--seeds", type=int, default=3)
    add("--dataset", default="fashion-mnist")
    add("--data-dir", default="")
    add("--model", default="mlp", help="others than linear and mlp take their time")
    add("--partition", default="shards")
    add("--shards", type=int, default=2)
    add("--alpha", type=float, default=0.1)
    add("--lr", type=float, default=0.1)
    add("--tune", type=numbers, default=[], help="rates of which each line gets its best")
    add("--tune-seeds", type=int, default=2, help="runs of each line for each of these rates")
    add("--epochs", type=int, default=1)
    add("--batch-size", type=int, default=32)
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="more")
    add("--lose", type=float, default=0.0, help="share of deliveries that get lost")
    add("--churn", type=float, default=0.0, help="share of clients away, for five rounds each time")
    add("--hostile", type=float, default=0.0, help="share of clients that attack")
    add("--attack", choices=ATTACKS, default="flip")
    add("--against", default="sketched-mean", help="line that others are paired with")
    add("--between", default="uniform,all", help="lines between which a way is measured")
    add("--workers", type=int, default=os.cpu_count())
    add("--output", type=Path, help="JSON lines; cells that it holds are not run again")
    add("--quick", action="store_true", help="digits, 20 clients, 5 rounds")
    options = parser.parse_args()
    if options.quick:
        options.dataset, options.clients, options.selected = "digits", 20, 4
        options.rounds, options.seeds, options.tune_seeds = 5, 2, 1
    try:
        options.settings, model = read_settings(options)
    except (ValueError, NotImplementedError) as error:
        parser.error(str(error))
    layers = len(choose_layers(ArrayRecord(model.state_dict())))
    known = named_lines(options.clients, options.selected, layers)
    defaults = {"base": "FedAvg", "num_selected": options.selected}
    own = {line.pop("name"): defaults | line for line in map(parse_rule, options.line)}
    known |= own
    names = [*options.lines.split(","), *own]
    if options.list:
        for name, line in known.items():
            print(f"{name}: {json.dumps(line)}")
        raise SystemExit
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown line {', '.join(unknown)}: there are {', '.join(known)}")
    options.known = {name: known[name] for name in dict.fromkeys(names)}
    return options


def read_settings(options: argparse.Namespace) -> tuple[dict[str, Any], nn.Module]:
    """Return the settings of all runs, and a model of theirs; refuse those that nothing reads."""
    more = dict(map(parse_setting, options.settings))
    for key, value in more.items():
        if instead := _INSTEAD.get(key.partition(".")[0]):
            raise ValueError(f"--set {key}={value} is not read here: use {instead}")
    settings = {
        "dataset": options.dataset,
        "data-dir": options.data_dir,
        "model": options.model,
        "partition": options.partition,
        "shards-per-client": options.shards,
        "dirichlet-alpha": options.alpha,
        "local-epochs": options.epochs,
        "batch-size": options.batch_size,
        "device": "cpu",
        **more,
    }
    config = Config.from_run_config(default_run_config() | settings)
    for reader, keys in unused_settings(config).items():
        if ignored := [f"{key}={more[key]}" for key in keys if key in more]:
            raise ValueError(f"--set {', '.join(ignored)} is not read by {reader}: leave it out")
    # Its layers are the same for examples of all shapes.
    model = (
        build_last_layers(config.model, config.trainable_layer_names, 10)
        if config.has_frozen_layers
        else build_model(config.model, (3, 32, 32), 10)
    )
    check_settings(config, model)
    return settings, model


def main() -> None:
    torch.set_num_threads(1)  # the workers are forked
    options = read_options()
    faults = asdict(Faults(options.lose, options.churn, options.hostile, options.attack))
    results = Results(options.output, options.workers)

    def cells(rates: dict[str, list[float]], seeds: range, examples: str) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "line": options.known[name],
                "settings": options.settings | {"seed": seed, "lr": rate, "evaluate-on": examples},
                "clients": options.clients,
                "rounds": options.rounds,
                "faults": faults,
            }
            for seed in seeds
            for name in options.known
            for rate in rates[name]
        ]

    rates = {name: options.tune or [options.lr] for name in options.known}
    seeds = range(TUNED_FROM, TUNED_FROM + options.tune_seeds)
    said, codes = [], Counter[str]()
    if len(options.tune) > 1:
        scores: dict[str, dict[float, list[float]]] = {}
        for result in results.of(cells(rates, seeds, "validation")):
            by_rate = scores.setdefault(result["name"], {})
            by_rate.setdefault(result["settings"]["lr"], []).append(final(result))
            codes[result.get("code", "unknown")] += 1
        for name, by_rate in scores.items():
            best = max(by_rate, key=lambda rate: np.mean(by_rate[rate]))
            rates[name] = [best]
        said.append(f"rates chosen on validation examples, seeds {seeds[0]} to {seeds[-1]}")
        ends = min(options.tune), max(options.tune)
        if at_edge := [name for name, (rate,) in rates.items() if rate in ends]:
            said.append(f"at an edge of the rates tried: {', '.join(at_edge)}")
    by_line: dict[str, list[dict[str, Any]]] = {}
    for result in results.of(cells(rates, range(options.seeds), "test")):
        by_line.setdefault(result["name"], []).append(result)
        codes[result.get("code", "unknown")] += 1
    said += [f"seeds 0 to {options.seeds - 1}", "± half of the 95% interval"]
    said.append("in brackets the way from " + options.between.replace(",", " to "))
    if options.against in by_line and len(by_line) > 1 and options.seeds > 1:
        said.append(least_p(options.seeds, len(by_line) - 1))
    said.append("code " + ", ".join(f"{code} ({count} runs)" for code, count in codes.items()))
    if len(codes) > 1:
        said[-1] += ": BEWARE, the runs are of several"
    print(f"`{shlex.join(['python', *sys.argv])}`, {time.strftime('%Y-%m-%d')}, {machine()};")
    print(f"{'; '.join(said)}\n")
    print("\n".join(table(by_line, options.against, options.between)))


if __name__ == "__main__":
    main()
