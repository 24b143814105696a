"""The page and the numbers that a study of client pairs leaves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..study.study import ALL, RANDOM, Row, Study
from ..task import load_inputs
from .figures import new_figure, plain_axes, save
from .page import Section, block, picture, write_csv, write_page

__all__ = ["judge_rows", "write_table1"]

_TITLE = "Table 1: which feature tells a good pair (arXiv:2506.15923, section V-B)"


def judge_rows(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Hold what the paper says against the rows: verdict, claim and numbers."""
    by_name = {row.name: row for row in rows}
    mean = {row.name: float(row.losses.mean()) for row in rows}
    spread = {row.name: float(row.losses.std()) for row in rows}
    best = min((name for name in mean if name not in (ALL, RANDOM)), key=mean.__getitem__)
    claims = [
        (
            best == "cos 4",
            "cos_4 is the best single feature",
            f"mean relative loss of cos 4 {mean['cos 4']:.3f}, of {best} "
            f"{mean[best]:.3f}, of a random pair {mean[RANDOM]:.3f}",
        ),
        (
            by_name["cos 4"].weight < 0 and mean["cos 4"] < mean[RANDOM],
            "The pair with the most negative cos_4 is better than a random one",
            f"weight of cos 4 {by_name['cos 4'].weight:+.3f}; relative loss {mean['cos 4']:.3f} "
            f"against {mean[RANDOM]:.3f}",
        ),
        (
            mean["cos 1"] < mean["cos 4"] and spread["cos 1"] > spread["cos 4"],
            "cos_1 has a smaller relative loss than cos_4, and a higher variance",
            f"cos 1 {mean['cos 1']:.3f} (deviation {spread['cos 1']:.3f}), cos 4 "
            f"{mean['cos 4']:.3f} ({spread['cos 4']:.3f})",
        ),
    ]
    return [("holds" if good else "does not hold", text, shown) for good, text, shown in claims]


def write_table1(folder: Path, study: Study, rows: Sequence[Row]) -> Path:
    """Write ``report.html`` and ``table1.csv``, and return the page."""
    values = (
        [row.name, study.shards[i], seed, t + 1, float(value)]
        for row in rows
        for (i, seed, t), value in np.ndenumerate(row.losses)
    )
    write_csv(folder / "table1.csv", "feature,shards,seed,iteration,relative loss", values)
    _draw(folder / "iterations.png", rows)
    inputs = load_inputs(next(iter(study.configs().values())))
    verdicts = [
        (block("verdict", text, f"{verdict} ({shown})"), ())
        for verdict, text, shown in judge_rows(rows)
    ]
    rounds = int(study.settings["num-rounds"])
    about = (
        f"{inputs.title}; {study.clients} clients, {rounds} rounds, {study.seeds} seeds; all pairs "
        "in every round, judged on a tenth of the training examples that no client holds. "
        "Training goes on from the mean gradient of all clients, which the paper leaves open."
    )
    body = [
        [
            row.name,
            *(str(row.ranks.get(labels, "-")) for labels in ("min-max", "softmax")),
            f"{row.weight:+.3f}" if row.ranks else "-",
            f"{row.losses.mean():.3f} ± {row.losses.std():.3f}",
            *(f"{row.losses[i].mean():.3f}" for i in range(len(study.shards))),
            *(f"{row.losses[:, :, t].mean():.3f}" for t in _shown(rounds)),
        ]
        for row in rows
    ]
    headings = [
        "feature",
        "rank (min-max)",
        "rank (softmax)",
        "weight alone",
        "relative loss ± deviation",
        *(f"shards {n}" for n in study.shards),
        *(f"iteration {t + 1}" for t in _shown(rounds)),
    ]
    caption = (
        "Relative loss: of the pair that the feature alone chooses, 0 for the best pair and 1 for "
        "the worst; the model is fitted on half of the seeds and judged on the other half. Rank: "
        "by the size of a feature's weight in the logistic model of all features, standardized. "
        "Weight alone: above 0, larger values tell better pairs."
    )
    settings = [[key, str(value)] for key, value in study.settings.items()]
    others = "Other settings are the app's defaults."
    drawn = picture(folder / "iterations.png", "Relative loss over iterations, by feature")
    sections = [
        Section("", [block("text", about), *(block("warning", note) for note in inputs.notes)]),
        Section("What the paper says", [block("points", verdicts)]),
        Section("Features", [block("table", headings, body, caption)]),
        Section("Over iterations", [drawn]),
        Section("Settings", [block("table", ["setting", "value"], settings, others)]),
    ]
    return write_page(folder / "report.html", _TITLE, sections)


def _shown(rounds: int) -> list[int]:
    """Return some iterations, from 0: the first, the last and two between."""
    return sorted({round(each) for each in np.linspace(0, rounds - 1, 4)})


def _draw(path: Path, rows: Sequence[Row]) -> None:
    colours = {"cos 4": "#0072b2", "cos 1": "#e69f00", "cos 2": "#d55e00", "cos 3": "#cc79a7"}
    dashes = {ALL: ("#009e73", "--"), RANDOM: ("#000000", ":")}
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    for row in rows:
        colour, dash = dashes.get(row.name, (colours.get(row.name, "#bbbbbb"), "-"))
        mean = row.losses.mean(axis=(0, 1))
        named = row.name in colours or row.name in dashes
        axes.plot(
            range(1, len(mean) + 1),
            mean,
            color=colour,
            linestyle=dash,
            linewidth=2 if named else 0.8,
            label=row.name if named else None,
        )
    axes.plot([], [], color="#bbbbbb", linewidth=0.8, label="other features")
    axes.set_xlabel("iteration")
    axes.set_ylabel("relative loss")
    plain_axes(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    save(figure, path)
