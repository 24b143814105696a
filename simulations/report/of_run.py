"""For a person: a line per round and a table, made from what a run left on disk."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from rich.table import Table

from pncs_flower.plain_text import counted, first_of

from ..run.early_stopping import stopped_after
from ..run.folder import read_rounds, read_summary
from ..scores import SCORES, score_name, score_of

PICTURE, ROUND_PICTURE = "rounds.png", "round.png"
"""Names of the pictures in a run's folder: of all rounds, and of one in simulated time."""

_MAX_ROWS = 12
_SHOWN = 4  # clients in a row of the table
_WAITING = "waiting"  # of the phases, the one before a round

_MEANINGS = {
    "cooling down": "clients that rest for some rounds after their turn, and are not chosen",
    "left over": "the part of the mean of all clients that the round did not apply",
    "similarity": "how alike the updates of the chosen are, from pair to pair, on average",
    "simulated": "seconds that the round would have taken on the clients' devices",
}
"""Of what a column is, where its heading alone does not tell."""


def round_line(row: Mapping[str, Any], num_rounds: int) -> str:
    """Return one line about a round, and one more for everything out of the ordinary."""
    parts = [
        f"round {row['round']:>{len(str(num_rounds))}}/{num_rounds}",
        f"{SCORES[score_name(row)]} {_number(score_of(row), '.3f')}",
        f"loss {_number(row['loss'], '.3f')}",
        f"chosen {', '.join(row['chosen']) or 'nobody'}",
    ]
    if row["mean_similarity"] is not None:
        parts.append(f"similarity {row['mean_similarity']:+.3f}")
    if (left := _left_over(row)) is not None:
        parts.append(f"left over {left:.0%}")
    parts.append(f"{_seconds(row):.2f} s")
    if (waited := row["seconds"].get(_WAITING, 0.0)) >= 1:  # as while Ray starts
        parts.append(f"after {waited:.1f} s of waiting for clients to connect")
    if (simulated := _simulated(row)) is not None:
        parts.append(f"simulated {simulated:.1f} s")
    lines = ["  ".join(parts)]
    lines += [f"  not used: client {key}: {why}" for key, why in row["rejected"].items()]
    lines += [f"  note: {note}" for note in row["notes"]]
    return "\n".join(lines)


def final_table(path: Path) -> Table:
    """Return the table of a finished run's folder: its result and its last rounds."""
    rows, summary = read_rounds(path), read_summary(path)
    early = ", stopped early" if stopped_after(rows) else ""
    name = score_name(rows[-1])
    simulated = summary.get("simulated-seconds")
    on_devices = "" if simulated is None else f", {simulated:.1f} s of simulated time"
    table = Table(
        title=f"{SCORES[name].capitalize()} {_number(summary[f'initial-{name}'], '.3f')} before "
        f"training, {_number(summary[f'final-{name}'], '.3f')} after "
        f"{counted(summary['rounds'], 'round')}{early} "
        f"(best {_number(summary[f'best-{name}'], '.3f')})",
        caption="\n".join(
            [
                f"{summary['seconds']:.1f} s{on_devices}; clients sent "
                f"{decimal(summary['bytes-up'])} and received {decimal(summary['bytes-down'])}",
                *served_lines(summary),
            ]
        ),
    )
    fitted = any(_left_over(row) is not None for row in rows)
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "round": lambda row: str(row["round"]),
        SCORES[name]: lambda row: _number(score_of(row), ".3f"),
        "loss": lambda row: _number(row["loss"], ".3f"),
        "chosen": lambda row: first_of(row["chosen"], _SHOWN),
        "cooling down": lambda row: first_of(row["cooling"], _SHOWN),
        "left over": lambda row: _number(_left_over(row), ".0%"),
        "similarity": lambda row: _number(row["mean_similarity"], "+.3f"),
        "seconds": lambda row: f"{_seconds(row):.2f}",
        "simulated": lambda row: _number(_simulated(row), ".1f"),
    }
    # A terminal is narrow: what a run does not have takes no room.
    absent = {"similarity" if fitted else "left over"}
    if not any(row["cooling"] for row in rows):
        absent.add("cooling down")
    if all(row["mean_similarity"] is None for row in rows):
        absent.add("similarity")
    if not on_devices:
        absent.add("simulated")
    shown = {heading: cell for heading, cell in columns.items() if heading not in absent}
    for heading in shown:
        names = heading in ("chosen", "cooling down")
        table.add_column(heading, justify="left" if names else "right")
    for row in rows[-_MAX_ROWS:]:
        table.add_row(*(cell(row) for cell in shown.values()))
    meanings = [f"{key}: {words}" for key, words in _MEANINGS.items() if key in shown]
    table.caption = "\n".join([*meanings, str(table.caption)])
    return table


def served_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return lines on whom a run has served; none of one of a release that did not note it."""
    if "gini" not in summary:
        return []
    never, lost = summary["never-chosen"], summary["never-delivered"]
    turns = [f"{never} of {counted(summary['num-clients'], 'client')} never chosen"]
    if lost > never:
        turns.append(f"{lost} never in the model")
    turns.append(f"longest wait {counted(summary['longest-wait'], 'round')}")
    lines = [
        "; ".join(turns),
        f"Jain's fairness index of how often each client delivered (1: all alike): "
        f"{summary['jain']:.2f}",
        f"Gini's coefficient of the same (0: all alike): {summary['gini']:.2f}",
    ]
    known = {c: a for c, a in enumerate(summary["accuracy-by-class"]) if a is not None}
    if summary["worst-tenth-accuracy"] is not None and known:
        best, worst = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
        lines.append(
            f"Accuracy by clients' labels: mean {summary['mean-client-accuracy']:.3f}, "
            f"deviation {summary['client-accuracy-variance'] ** 0.5:.3f}, "
            f"worst tenth {summary['worst-tenth-accuracy']:.3f}"
        )
        lines.append(
            f"By class: {known[worst]:.3f} (class {worst}) to {known[best]:.3f} (class {best})"
        )
    return lines


def _left_over(row: Mapping[str, Any]) -> float | None:
    """Return the part of the mean of all that a round has not applied, where it is fitted."""
    left: float | None = row.get("combined", {}).get("residual")
    return left


def _seconds(row: Mapping[str, Any]) -> float:
    """Return the seconds of a round, once its clients were there."""
    return float(sum(each for phase, each in row["seconds"].items() if phase != _WAITING))


def _simulated(row: Mapping[str, Any]) -> float | None:
    """Return what a round would have taken on the clients' devices, where these are simulated."""
    if row.get("clock") is None:
        return None
    return math.fsum(row["simulated_seconds"].values())


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
