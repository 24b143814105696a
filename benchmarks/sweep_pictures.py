r"""Draw pictures for the docs from a sweep's folder: a few of its lines, or what a target took.

`lines` draws accuracy over rounds, over what all clients send, and over bytes to and from all
clients, of one plot of the sweep (`--plot`, the end of its name), the first line dashed. `reached`
draws what each run took to reach a target: a dot for each seed and a bar at the median, runs that
never got there at the right edge.

Examples
--------
python benchmarks/sweep_pictures.py lines runs/devices --plot "devices none" \
    --rules all sketched-mean "sketched-mean, 20 asked" pncs uniform --picture lines.png
python benchmarks/sweep_pictures.py reached runs/devices --target 0.7 --picture reached.png
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from measure import picture

from pncs_flower.simulations.report.figures import (
    BLACK,
    COLOURS,
    legend_below,
    new_figure,
    plain_axes,
    save,
)
from pncs_flower.simulations.sweep.statistics import mean_interval

Rows = list[dict[str, str]]


def read(folder: Path, name: str) -> Rows:
    if not (folder / name).is_file():
        raise SystemExit(f"{folder} has no {name}: give the folder of a sweep that has a report")
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def logarithmic(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelsize=8)


def draw_lines(folder: Path, plot: str, rules: Sequence[str], picture: Path) -> None:
    rows = [row for row in read(folder, "rounds.csv") if row["panel"].endswith(plot)]
    if len(plots := sorted({row["panel"] for row in rows})) > 1:
        raise SystemExit(f"{folder} has several plots: give one by --plot: {'; '.join(plots)}")
    figure = new_figure(10.5, 3.6)
    over_rounds, over_sent, over_bytes = figure.subplots(1, 3, sharey=True)
    drawn = []
    for rule in rules:
        seeds: dict[str, Rows] = defaultdict(list)
        for row in rows:
            if row["rule"] == rule:
                seeds[row["seed"]].append(row)
        if not seeds:
            raise SystemExit(f"{folder} has no runs of {rule} in a plot that ends with {plot!r}")
        scores = np.array([[float(row["accuracy"]) for row in own] for own in seeds.values()])
        up, down = (
            np.mean([[int(row[key]) / 1e6 for row in own] for own in seeds.values()], axis=0)
            for key in ("bytes", "bytes received")
        )
        means, errors = np.transpose([mean_interval(values) for values in scores.T])
        colour, dash = (COLOURS[rules.index(rule) - 1], "-") if drawn else (BLACK, "--")
        for axes, x in (
            (over_rounds, np.arange(1, len(means) + 1)),
            (over_sent, up),
            (over_bytes, up + down),
        ):
            (line,) = axes.plot(x, means, dash, color=colour)
            axes.fill_between(x, means - errors, means + errors, color=colour, alpha=0.15, lw=0)
        drawn.append(line)
    over_rounds.set_xlabel("round")
    over_rounds.set_ylabel("test accuracy")
    over_sent.set_xlabel("MB sent by clients (log scale)")
    over_bytes.set_xlabel("MB to and from clients (log scale)")
    logarithmic(over_sent)
    logarithmic(over_bytes)
    for axes in (over_rounds, over_sent, over_bytes):
        plain_axes(axes)
    legend_below(figure, drawn, rules)
    save(figure, picture)


def draw_reached(folder: Path, target: float, picture: Path) -> None:
    rows = [row for row in read(folder, "reached.csv") if float(row["target"]) == target]
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    if not rules:
        raise SystemExit(f"{folder} has no target {target}: the sweep's [report] has its targets")
    kinds = {
        "phones: simulated minutes": ("devices phones", "simulated seconds", 60),
        "cross-silo: simulated seconds": ("devices cross-silo", "simulated seconds", 1),
        "no devices: MB both ways": ("devices none", "bytes both ways", 1e6),
    }
    figure = new_figure(10.5, 0.27 * len(rules) + 1.1)
    plots: Sequence[Axes] = figure.subplots(1, len(kinds), sharey=True)
    for axes, (title, (plot, column, unit)) in zip(plots, kinds.items(), strict=True):
        own = [row for row in rows if row["panel"].endswith(plot)]
        values = {
            rule: sorted(
                float(r[column]) / unit if r[column] else np.inf for r in own if r["rule"] == rule
            )
            for rule in rules
        }
        reached = [x for found in values.values() for x in found if np.isfinite(x)]
        if not reached:
            raise SystemExit(f"{folder} has no run that reached {target} in a plot {plot!r}")
        edge = 1.6 * max(reached)
        for place, (rule, found) in enumerate(values.items()):
            colour = BLACK if rule == "all" else COLOURS[0]
            axes.plot(np.minimum(found, edge), [place] * len(found), "o", ms=4, alpha=0.5, c=colour)
            axes.plot(min(float(np.median(found)), edge), place, "|", ms=13, mew=2.5, color=colour)
        if any(np.inf in found for found in values.values()):
            axes.axvline(edge, color="#999999", lw=0.8, ls=":")
            axes.text(edge, -0.9, "never", ha="center", va="bottom", fontsize=8)
        logarithmic(axes)
        axes.set_title(title, fontsize=10, pad=14)
        plain_axes(axes)
    plots[0].set_yticks(range(len(rules)), rules)
    plots[0].invert_yaxis()
    save(figure, picture)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("lines", "reached"):
        each = kinds.add_parser(kind)
        each.add_argument("folder", type=Path, help="of a sweep, with rounds.csv")
        each.add_argument("--picture", type=picture(".png"), required=True, help="PNG")
        if kind == "lines":
            each.add_argument(
                "--plot", default="", help="the end of its name, if there are several"
            )
            each.add_argument("--rules", nargs="+", required=True, help="the first is dashed")
        else:
            each.add_argument(
                "--target", type=float, required=True, help="an accuracy, such as 0.7"
            )
    options = parser.parse_args()
    try:
        if options.kind == "lines":
            draw_lines(options.folder, options.plot, options.rules, options.picture)
        else:
            draw_reached(options.folder, options.target, options.picture)
    except OSError as error:
        raise SystemExit(f"{options.picture} cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    main()
