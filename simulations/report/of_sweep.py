"""One page on a sweep: pictures, tables, tests and settings in a single HTML file.

What is to be shown besides is one more function, and its line in ``_SECTIONS``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import SupportsFloat

import numpy as np

from ..sweep.results import SweepResults, judge
from ..sweep.statistics import LAST, compare, mean_interval, percent, rounds_to_reach
from .figures import draw_choices, draw_curves, draw_similarities, run_with_similarities
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
    lost = block(
        "details",
        f"Runs without a result: {len(results.missing)}",
        [(name, ()) for name in results.missing],
    )
    return Section(
        "",
        [
            block("text", text),
            *(block("warning", note) for note in warnings),
            *([lost] if results.missing else []),
        ],
    )


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
    return Section(
        "Accuracy over rounds",
        [
            picture(path, "Test accuracy over rounds, by rule"),
            block("text", "Lines are means over seeds, bands 95% intervals (Student's t)."),
        ],
    )


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
    return Section(
        "Accuracy over bytes",
        [
            picture(path, "Test accuracy over bytes sent, by rule"),
            block(
                "text",
                "Bytes are those of record contents that all clients send, pre-rounds included.",
            ),
            block("table", headings, rows, caption),
        ],
    )


def _converged(results: SweepResults, folder: Path) -> Section:
    shown: dict[str, list[str]] = {line: [line] for line in results.lines}
    for by_line in results.panels.values():
        means = {
            line: mean_interval(np.array([run.converged for run in runs]))
            for line, runs in by_line.items()
        }
        best = _best({line: float(mean) for line, (mean, _) in means.items()}, results)
        for line, cells in shown.items():
            cells.append(_bold(_plus_minus(*means[line]), line == best) if line in means else "-")
    caption = (
        f"Mean over the last {LAST} rounds and over seeds, ± half of the 95% interval; the best in "
        "bold"
    )
    if results.ceilings:
        caption += f" ({', '.join(sorted(results.ceilings))} is the ceiling and does not compete)"
    headings = ["rule", *(results.label(panel) or "accuracy" for panel in results.panels)]
    table = block("table", headings, list(shown.values()), f"{caption}.")
    return Section("Converged accuracy", [table, _at_rounds(results)])


def _at_rounds(results: SweepResults) -> str:
    most = min(len(run.rounds) for run in results.runs)
    wanted = [number for number in results.about.report.rounds if number <= most]
    # A mean over other plots than those of the others would not compare with theirs.
    means = {
        line: np.mean(
            [
                np.mean([run.accuracy[:most] for run in by_line[line]], axis=0)
                for by_line in results.panels.values()
            ],
            axis=0,
        )
        for line in results.lines
        if all(line in by_line for by_line in results.panels.values())
    }
    shown: dict[str, list[str]] = {line: [line] for line in results.lines if wanted}
    for n in wanted:
        best = _best({line: float(mean[n - 1]) for line, mean in means.items()}, results)
        for line, cells in shown.items():
            cells.append(_bold(f"{means[line][n - 1]:.3f}", line == best) if line in means else "-")
    caption = (
        "Accuracy after some rounds, averaged over seeds and over all plots above; no number for a "
        "rule that has no result in one of them."
    )
    return block("table", ["rule", *(f"round {n}" for n in wanted)], list(shown.values()), caption)


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
        for panel, by_line in results.panels.items()
        for test in compare(by_line, results.reference)
    ]
    caption = (
        f"Converged accuracy of {results.reference} minus that of the other rule, paired by seed; "
        "Wilcoxon's signed-rank test, two-sided, corrected by Holm for all comparisons of a plot. "
        "With few seeds no difference can be significant: the last column is the smallest p that "
        "there can be."
    )
    headings = ["against", "difference", "seeds", "p", "p (Holm)", "least p"]
    where = [results.label(panel) or "this sweep" for panel in results.without_reference]
    without = block(
        "warning",
        f"No test in {'; '.join(where)}: {results.reference}, the reference, has no result there.",
    )
    if not rows and not where:
        return None
    return Section(
        "Paired tests", [block("table", headings, rows, caption), *([without] if where else [])]
    )


def _choices(results: SweepResults, folder: Path) -> Section | None:
    path = draw_choices(results, folder / "choices.png")
    if path is None:
        return None
    text = f"{next(iter(results.panels))}, the first seed that has a result."
    shown = picture(path, "Chosen clients by round, by rule")
    return Section("Who was chosen when", [shown, block("text", text)])


def _similarities(results: SweepResults, folder: Path) -> Section | None:
    run = run_with_similarities(results)
    if run is None:
        return None
    path = draw_similarities(run, folder / "similarities.png")
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
    releases = _releases(results)
    versions = ", ".join(f"{name} {' and '.join(those)}" for name, those in releases.items())
    commands = []
    for run in runs:
        which = f"{run.cell['panel']}, {run.cell['line']}, seed {run.cell['seed']}"
        commands.append((block("command", which, run.cell["command"]), ()))
    return Section(
        "Settings",
        [
            _tuning(results),
            block("text", versions),
            block("table", ["setting", "values"], differing, "What differs among runs."),
            block("table", ["setting", "value"], shared, "What all runs share."),
            block("details", "The command for each run alone", commands),
        ],
    )


def _tuning(results: SweepResults) -> str:
    tuned, tune = results.about.tuned, results.about.tune
    rates = list(dict.fromkeys(rate for each in tuned for rate in each.accuracies))
    rows = [
        [
            results.row(each.panel, each.line),
            *(_bold(f"{each.accuracies[r]:.3f}", float(r) == each.lr) for r in rates),
        ]
        for each in tuned
    ]
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
    runs: list[list[object]] = [
        ["panel", "rule", "seed", "converged accuracy", "bytes sent", "command"]
    ]
    rounds: list[list[object]] = [
        ["panel", "rule", "seed", "round", "accuracy", "loss", "bytes", "chosen"]
    ]
    tests: list[list[object]] = [
        ["panel", "reference", "against", "seeds", "difference", "p", "p (Holm)"]
    ]
    for run in results.runs:
        own = [run.cell[key] for key in ("panel", "line", "seed")]
        runs.append([*own, run.converged, int(run.bytes_up[-1]), run.cell["command"]])
        for row, sent in zip(run.rounds, run.bytes_up, strict=True):
            values = [row["round"], row["accuracy"], row["loss"], int(sent)]
            rounds.append([*own, *values, " ".join(row["chosen"])])
    for panel, by_line in results.panels.items():
        tests += [
            [panel, results.reference, t.line, t.seeds, t.difference, t.p, t.p_holm]
            for t in compare(by_line, results.reference)
        ]
    for name, rows in (("runs", runs), ("rounds", rounds), ("tests", tests)):
        write_csv(folder / f"{name}.csv", rows)


def _best(values: Mapping[str, float], results: SweepResults) -> str | None:
    competing = {line: value for line, value in values.items() if line not in results.ceilings}
    return max(competing, key=competing.__getitem__) if competing else None


def _bold(text: str, wanted: bool) -> str:
    return block("bold", text) if wanted else text


def _plus_minus(mean: SupportsFloat, half: SupportsFloat) -> str:
    mean, half = float(mean), float(half)
    return f"{mean:.3f}" + (f" ± {half:.3f}" if np.isfinite(half) else "")


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
