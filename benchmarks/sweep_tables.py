r"""Print the tables of a sweep's folder in Markdown, as the docs have them.

Scores at the end with their intervals and, in parentheses, p against the reference; the learning
rate of each plot where it was chosen; scores after some rounds, as the mean of the plots; what all
clients send in a round; and the rounds to each target. The best but for all clients is bold.

Examples
--------
python benchmarks/sweep_tables.py runs/table2
python benchmarks/sweep_tables.py runs/table2 --reference "pncs L=8"
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from pncs_flower.simulations.report.tables_of_sweep import (
    Table,
    after_rounds_table,
    converged_table,
    in_order_of_score,
    reached_table,
)
from pncs_flower.simulations.sweep.progress import ROUNDS
from pncs_flower.simulations.sweep.results import SweepResults, read_results
from pncs_flower.simulations.sweep.statistics import Comparison, compare


def markdown(table: Table) -> str:
    """Return a table in Markdown."""
    rows = [table.headings, ["---"] * len(table.headings), *table.rows]
    return "\n".join(f"| {' | '.join(map(_text, row))} |" for row in rows)


def _text(cell: str | Markup) -> str:
    if isinstance(cell, Markup):
        bold = cell.replace(Markup("<strong>"), "**").replace(Markup("</strong>"), "**")
        cell = Markup(bold).striptags()
    return cell.replace("|", r"\|")


def with_p(table: Table, results: SweepResults, tests: Sequence[Comparison]) -> Table:
    """Return the table of the ends with p of each line and plot in parentheses."""
    found = {(test.panel, test.line): f" ({test.p_holm:.3f})" for test in tests}
    plots = list(results.panels)
    rows = [
        [
            line,
            *(
                Markup("{}{}").format(c, found.get((p, line), ""))
                for p, c in zip(plots, cells, strict=True)
            ),
        ]
        for line, *cells in table.rows
    ]
    return Table(table.headings, rows)


def with_column(table: Table, heading: str, values: dict[str, str]) -> Table:
    """Return the table with a last column, by what its rows begin with."""
    rows = [[*row, values.get(str(row[0]), "-")] for row in table.rows]
    return Table([*table.headings, heading], rows)


def rates(results: SweepResults) -> dict[str, str]:
    """Return each line's learning rates, in the order of the plots; nothing if none was chosen."""
    chosen = {(each.panel, each.line): f"{each.lr:g}" for each in results.about.tuned}
    return {
        line: ", ".join(chosen[panel, line] for panel in results.panels if (panel, line) in chosen)
        for line in in_order_of_score(results)
        if chosen
    }


def sent(results: SweepResults) -> dict[str, str]:
    """Return the kB that all clients together send in a round, by line."""
    found = {}
    for line in in_order_of_score(results):
        runs = [run for by_line in results.panels.values() for run in by_line.get(line, ())]
        trained = [row for run in runs for row in run.trained]
        up = sum(sum(row["bytes_up"].values()) for row in trained)
        found[line] = f"{up / len(trained) / 1e3:,.0f}"
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the sweep, with its sweep.json")
    parser.add_argument("--reference", help="what the tests are against, in place of the file's")
    parser.add_argument("--no-p", action="store_true", help="leave out the tests")
    given = parser.parse_args(arguments)
    try:
        results = read_results(given.folder)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if given.reference and given.reference not in results.lines:
        raise SystemExit(
            f"{given.folder} has no runs of {given.reference}; it has {', '.join(results.lines)}"
        )
    if given.reference:
        report = replace(results.about.report, reference=given.reference)
        results = replace(results, about=replace(results.about, report=report))
    ends = converged_table(results, ())
    if not given.no_p:
        ends = with_p(ends, results, compare(results))
    chosen = rates(results)
    print(markdown(with_column(ends, "rates", chosen) if chosen else ends), end="\n\n")
    sending = with_column(
        after_rounds_table(results), "kB sent by clients in a round", sent(results)
    )
    print(markdown(sending))
    if results.about.report.targets:
        caption, table = reached_table(results, ROUNDS)
        print(f"\n{caption}:\n\n{markdown(table)}")


if __name__ == "__main__":
    main()
