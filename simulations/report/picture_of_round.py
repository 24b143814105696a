"""The picture of a round in simulated time: who is asked when, computes, and waits for whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pncs_flower.plain_text import counted
from pncs_flower.protocol import client_order

from ..folders import SETTINGS
from ..run.folder import read_rounds
from ..toml_file import read_toml
from . import figures
from .of_run import ROUND_PICTURE
from .units import SECONDS, Unit, in_unit, unit_for

_PARTS = ("latency, download", "computes", "upload", "waits for the slowest")
_COLOURS = (figures.COLOURS[5], figures.COLOURS[0], figures.COLOURS[4], "#e4e4e4")
_LATE, _LOST = figures.COLOURS[1], figures.COLOURS[2]
_SHADES = ("#ffffff", "#f7f7f7")

_MOST_ROWS = 120
_NAMED = 0.08  # part of the width that a phase has whose name is above it
_TOLERANCE = 2e-6  # seconds; times are kept to the microsecond


@dataclass
class _Phase:
    """A phase of a round: from when to when, and when each client did what in it."""

    name: str
    start: float
    end: float
    spans: dict[str, Sequence[float]]
    lost: set[str] = field(default_factory=set)  # who broke off, or had gone
    cut: bool = False  # whether it ended at the deadline

    @property
    def late(self) -> set[str]:
        """Who had not answered when it ended."""
        return {client for client, span in self.spans.items() if span[3] > self.end + _TOLERANCE}

    @property
    def slowest(self) -> str:
        """Whose reply, or breaking off, was the last that was waited for."""
        waited = [client for client in self.spans if client not in self.late]
        return max(waited, key=lambda client: self.spans[client][3], default="")


def has_timeline(row: Mapping[str, Any]) -> bool:
    """Tell whether a round has simulated time to be drawn."""
    return row.get("clock") is not None and bool(row["timeline"])


def median_round(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of the round of median length, the shorter of two; None without time."""
    lengths = sorted(
        (sum(row["simulated_seconds"].values()), row["round"]) for row in rows if has_timeline(row)
    )
    return lengths[(len(lengths) - 1) // 2][1] if lengths else None


def draw_round(path: Path, number: int | None = None) -> Path | None:
    """Draw ``round.png``: the timeline of a round, else of that of median length.

    Returns None for a run without devices, unless a round was asked for: then it raises ValueError,
    as for a number that the run does not have.
    """
    rows, config = read_rounds(path), read_toml(path / SETTINGS)
    wanted = median_round(rows) if number is None else number
    row = next((row for row in rows if row["round"] == wanted), None)
    if row is None and number is None:
        return None
    if row is None:
        raise ValueError(f"{path} has no round {number}: it has {counted(len(rows), 'round')}")
    if not has_timeline(row):
        raise ValueError(
            f"round {number} of {path} has no simulated time: run with devices, such as "
            "--set devices=phones"
        )
    phases = _phases(row, float(config.get("deadline", 0)))
    clients, left_out = _clients(phases)
    height = max(1.2, min(0.3, 12 / len(clients)) * len(clients))
    figure = figures.new_figure(9.5, height + 1.9)
    axes = figure.subplots()
    start = min(0.0, *(phase.start for phase in phases))
    unit = unit_for(phases[-1].end - start, SECONDS)
    _draw(axes, phases, clients, unit)
    axes.set(xlabel=f"simulated time since the round began, {unit.name}", ylabel="client")
    words = [_about(phase, unit) for phase in phases]
    total = sum(row["simulated_seconds"].values())
    title = (
        f"Round {row['round']}, {config['strategy']} on {config['dataset']}: "
        f"{in_unit(total, unit)} {unit.name} of simulated time"
    )
    axes.set_title("\n".join([title, *words]), fontsize=9, loc="left", pad=18)
    if left_out:
        figure.supxlabel(
            f"{counted(left_out, 'other client')}, quicker than these, not shown", fontsize=8
        )
    figures.legend_below(figure, *_legend(phases))
    return figures.save(figure, path / ROUND_PICTURE)


def _phases(row: Mapping[str, Any], deadline: float) -> list[_Phase]:
    """Return the phases of a round in their order, in seconds since it began."""
    begin: float = row["clock"]
    now, phases = 0.0, []
    for name, seconds in row["simulated_seconds"].items():
        now += seconds
        spans: dict[str, Sequence[float]] = {
            client: [second - begin for second in own[name]]
            for client, own in row["timeline"].items()
            if name in own
        }
        if not spans:
            continue
        start = min(span[0] for span in spans.values())
        phase = _Phase(name, start, now, spans)
        phase.cut = bool(deadline) and now - start >= deadline - _TOLERANCE
        begun = f"{name}: "
        broken = {c for c, why in row["rejected"].items() if why.startswith(begun)}
        phase.lost = (broken & spans.keys()) - phase.late
        phases.append(phase)
    return phases


def _clients(phases: Sequence[_Phase]) -> tuple[list[str], int]:
    """Return who is drawn, from above, and how many are not: the chosen first, the slowest last."""
    chosen = next((phase.spans for phase in phases if phase.name == "training"), {})
    longest = {
        client: max(p.spans[client][3] - p.start for p in phases if client in p.spans)
        for phase in phases
        for client in phase.spans
    }
    trained = sorted(chosen, key=lambda client: (chosen[client][3], client_order(client)))
    others = sorted(longest.keys() - chosen.keys(), key=lambda c: (longest[c], client_order(c)))
    shown = trained[-_MOST_ROWS:]
    room = _MOST_ROWS - len(shown)
    shown += others[-room:] if room else []
    return shown, len(longest) - len(shown)


def _draw(axes: Axes, phases: Sequence[_Phase], clients: Sequence[str], unit: Unit) -> None:
    place = {client: index for index, client in enumerate(clients)}
    bars: dict[int, list[Any]] = {part: [] for part in range(len(_PARTS))}
    marks: dict[str, list[tuple[float, float]]] = {_LATE: [], _LOST: []}
    for index, phase in enumerate(phases):
        axes.axvspan(
            phase.start / unit.size, phase.end / unit.size, color=_SHADES[index % 2], linewidth=0
        )
        axes.axvline(phase.end / unit.size, color="#999999", linewidth=0.8)
        if phase.end - phase.start > _NAMED * (phases[-1].end - phases[0].start):
            axes.annotate(
                phase.name,
                ((phase.start + phase.end) / 2 / unit.size, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        if phase.cut:
            axes.axvline(phase.end / unit.size, color=_LATE, linewidth=1.6, linestyle="--")
        late = phase.late
        for client, span in phase.spans.items():
            if client not in place:
                continue
            row = place[client]
            times = [min(second, phase.end) for second in span]
            times.append(times[3] if client in phase.lost else phase.end)
            for part, (left, right) in enumerate(pairwise(times)):
                if right > left:
                    bars[part].append(_bar(left / unit.size, right / unit.size, row))
            if client in late:
                marks[_LATE].append((phase.end / unit.size, row))
            elif client in phase.lost:
                marks[_LOST].append((span[3] / unit.size, row))
    for part, polygons in bars.items():
        axes.add_collection(PolyCollection(polygons, facecolors=_COLOURS[part], linewidths=0))
    size = max(9.0, min(45.0, 2500 / len(clients)))
    for colour, marker in ((_LATE, ">"), (_LOST, "X")):
        if marks[colour]:
            x, y = zip(*marks[colour], strict=True)
            axes.scatter(x, y, size, color=colour, marker=marker, zorder=3, clip_on=False)
    chosen = sum(client in p.spans for p in phases if p.name == "training" for client in clients)
    if 0 < chosen < len(clients):
        axes.axhline(chosen - 0.5, color="#555555", linewidth=0.8)
        for words, middle in (
            ("chosen", (chosen - 1) / 2),
            ("only asked", (chosen + len(clients) - 1) / 2),
        ):
            axes.annotate(
                words,
                (1.0, middle),
                xycoords=("axes fraction", "data"),
                xytext=(9, 0),
                textcoords="offset points",
                rotation=-90,
                va="center",
                fontsize=8,
            )
    if phases[0].start < 0:
        axes.axvline(0, color=figures.BLACK, linewidth=1)
    left = min(0.0, phases[0].start) / unit.size
    axes.set(ylim=(len(clients) - 0.5, -0.5), xlim=(left, phases[-1].end / unit.size))
    axes.set_yticks(range(len(clients)), clients, fontsize=max(4.5, min(9, 480 / len(clients))))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bar(left: float, right: float, row: int) -> list[tuple[float, float]]:
    return [(left, row - 0.36), (right, row - 0.36), (right, row + 0.36), (left, row + 0.36)]


def _about(phase: _Phase, unit: Unit) -> str:
    """Return a line on a phase: how long it took, and for whom was waited."""
    took = f"{phase.name}: {in_unit(phase.end - max(0.0, phase.start), unit)} {unit.name}"
    if phase.start < -_TOLERANCE:
        took += ", after the evaluation of the round before, with which it came"
    took += f", {counted(len(phase.spans), 'client')}"
    if phase.cut:
        took += ", until the deadline"
    elif phase.slowest and len(phase.spans) > 1:
        took += f", all wait for client {phase.slowest}"
    for what, those in (("late", phase.late), ("broke off or went", phase.lost)):
        if those:
            took += f"; {len(those)} {what}"
    return took


def _legend(phases: Sequence[_Phase]) -> tuple[list[Artist], list[str]]:
    drawn: list[Artist] = [Patch(facecolor=colour) for colour in _COLOURS]
    names = list(_PARTS)
    looks: dict[str, Any] = {"linestyle": "none", "markersize": 6}
    if any(phase.late for phase in phases):
        drawn.append(Line2D([], [], color=_LATE, marker=">", **looks))
        names.append("too late: does not count")
    if any(phase.lost for phase in phases):
        drawn.append(Line2D([], [], color=_LOST, marker="X", **looks))
        names.append("broke off, or went")
    if any(phase.cut for phase in phases):
        drawn.append(Line2D([], [], color=_LATE, linestyle="--"))
        names.append("deadline")
    return drawn, names
