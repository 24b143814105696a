"""One page on a sweep: pictures, tables, tests and settings in a single HTML file."""

from html import escape
from pathlib import Path

import numpy as np

from ..sweep.claims import judge
from ..sweep.results import (
    LAST,
    SweepResults,
    compare,
    mean_interval,
    percent,
    rounds_to_reach,
)
from .figures import draw_choices, draw_curves, draw_similarities, run_with_similarities
from .page import Row, picture, table, write_csv, write_page

__all__ = ["REPORT", "write_report"]

REPORT = "report.html"
"""Name of the page in a sweep's folder."""


def write_report(folder: Path, results: SweepResults) -> Path:
    """Write ``report.html``, its pictures as PNG and its numbers as CSV.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    results : SweepResults
        What was read from it.

    Returns
    -------
    Path
        The page, which needs no other file.
    """
    draw_curves(results, "rounds", folder / "rounds.png")
    draw_curves(results, "bytes", folder / "bytes.png")
    _write_csv(folder, results)
    parts = [
        f"<h1>{escape(results.sweep['title'])}</h1>",
        _about(results),
        _claims(results),
        "<h2>Accuracy over rounds</h2>",
        picture(folder / "rounds.png", "Test accuracy over rounds, by rule"),
        "<p>Lines are means over seeds, bands 95% intervals (Student's t).</p>",
        "<h2>Accuracy over bytes</h2>",
        picture(folder / "bytes.png", "Test accuracy over bytes sent, by rule"),
        "<p>Bytes are those of record contents that all clients send, pre-rounds included.</p>",
        _bytes_per_round(results),
        "<h2>Converged accuracy</h2>",
        _converged(results),
        _at_rounds(results),
        _targets(results),
        _tests(results),
        _choices(results, folder / "choices.png"),
        _similarities(results, folder / "similarities.png"),
        "<h2>Settings</h2>",
        _tuning(results),
        _settings(results),
    ]
    write_page(folder / REPORT, results.sweep["title"], parts)
    return folder / REPORT


def _about(results: SweepResults) -> str:
    runs = results.runs
    seeds = {run.cell["seed"] for run in runs}
    text = (
        f"{', '.join(sorted({run.summary['data'] for run in runs}))}; {runs[0].cell['clients']} "
        f"clients{f', {results.shared}' if results.shared else ''}; "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}; {len(runs)} runs."
    )
    warnings = [escape(note) for note in sorted({n for run in runs for n in run.summary["notes"]})]
    if results.missing:
        names = "".join(f"<li>{escape(name)}</li>" for name in results.missing)
        warnings.append(
            f"<details><summary>Runs without a result: {len(results.missing)}</summary>"
            f"<ul>{names}</ul></details>"
        )
    if any(len({len(runs) for runs in lines.values()}) > 1 for lines in results.panels.values()):
        warnings.append("some means are over fewer seeds than others: compare by the paired tests")
    if any(len(those) > 1 for those in _releases(results).values()):
        warnings.append(
            "some runs were made with other releases than others (see the settings), which may "
            "have other results: delete the older files in cells and run again, to compare"
        )
    early = sum(len(run.trained) < len(run.rounds) for run in runs)
    if early:
        text += f" {early} of them stopped early, and count with the model that they ended with."
    boxes = "".join(f'<div class="warning">{warning}</div>' for warning in warnings)
    return f"<p>{escape(text)}</p>{boxes}"


def _claims(results: SweepResults) -> str:
    claims = results.sweep["report"]["claims"]
    if not claims:
        return ""
    items = []
    for claim in claims:
        verdict, numbers = judge(claim, results)
        details = "".join(f"<li>{escape(text)}</li>" for text in numbers)
        items.append(
            f"<li>{escape(claim['text'])}: <strong>{verdict}</strong><ul>{details}</ul></li>"
        )
    return (
        "<h2>What the paper says</h2><p>Judged by the means over the seeds of these runs, in these "
        f"settings.</p><ul>{''.join(items)}</ul>"
    )


def _converged(results: SweepResults) -> str:
    lines = results.lines
    columns: list[dict[str, tuple[float, float]]] = []
    for by_line in results.panels.values():
        column = {}
        for line, runs in by_line.items():
            mean, half = mean_interval(np.array([run.converged for run in runs]))
            column[line] = (float(mean), float(half))
        columns.append(column)
    best = [
        _best({line: value[0] for line, value in column.items()}, results) for column in columns
    ]
    rows = [
        [
            escape(line),
            *(
                _bold(_plus_minus(*column[line]), line == top) if line in column else "-"
                for column, top in zip(columns, best, strict=True)
            ),
        ]
        for line in lines
    ]
    caption = (
        f"Mean over the last {LAST} rounds and over seeds, ± half of the 95% interval; the best in "
        "bold"
    )
    if results.ceilings:
        caption += f" ({', '.join(sorted(results.ceilings))} is the ceiling and does not compete)"
    headings = [results.label(panel) or "accuracy" for panel in results.panels]
    return table(["rule", *headings], rows, f"{caption}.")


