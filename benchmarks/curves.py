"""Draw accuracy over rounds from outputs of `combinations.py`, a panel for each file.

Example
-------
python benchmarks/curves.py shards.jsonl dirichlet.jsonl --titles "2 shards,Dirichlet 0.1"
    --lines all,sketched-mean,fedvarp,uniform --picture curves.png
"""

import argparse
import json
from pathlib import Path

import numpy as np

from pncs_flower.simulations.report.figures import (
    BLACK,
    COLOURS,
    legend_below,
    new_figure,
    plain_axes,
    save,
)
from pncs_flower.simulations.sweep.statistics import mean_interval


def curves(path: Path, wanted: list[str]) -> dict[str, np.ndarray]:
    """Return the test accuracies of each wanted line, shape (seeds, rounds)."""
    rows = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["settings"]["evaluate-on"] == "test"]
    found = {
        name: {row["settings"]["seed"]: row for row in rows if row["name"] == name}
        for name in wanted
    }
    if absent := [name for name, runs in found.items() if not runs]:
        raise SystemExit(f"{path} has no test runs of {', '.join(absent)}")
    return {n: np.array([r["accuracies"] for r in runs.values()]) for n, runs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--lines", required=True, help="names, by commas; the first is dashed")
    parser.add_argument("--titles", required=True, help="of the panels, separated by commas")
    parser.add_argument("--picture", type=Path, required=True, help="PNG")
    options = parser.parse_args()
    names = options.lines.split(",")
    panels = [curves(path, names) for path in options.files]

    width = len(panels)
    figure = new_figure(4.8 * width, 4.2)
    plots = figure.subplots(1, width, squeeze=False, sharey=True)[0]
    drawn = {}
    for axes, by_line, title in zip(plots, panels, options.titles.split(","), strict=True):
        for name, runs in by_line.items():
            first, rounds = name == names[0], np.arange(1, runs.shape[1] + 1)
            colour, dash = (BLACK, "--") if first else (COLOURS[names.index(name) - 1], "-")
            means, errors = np.transpose([mean_interval(values) for values in runs.T])
            (drawn[name],) = axes.plot(rounds, means, dash, color=colour, zorder=2 + first)
            axes.fill_between(
                rounds, means - errors, means + errors, color=colour, alpha=0.15, linewidth=0
            )
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("round")
        plain_axes(axes)
    plots[0].set_ylabel("test accuracy")
    legend_below(figure, list(drawn.values()), list(drawn))
    save(figure, options.picture)


if __name__ == "__main__":
    main()
