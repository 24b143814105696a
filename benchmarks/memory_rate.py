"""How fast the mean of the applied updates approaches the mean of all, for constant gradients.

Each client's gradient is drawn once and stays the same, so after t rounds the mean of what was
applied should be near the mean of all clients, each weighted by its number of examples. The table
has the exponent of t in the error between round 20 and the last: -1/2 for independent draws, -1
where what was left out is made up for, 0 where something is never made up for. Examples are equal
in number, or drawn from a lognormal distribution.

Examples
--------
python benchmarks/memory_rate.py
python benchmarks/memory_rate.py --rounds 100 --seeds 2 --output rate.png
"""

import argparse
from pathlib import Path

import numpy as np
from measure import picture

from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.strategies import SelectionRule
from pncs_flower.strategies.round.selector import Selector
from pncs_flower.strategies.rules.gradient_memory import GradientMemoryRule
from pncs_flower.strategies.rules.round_robin import RoundRobinRule
from pncs_flower.strategies.rules.uniform import UniformRule

FIRST = 20  # round from which the exponent is fitted


def errors(
    rule: SelectionRule, gradients: np.ndarray, sizes: np.ndarray, rounds: int, seed: int
) -> np.ndarray:
    """Return the distance of the mean applied so far from the mean of all, after each round."""
    selector = Selector(rule, 0, seed)
    clients = [str(k) for k in range(len(gradients))]
    examples = {client: float(size) for client, size in zip(clients, sizes, strict=True)}
    selector.learn_sizes(examples)
    sent: dict[str, np.ndarray] = {}
    if rule.request is not None:
        sketch = parse_sketch(rule.request.sketch)
        for client, row in zip(clients, gradients.astype(np.float32), strict=True):
            wire = sketch.encode(row, seed=seed, round=1, layer="fc")
            sent[client] = sketch.decode(wire, len(row))
    applied = []
    for number in range(1, rounds + 1):
        plan = selector.plan(number, clients)
        choice = selector.choose(plan, {client: {"fc": sent[client]} for client in plan.candidates})
        metrics = {c: {"num-examples": examples[c]} for c in choice.clients}
        selector.observe(plan, choice.clients, metrics)
        rows = [int(client) for client in choice.clients]
        applied.append(np.average(gradients[rows], axis=0, weights=sizes[rows]))
    means = np.cumsum(applied, axis=0) / np.arange(1, rounds + 1)[:, None]
    everybody = np.average(gradients, axis=0, weights=sizes)
    result: np.ndarray = np.linalg.norm(means - everybody, axis=1)
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=23)
    parser.add_argument("--selected", type=int, default=3)
    parser.add_argument("--values", type=int, default=200, help="of a gradient")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=picture(".png", ".svg"), help="of the curves")
    options = parser.parse_args(arguments)
    if options.rounds < 2 * FIRST:
        parser.error(f"--rounds is {options.rounds}, but the exponent needs at least {2 * FIRST}")
    some = options.selected
    rules: dict[str, SelectionRule] = {
        "uniform": UniformRule(some),
        "round robin": RoundRobinRule(some),
        "memory, whole gradients": GradientMemoryRule(some, sketch="layers"),
        "memory, count:256": GradientMemoryRule(some, sketch="count:256"),
    }
    print(f"{'examples':<10}{'rule':<26}{'error, last round':>20}{'exponent of t':>16}")
    steps = np.arange(1, options.rounds + 1)
    curves: dict[str, dict[str, np.ndarray]] = {}
    for examples in ("equal", "unequal"):
        for name, rule in rules.items():
            runs = []
            for seed in range(options.seeds):
                rng = np.random.default_rng(seed)
                gradients = rng.normal(size=(options.clients, options.values)) + 1
                sizes = rng.lognormal(0, 0.7, options.clients)
                if examples == "equal":
                    sizes = np.ones(options.clients)
                runs.append(errors(rule, gradients, sizes, options.rounds, seed))
            curve = np.sqrt(np.mean(np.square(runs), axis=0))
            curves.setdefault(examples, {})[name] = curve
            # An error of zero, where a cycle of all clients ends, has no logarithm.
            fit = np.flatnonzero((steps > FIRST) & (curve > 1e-9))
            exponent = np.polyfit(np.log(steps[fit]), np.log(curve[fit]), 1)[0]
            print(f"{examples:<10}{name:<26}{curve[-1]:>20.4f}{exponent:>16.2f}", flush=True)
    if options.output:
        draw(curves, options.output)


def draw(curves: dict[str, dict[str, np.ndarray]], output: Path) -> None:
    """Draw the errors over rounds, a panel for equal and one for unequal numbers of examples."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axes, (examples, by_rule) in zip(panels, curves.items(), strict=True):
        for (name, curve), style in zip(by_rule.items(), ("-", "-", "-", "--"), strict=True):
            axes.loglog(np.arange(1, len(curve) + 1), curve, style, label=name, linewidth=1.3)
        start = by_rule["uniform"][9]
        steps = np.array([10, len(by_rule["uniform"])])
        for power, label in ((-0.5, "$t^{-1/2}$"), (-1.0, "$t^{-1}$")):
            axes.loglog(steps, start * (steps / 10) ** power, ":", color="0.5")
            axes.annotate(label, (steps[1], start * (steps[1] / 10) ** power), color="0.4")
        axes.set_title(f"{examples} numbers of examples", fontsize=10)
        axes.set_xlabel("round t")
        axes.set_ylim(bottom=start / 300)
    panels[0].set_ylabel("distance from the mean of all")
    panels[0].legend(fontsize=8)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