def _bytes_per_round(results: SweepResults) -> str:
    rows = []
    for panel, by_line in results.panels.items():
        for line, runs in by_line.items():
            means = [
                sum(value for run in runs for row in run.trained for value in pick(row).values())
                / sum(len(run.trained) for run in runs)
                for pick in (
                    lambda row: {k: v for k, v in row["bytes_up"].items() if k != "training"},
                    lambda row: {"": row["bytes_up"].get("training", 0)},
                    lambda row: row["bytes_up"],
                    lambda row: row["bytes_down"],
                )
            ]
            rows.append([escape(results.row(panel, line)), *(f"{m / 1e3:,.1f}" for m in means)])
    caption = (
        "kB in a round, all clients together, averaged over the seeds and the rounds that were "
        "trained. An update that a client has kept since the pre-round is sent once only, if it is "
        "chosen."
    )
    headings = ["rule", "before the choice", "updates", "sent by clients", "sent to clients"]
    return table(headings, rows, caption)


def _choices(results: SweepResults, path: Path) -> str:
    if not draw_choices(results, path):
        return ""
    return (
        "<h2>Who was chosen when</h2>"
        + picture(path, "Chosen clients by round, by rule")
        + f"<p>{escape(next(iter(results.panels)))}, the first seed that has a result.</p>"
    )


def _similarities(results: SweepResults, path: Path) -> str:
    run = run_with_similarities(results)
    if run is None:
        return ""
    draw_similarities(run, path)
    what = f"{run.cell['line']}, {run.cell['panel']}, seed {run.cell['seed']}"
    return (
        "<h2>How alike the gradients are</h2>"
        + picture(path, "Similarity of every two clients in some rounds")
        + f"<p>{escape(what)}. Clients that cool down send no summary and are grey; the pairs of "
        "chosen clients are framed.</p>"
    )


def _tuning(results: SweepResults) -> str:
    tuned = results.sweep.get("tuned", [])
    if not tuned:
        return ""
    rates = list(dict.fromkeys(rate for each in tuned for rate in each["accuracies"]))
    rows = [
        [
            escape(results.row(each["panel"], each["line"])),
            *(_bold(f"{each['accuracies'][r]:.3f}", float(r) == each["lr"]) for r in rates),
        ]
        for each in tuned
    ]
    caption = (
        "Learning rates tried: accuracy on a tenth of the training examples, which no client then "
        f"held, averaged over the last {LAST} rounds and {results.sweep['tune']['seeds']} other "
        "seeds; the rate in bold was taken. 0: no run came to an end."
    )
    return table(["rule", *(f"lr {rate}" for rate in rates)], rows, caption)


def _at_rounds(results: SweepResults) -> str:
    most = min(len(run.rounds) for run in results.runs)
    wanted = [number for number in results.sweep["report"]["rounds"] if number <= most]
    if not wanted:
        return ""
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
    rows = []
    best = {
        n: _best({line: float(mean[n - 1]) for line, mean in means.items()}, results)
        for n in wanted
    }
    for line in results.lines:
        # A mean over other plots than those of the others would not compare with theirs.
        mean = means.get(line)
        shown = [
            "-" if mean is None else _bold(f"{mean[n - 1]:.3f}", line == best[n]) for n in wanted
        ]
        rows.append([escape(line), *shown])
    caption = (
        "Accuracy after some rounds, averaged over seeds and over all plots above; no number for a "
        "rule that has no result in one of them."
    )
    return table(["rule", *(f"round {n}" for n in wanted)], rows, caption)


def _targets(results: SweepResults) -> str:
    targets = results.sweep["report"]["targets"]
    if not targets:
        return ""
    rows = []
    for panel, by_line in results.panels.items():
        for line, runs in by_line.items():
            cells = []
            for target in targets:
                median, count = rounds_to_reach(runs, target)
                shown = "never" if median is None else f"{median:g}"
                cells.append(f"{shown} ({count}/{len(runs)})")
            rows.append([escape(results.row(panel, line)), *cells])
    caption = (
        "Median round over seeds, and how many runs reach it at all; a run that does not counts as "
        "later than all rounds."
    )
    shown = table(["rule", *map(percent, targets)], rows, caption)
    return f"<h2>Rounds to reach an accuracy</h2>{shown}"


