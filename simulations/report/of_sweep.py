"""One page on a sweep: pictures, tables, tests and settings in a single HTML file.

What is to be shown besides is one more function, and its line in ``_SECTIONS``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ..sweep.results import SweepResults, judge
from ..sweep.statistics import LAST, mean_interval, percent, rounds_to_reach
from .figures import draw_choices, draw_curves, draw_similarities
from .page import Section, block, picture, write_csv, write_page

__all__ = ["REPORT", "write_report"]

REPORT = "report.html"
"""Name of the page in a sweep's folder."""


def write_report(folder: Path, results: SweepResults) -> Path:
    """Write ``report.html``, which needs no other file, its pictures as PNG, its numbers as CSV."""
    _write_csv(folder, results)
    sections = [section(results, folder) for section in _SECTIONS]
    return write_page(folder / REPORT, results.about.title, [s for s in sections if s is not None])


def _about(results: SweepResults, folder: Path) -> Section:
    runs = results.runs
    seeds = len({run.cell["seed"] for run in runs})
    text = (
        f"{', '.join(sorted({run.summary['data'] for run in runs}))}; {runs[0].cell['clients']} "
        f"clients{f', {results.shared}' if results.shared else ''}; "
        f"{seeds} seed{'s' if seeds > 1 else ''}; {len(runs)} runs."
    )
    early = sum(len(run.trained) < len(run.rounds) for run in runs)
    if early:
        text += f" {early} of them stopped early, and count with the model that they ended with."
    warnings = sorted({note for run in runs for note in run.summary["notes"]})
    if any(len({len(runs) for runs in lines.values()}) > 1 for lines in results.panels.values()):
        warnings.append("some means are over fewer seeds than others: compare by the paired tests")
    if any(len(those) > 1 for those in _releases(results).values()):
        warnings.append(
            "some runs were made with other releases than others (see the settings), which may "
            "have other results: delete the older files in cells and run again, to compare"
        )
    blocks = [block("text", text), *(block("warning", note) for note in warnings)]
    if results.missing:
        summary = f"Runs without a result: {len(results.missing)}"
        blocks.append(block("details", summary, [(name, ()) for name in results.missing]))
    return Section("", blocks)


def _claims(results: SweepResults, folder: Path) -> Section | None:
    points = []
    for claim in results.about.report.claims:
        verdict, numbers = judge(claim, results)
        points.append((block("verdict", claim.text, verdict), [(n, ()) for n in numbers]))
    if not points:
        return None
    text = "Judged by the means over the seeds of these runs, in these settings."
    return Section("What the paper says", [block("text", text), block("points", points)])


def _over_rounds(results: SweepResults, folder: Path) -> Section:
    path = draw_curves(results, "rounds", folder / "rounds.png")
    text = "Lines are means over seeds, bands 95% intervals (Student's t)."
    shown = picture(path, "Test accuracy over rounds, by rule")
    return Section("Accuracy over rounds", [shown, block("text", text)])


def _over_bytes(results: SweepResults, folder: Path) -> Section:
    path = draw_curves(results, "bytes", folder / "bytes.png")
    rows = []
    for panel, line, runs in results.groups:
        trained = [row for run in runs for row in run.trained]
        up = sum(sum(row["bytes_up"].values()) for row in trained)
        updates = sum(row["bytes_up"].get("training", 0) for row in trained)
        down = sum(sum(row["bytes_down"].values()) for row in trained)
        shown = [f"{n / len(trained) / 1e3:,.1f}" for n in (up - updates, updates, up, down)]
        rows.append([results.row(panel, line), *shown])
    caption = (
        "kB in a round, all clients together, averaged over the seeds and the rounds that were "
        "trained. An update that a client has kept since the pre-round is sent once only, if it is "
        "chosen."
    )
    headings = ["rule", "before the choice", "updates", "sent by clients", "sent to clients"]
    text = "Bytes are those of record contents that all clients send, pre-rounds included."
    blocks = [
        picture(path, "Test accuracy over bytes sent, by rule"),
        block("text", text),
        block("table", headings, rows, caption),
    ]
    return Section("Accuracy over bytes", blocks)


