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
    try:
        cell, *rounds, summary = read_lines(path)
        numbers = [row["round"] for row in rounds]
        wanted = cell["settings"]["num-rounds"]
        name = readable_name(cell["panel"], cell["line"], cell["seed"])
        _ = [(row["accuracy"], row["loss"], row["bytes_up"], row["chosen"]) for row in rounds]
        _ = summary["versions"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{_damaged(path)} ({_first_line(error)})") from None
    if numbers != list(range(1, wanted + 1)):
        raise ValueError(f"{_damaged(path)} (it has {len(rounds)} of {wanted} rounds)")
    if path.stem.rpartition("-")[0] != name:
        raise ValueError(f"{_damaged(path)} (it holds {name})")
    return cell, rounds, summary


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