def _tests(results: SweepResults) -> str:
    rows = []
    for panel, by_line in results.panels.items():
        rows += [
            [
                escape(results.row(panel, test.line)),
                f"{test.difference:+.3f}",
                str(test.seeds),
                f"{test.p:.3f}",
                _bold(f"{test.p_holm:.3f}", test.p_holm < 0.05),
                f"{test.least_p:.3f}",
            ]
            for test in compare(by_line, results.reference)
        ]
    caption = (
        f"Converged accuracy of {results.reference} minus that of the other rule, paired by seed; "
        "Wilcoxon's signed-rank test, two-sided, corrected by Holm for all comparisons of a plot. "
        "With few seeds no difference can be significant: the last column is the smallest p that "
        "there can be."
    )
    headings = ["against", "difference", "seeds", "p", "p (Holm)", "least p"]
    shown = (table(headings, rows, caption) if rows else "") + _without_reference(results)
    return shown and f"<h2>Paired tests</h2>{shown}"


def _without_reference(results: SweepResults) -> str:
    """Say where there is no test for want of the reference."""
    where = [results.label(panel) or "this sweep" for panel in results.without_reference]
    if not where:
        return ""
    text = f"No test in {'; '.join(where)}: {results.reference}, the reference, has no result there"
    return f'<div class="warning">{escape(text)}.</div>'


def _settings(results: SweepResults) -> str:
    runs = results.runs
    keys = dict.fromkeys(key for run in runs for key in run.cell["settings"])
    shared: list[Row] = []
    differing: list[Row] = []
    for key in keys:
        values = dict.fromkeys(str(run.cell["settings"].get(key, "-")) for run in runs)
        (shared if len(values) == 1 else differing).append([escape(key), escape(", ".join(values))])
    releases = _releases(results)
    versions = ", ".join(f"{name} {' and '.join(those)}" for name, those in releases.items())
    commands = "".join(
        f"<li>{escape(run.cell['panel'])}, {escape(run.cell['line'])}, seed {run.cell['seed']}: "
        f"<code>{escape(run.cell['command'])}</code></li>"
        for run in runs
    )
    return (
        f"<p>{escape(versions)}</p>"
        + table(["setting", "values"], differing, "What differs among runs.")
        + table(["setting", "value"], shared, "What all runs share.")
        + f"<details><summary>The command for each run alone</summary><ul>{commands}</ul></details>"
    )


def _releases(results: SweepResults) -> dict[str, list[str]]:
    """Return the releases of each library that the runs were made with."""
    found: dict[str, dict[str, None]] = {}
    for run in results.runs:
        for name, release in run.summary["versions"].items():
            found.setdefault(name, {})[release] = None
    return {name: list(those) for name, those in found.items()}


def _write_csv(folder: Path, results: SweepResults) -> None:
    runs = results.runs
    table_of_runs: list[list[object]] = [
        ["panel", "rule", "seed", "converged accuracy", "bytes sent", "command"]
    ]
    rounds: list[list[object]] = [
        ["panel", "rule", "seed", "round", "accuracy", "loss", "bytes", "chosen"]
    ]
    for run in runs:
        own = [run.cell[key] for key in ("panel", "line", "seed")]
        table_of_runs.append(
            [*own, run.converged, int(run.bytes_up[-1]), run.cell["command"]],
        )
        for row, sent in zip(run.rounds, run.bytes_up, strict=True):
            values = [row["round"], row["accuracy"], row["loss"], int(sent)]
            rounds.append([*own, *values, " ".join(row["chosen"])])
    tests: list[list[object]] = [
        ["panel", "reference", "against", "seeds", "difference", "p", "p (Holm)"]
    ]
    for panel, by_line in results.panels.items():
        tests.extend(
            [panel, results.reference, t.line, t.seeds, t.difference, t.p, t.p_holm]
            for t in compare(by_line, results.reference)
        )
    write_csv(folder / "runs.csv", table_of_runs)
    write_csv(folder / "rounds.csv", rounds)
    write_csv(folder / "tests.csv", tests)


def _best(values: dict[str, float], results: SweepResults) -> str | None:
    competing = {line: value for line, value in values.items() if line not in results.ceilings}
    return max(competing, key=competing.__getitem__) if competing else None


def _plus_minus(mean: float, half: float) -> str:
    return f"{mean:.3f}" + (f" ± {half:.3f}" if np.isfinite(half) else "")


def _bold(text: str, bold: bool) -> str:
    return f"<strong>{text}</strong>" if bold else text