def _converged(results: SweepResults, folder: Path) -> Section:
    plots: dict[str, dict[str, tuple[float, str]]] = {}
    for panel, by_line in results.panels.items():
        column = plots.setdefault(results.label(panel) or "accuracy", {})
        for line, runs in by_line.items():
            mean, half = map(float, mean_interval(np.array([run.converged for run in runs])))
            interval = f" ± {half:.3f}" if np.isfinite(half) else ""
            column[line] = mean, f"{mean:.3f}{interval}"
    caption = (
        f"Mean over the last {LAST} rounds and over seeds, ± half of the 95% interval; the best in "
        "bold"
    )
    if results.ceilings:
        caption += f" ({', '.join(sorted(results.ceilings))} is the ceiling and does not compete)"
    most = min(len(run.rounds) for run in results.runs)
    # A mean over other plots than those of the others would not compare with theirs.
    everywhere = [line for line in results.lines if all(line in p for p in results.panels.values())]
    means = {
        line: np.mean(
            [
                np.mean([r.accuracy[:most] for r in p[line]], axis=0)
                for p in results.panels.values()
            ],
            axis=0,
        )
        for line in everywhere
    }
    rounds = {
        f"round {n}": {line: (mean[n - 1], f"{mean[n - 1]:.3f}") for line, mean in means.items()}
        for n in results.about.report.rounds
        if n <= most
    }
    text = (
        "Accuracy after some rounds, averaged over seeds and over all plots above; no number for a "
        "rule that has no result in one of them."
    )
    tables = [_best_in_bold(results, plots, f"{caption}.")]
    if rounds:
        tables.append(_best_in_bold(results, rounds, text))
    return Section("Converged accuracy", tables)


def _best_in_bold(
    results: SweepResults, columns: Mapping[str, Mapping[str, tuple[float, str]]], caption: str
) -> str:
    """Return a table of what columns show of lines, the largest value in bold; "-" for none."""
    rows = {line: [line] for line in results.lines}
    for column in columns.values():
        competing = [line for line in column if line not in results.ceilings]
        best = max(competing, key=lambda line: column[line][0], default=None)
        for line, cells in rows.items():
            _, text = column.get(line, (0, "-"))
            cells.append(_bold(text, line == best))
    return block("table", ["rule", *columns], list(rows.values()), caption)


def _targets(results: SweepResults, folder: Path) -> Section | None:
    targets = results.about.report.targets
    if not targets:
        return None
    rows = []
    for panel, line, runs in results.groups:
        reached = [rounds_to_reach(runs, target) for target in targets]
        shown = [
            f"{'never' if median is None else f'{median:g}'} ({count}/{len(runs)})"
            for median, count in reached
        ]
        rows.append([results.row(panel, line), *shown])
    caption = (
        "Median round over seeds, and how many runs reach it at all; a run that does not counts as "
        "later than all rounds."
    )
    table = block("table", ["rule", *map(percent, targets)], rows, caption)
    return Section("Rounds to reach an accuracy", [table])


def _tests(results: SweepResults, folder: Path) -> Section | None:
    rows = [
        [
            results.row(panel, test.line),
            f"{test.difference:+.3f}",
            str(test.seeds),
            f"{test.p:.3f}",
            _bold(f"{test.p_holm:.3f}", test.p_holm < 0.05),
            f"{test.least_p:.3f}",
        ]
        for panel, test in results.comparisons
    ]
    caption = (
        f"Converged accuracy of {results.reference} minus that of the other rule, paired by seed; "
        "Wilcoxon's signed-rank test, two-sided, corrected by Holm for all comparisons of a plot. "
        "With few seeds no difference can be significant: the last column is the smallest p that "
        "there can be."
    )
    headings = ["against", "difference", "seeds", "p", "p (Holm)", "least p"]
    blocks = [block("table", headings, rows, caption)] if rows else []
    where = "; ".join(results.label(panel) or "this sweep" for panel in results.without_reference)
    if where:
        text = f"No test in {where}: {results.reference}, the reference, has no result there."
        blocks.append(block("warning", text))
    return Section("Paired tests", blocks) if blocks else None


def _choices(results: SweepResults, folder: Path) -> Section | None:
    path = draw_choices(results, folder / "choices.png")
    if path is None:
        return None
    text = f"{next(iter(results.panels))}, the first seed that has a result."
    shown = picture(path, "Chosen clients by round, by rule")
    return Section("Who was chosen when", [shown, block("text", text)])


