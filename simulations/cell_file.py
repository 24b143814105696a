"""The file of a finished cell: read back whole, or not at all."""

import json
from pathlib import Path
from typing import Any

from .grid import readable_name

__all__ = ["read_cell", "read_lines"]

Row = dict[str, Any]


def read_cell(path: Path) -> tuple[Row, list[Row], Row]:
    """Return what a cell is, its rounds and its summary.

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
        _ = summary["versions"].items(), summary["notes"], summary["data"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{_damaged(path)} ({_first_line(error)})") from None
    if numbers != list(range(1, wanted + 1)):
        raise ValueError(f"{_damaged(path)} (it has {len(rounds)} of {wanted} rounds)")
    if path.stem.rpartition("-")[0] != name:
        raise ValueError(f"{_damaged(path)} (it holds {name})")
    return cell, rounds, summary


def _check_round(row: Row) -> None:
    # A loss beyond all numbers is written as null.
    loss = () if row["loss"] is None else (row["loss"],)
    for value in (row["accuracy"], *loss, *row["bytes_up"].values()):
        if not isinstance(value, int | float):
            raise ValueError(f"round {row['round']} has {value!r} for a number")
    for name in (*row["chosen"], *row["clients"]):
        if not isinstance(name, str):
            raise ValueError(f"round {row['round']} has {name!r} for a client")


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
        raise ValueError(f"{_damaged(path)} ({_first_line(error)})") from None


def _damaged(path: Path) -> str:
    return f"{path} is damaged: delete it and run again"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
