"""Draw accuracy over rounds from outputs of `combinations.py`, a panel for each file.

Example
-------
python benchmarks/curves.py shards.jsonl dirichlet.jsonl --titles "2 shards,Dirichlet 0.1"
    --lines all,sketched-mean,fedvarp,uniform --set all:lr=0.3 --picture curves.png
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from measure import picture, read_rows

from pncs_flower.simulations.cli.console import parse_setting
from pncs_flower.simulations.report.figures import (
    BLACK,
    COLOURS,
    legend_below,
    new_figure,
    plain_axes,
    save,
)
from pncs_flower.simulations.sweep.statistics import mean_interval


def about(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a run was made with, but its seed."""
    found = row["line"] | row["settings"] | row["faults"]
    return found | {key: row[key] for key in ("clients", "rounds")} | {"seed": None}


def curves(path: Path, names: list[str], wanted: list[tuple[str, Any]]) -> dict[str, np.ndarray]:
    """Return the test accuracies of each line, shape (seeds, rounds), of runs as they are wanted.

    Raises SystemExit if a line has no such run, or runs that differ in more than their seed.
    """
    rows = [row for row in read_rows(path) if row["settings"]["evaluate-on"] == "test"]
    found = {}
    for name in names:
        own = [(key.rpartition(":"), value) for key, value in wanted]
        filters = {key: value for (line, _, key), value in own if line in ("", name)}
        runs = [row for row in rows if row["name"] == name]
        runs = [row for row in runs if all(about(row).get(k) == v for k, v in filters.items())]
        if not runs:
            there = ", ".join(sorted({row["name"] for row in rows}))
            raise SystemExit(f"{path} has no such test runs of {name}; it has runs of {there}")
        kinds = [about(row) for row in runs]
        values = {key: {str(kind.get(key)) for kind in kinds} for key in set().union(*kinds)}
        if several := [f"{k} ({', '.join(sorted(v))})" for k, v in values.items() if len(v) > 1]:
            raise SystemExit(
                f"{path} has runs of {name} that differ in {'; '.join(sorted(several))}: choose "
                f"with --set KEY=VALUE, for this line alone --set {name}:KEY=VALUE"
            )
        by_seed = {row["settings"]["seed"]: row["accuracies"] for row in runs}
        found[name] = np.array([*by_seed.values()])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--lines", required=True, help="names, by commas; the first is dashed")
    parser.add_argument("--titles", required=True, help="of the panels, separated by commas")
    parser.add_argument("--picture", type=picture(".png"), required=True, help="PNG")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[LINE:]KEY=VALUE", help="only such runs"
    )
    options = parser.parse_args()
    names, titles = options.lines.split(","), options.titles.split(",")
    if len(names) > len(COLOURS) + 1:
        parser.error(f"there are {len(names)} lines, but colours for {len(COLOURS) + 1}")
    if len(titles) != len(options.files):
        parser.error(f"there are {len(titles)} titles, but {len(options.files)} files")
    wanted = list(map(parse_setting, options.set))
    try:
        panels = [curves(path, names, wanted) for path in options.files]
    except OSError as error:
        raise SystemExit(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        files = " or ".join(map(str, options.files))
        raise SystemExit(f"{files} is no output of combinations.py") from None

    width = len(panels)
    figure = new_figure(4.8 * width, 4.2)
    plots = figure.subplots(1, width, squeeze=False, sharey=True)[0]
    drawn = {}
    for axes, by_line, title in zip(plots, panels, titles, strict=True):
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
