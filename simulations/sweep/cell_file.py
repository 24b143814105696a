"""The file of a finished cell: read back whole, or not at all."""

import json
import math
import re
from pathlib import Path
from typing import Any

from pncs_flower.plain_text import one_line

from ..run.early_stopping import after_the_stop, stopped_after
from .sweep import ALL_CLIENTS, readable_name

__all__ = ["read_cell", "read_lines"]

Row = dict[str, Any]

_OLD_CEILING = re.compile(rf"{ALL_CLIENTS}( L=-?\d+)?")


def read_cell(path: Path) -> tuple[Row, list[Row], Row]:
    """Return what a cell is, its rounds and its summary.

    A run that was stopped early has the rounds after that, too: with its model, and nothing sent.

    Raises
    ------
    ValueError
        If the file is damaged, lacks rounds, or holds another cell than its name says; names it.
    """
    lines = read_lines(path)
    try:
        cell, *rounds, summary = lines
        numbers = [row["round"] for row in rounds]
        wanted = cell["settings"]["num-rounds"]
        name = readable_name(cell["panel"], cell["line"], cell["seed"])
        for row in rounds:
            _check_round(row)
        cell.setdefault("rule", _rule_of_old(cell))
        texts = (cell["command"], cell["line"], cell["rule"], summary["data"], *summary["notes"])
        for text in (*texts, *summary["versions"].values()):
            _expect(isinstance(text, str), text)
        _expect(type(cell["seed"]) is int, cell["seed"])
        _expect(type(wanted) is int, wanted)
        early = cell["settings"].get("stop-after") and stopped_after(rounds) == len(numbers)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{_damaged(path)} ({one_line(error)})") from None
    if early:
        rounds += after_the_stop(rounds, wanted)
        numbers += range(len(numbers) + 1, wanted + 1)
    if numbers != list(range(1, wanted + 1)):
        raise ValueError(f"{_damaged(path)} (it has {len(rounds)} of {wanted} rounds)")
    if path.stem.rpartition("-")[0] != name:
        raise ValueError(f"{_damaged(path)} (it holds {name})")
    return cell, rounds, summary


def _rule_of_old(cell: Row) -> str:
    """Return the rule of a file that does not say it, as those of 0.1.0 do not."""
    everybody = cell["settings"]["num-selected"] == cell["clients"]
    return ALL_CLIENTS if everybody and _OLD_CEILING.fullmatch(cell["line"]) else cell["line"]


def _check_round(row: Row) -> None:
    accuracy, loss = row["accuracy"], row["loss"]
    _expect(type(accuracy) in (int, float) and 0 <= accuracy <= 1, accuracy)
    # A loss beyond all numbers is written as null.
    _expect(loss is None or (type(loss) in (int, float) and math.isfinite(loss)), loss)
    for count in (*row["bytes_up"].values(), *row["bytes_down"].values()):
        _expect(type(count) is int and count >= 0, count)
    chosen, clients = row["chosen"], row["clients"]
    _expect(type(chosen) is list and type(clients) is list and set(chosen) <= set(clients), chosen)
    _expect(all(isinstance(client, str) for client in clients), clients)
    if "similarity" in row:
        there, values = row["similarity"]["clients"], row["similarity"]["values"]
        _expect(set(there) <= set(clients), there)
        _expect([len(each) for each in values] == [len(there)] * len(there), values)


def _expect(good: bool, value: object) -> None:
    if not good:
        raise ValueError(f"it has {value!r}")


def read_lines(path: Path) -> list[Row]:
    """Return the JSON lines of a file.

    Raises
    ------
    ValueError
        If it cannot be read as such; names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{_damaged(path)} ({one_line(error)})") from None


def _damaged(path: Path) -> str:
    return f"{path} is damaged: delete it and run again"
