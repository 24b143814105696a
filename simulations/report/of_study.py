"""The page and the numbers that a study of client pairs leaves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from ..study.study import ALL, RANDOM, Row, Study
from ..task import load_inputs
from .figures import (
    BLACK,
    COLOURS,
    GREY,
    Picture,
    Plot,
    draw_side_by_side,
    for_page,
    plain_axes,
    save,
)
from .page import write_csv, write_page

_COLOURS = dict(zip(("cos 4", "cos 1", "cos 2", "cos 3", ALL), COLOURS, strict=False))
_COLOURS[RANDOM] = BLACK
_DASHES = {ALL: "--", RANDOM: ":"}


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
    last = int(study.settings["num-rounds"]) - 1
    shown = sorted({round(each) for each in np.linspace(0, last, 4)})
    headings = ["feature", "rank (min-max)", "rank (softmax)", "weight alone"]
    headings += ["relative loss ± deviation", *(f"shards {n}" for n in study.shards)]
    headings += [f"iteration {t + 1}" for t in shown]
    features = [
        [
            row.name,
            *(str(row.ranks.get(labels, "-")) for labels in ("min-max", "softmax")),
            f"{row.weight:+.3f}" if row.ranks else "-",
            f"{row.losses.mean():.3f} ± {row.losses.std():.3f}",
            *(f"{row.losses[i].mean():.3f}" for i in range(len(study.shards))),
            *(f"{row.losses[:, :, t].mean():.3f}" for t in shown),
        ]
        for row in rows
    ]
    return write_page(
        folder / "report.html",
        "study.html",
        study=study,
        inputs=load_inputs(next(iter(study.configs().values()))),
        claims=judge_rows(rows),
        headings=headings,
        features=features,
        curves=_draw(folder / "iterations.png", rows),
    )


def _draw(path: Path, rows: Sequence[Row]) -> list[Picture]:
    last = {row.name: float(row.losses[..., -1].mean()) for row in rows}

    def draw(axes: Axes) -> None:
        for row in rows:
            mean = row.losses.mean(axis=(0, 1))
            named = row.name in _COLOURS
            axes.plot(
                range(1, len(mean) + 1),
                mean,
                _DASHES.get(row.name, "-"),
                color=_COLOURS.get(row.name, GREY),
                linewidth=2 if named else 0.8,
                label=row.name if named else None,
            )
        axes.plot([], [], color=GREY, linewidth=0.8, label="other features")
        axes.set_xlabel("iteration")
        axes.set_ylabel("relative loss")
        plain_axes(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=9)

    ends = ", ".join(f"{name} {last[name]:.3f}" for name in sorted(last, key=last.__getitem__))
    words = f"Relative loss over iterations, by feature. In the last one: {ends}."
    plots = [Plot("", words, draw)]
    figure, _ = draw_side_by_side(plots, 1, (7.2, 3.6))
    save(figure, path)
    return for_page(plots, path.stem, (7.2, 3.6))