def _similarities(results: SweepResults, folder: Path) -> Section | None:
    drawn = draw_similarities(results, folder / "similarities.png")
    if drawn is None:
        return None
    path, run = drawn
    text = (
        f"{run.cell['line']}, {run.cell['panel']}, seed {run.cell['seed']}. Clients that cool down "
        "send no summary and are grey; the pairs of chosen clients are framed."
    )
    shown = picture(path, "Similarity of every two clients in some rounds")
    return Section("How alike the gradients are", [shown, block("text", text)])


def _settings(results: SweepResults, folder: Path) -> Section:
    runs = results.runs
    shared: list[list[str]] = []
    differing: list[list[str]] = []
    for key in dict.fromkeys(key for run in runs for key in run.cell["settings"]):
        values = dict.fromkeys(str(run.cell["settings"].get(key, "-")) for run in runs)
        (shared if len(values) == 1 else differing).append([key, ", ".join(values)])
    versions = (f"{name} {' and '.join(those)}" for name, those in _releases(results).items())
    which = "{panel}, {line}, seed {seed}"
    commands = [block("command", which.format(**r.cell), r.cell["command"]) for r in runs]
    blocks = [
        _tuning(results),
        block("text", ", ".join(versions)),
        block("table", ["setting", "values"], differing, "What differs among runs."),
        block("table", ["setting", "value"], shared, "What all runs share."),
        block("details", "The command for each run alone", [(text, ()) for text in commands]),
    ]
    return Section("Settings", blocks)


def _tuning(results: SweepResults) -> str:
    tuned, tune = results.about.tuned, results.about.tune
    rates = list(dict.fromkeys(rate for each in tuned for rate in each.accuracies))
    rows = []
    for each in tuned:
        shown = (_bold(f"{each.accuracies[r]:.3f}", float(r) == each.lr) for r in rates)
        rows.append([results.row(each.panel, each.line), *shown])
    caption = (
        "Learning rates tried: accuracy on a tenth of the training examples, which no client then "
        f"held, averaged over the last {LAST} rounds and {tune.seeds if tune else 0} other "
        "seeds; the rate in bold was taken. 0: no run came to an end."
    )
    return block("table", ["rule", *(f"lr {rate}" for rate in rates)], rows, caption)


def _releases(results: SweepResults) -> dict[str, list[str]]:
    """Return the releases of each library that the runs were made with."""
    found: dict[str, dict[str, None]] = {}
    for run in results.runs:
        for name, release in run.summary["versions"].items():
            found.setdefault(name, {})[release] = None
    return {name: list(those) for name, those in found.items()}


def _write_csv(folder: Path, results: SweepResults) -> None:
    runs: list[list[object]] = []
    rounds: list[list[object]] = []
    for run in results.runs:
        own = [run.cell[key] for key in ("panel", "line", "seed")]
        runs.append([*own, run.converged, int(run.bytes_up[-1]), run.cell["command"]])
        for row, sent in zip(run.rounds, run.bytes_up, strict=True):
            values = [row["round"], row["accuracy"], row["loss"], int(sent)]
            rounds.append([*own, *values, " ".join(row["chosen"])])
    tests = [
        [panel, results.reference, t.line, t.seeds, t.difference, t.p, t.p_holm]
        for panel, t in results.comparisons
    ]
    headings = "panel,rule,seed,converged accuracy,bytes sent,command"
    write_csv(folder / "runs.csv", headings, runs)
    headings = "panel,rule,seed,round,accuracy,loss,bytes,chosen"
    write_csv(folder / "rounds.csv", headings, rounds)
    headings = "panel,reference,against,seeds,difference,p,p (Holm)"
    write_csv(folder / "tests.csv", headings, tests)


def _bold(text: str, wanted: bool) -> str:
    return block("bold", text) if wanted else text


_SECTIONS: tuple[Callable[[SweepResults, Path], Section | None], ...] = (
    _about,
    _claims,
    _over_rounds,
    _over_bytes,
    _converged,
    _targets,
    _tests,
    _choices,
    _similarities,
    _settings,
)
"""The page, from top to bottom; None leaves a section out."""
