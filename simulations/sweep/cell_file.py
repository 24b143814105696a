"""The file of a finished cell: named by what its result depends on, read whole or not at all."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, StrictInt, StrictStr, TypeAdapter, with_config
from typing_extensions import TypedDict

from ..run.early_stopping import after_the_stop, stopped_after
from ..task import inputs_fingerprint
from ..validation import in_plain_words
from .statistics import Run
from .sweep import PLACES, Cell, readable_name

__all__ = ["CELLS", "cell_files", "check_file", "read_cell"]

CELLS = "cells"
"""Folder with a file of JSON lines for each finished cell: what it is, its rounds, its summary."""

Bytes = dict[str, Annotated[int, Field(strict=True, ge=0)]]
_MORE = ConfigDict(extra="allow")


@with_config(_MORE)
class _Head(TypedDict):
    panel: StrictStr
    line: StrictStr
    rule: StrictStr
    seed: StrictInt
    clients: StrictInt
    settings: dict[str, Any]
    command: StrictStr


class _Similarity(TypedDict):
    clients: list[str]
    values: list[list[Any]]


@with_config(_MORE)
class _Round(TypedDict):
    round: StrictInt
    accuracy: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
    loss: Annotated[FiniteFloat, Field(strict=True)] | None  # null: beyond all numbers
    bytes_up: Bytes
    bytes_down: Bytes
    clients: list[StrictStr]
    chosen: list[StrictStr]
    notes: list[StrictStr]
    similarity: NotRequired[_Similarity]


@with_config(_MORE)
class _Summary(TypedDict):
    data: StrictStr
    notes: list[StrictStr]
    versions: dict[str, StrictStr]


_HEAD, _ROUND, _SUMMARY = (TypeAdapter[Any](kind) for kind in (_Head, _Round, _Summary))


def cell_files(cells: Iterable[Cell], folder: Path) -> dict[Path, Cell]:
    """Return the file of each cell in a folder, there or not yet."""
    return {folder / f"{c.name(inputs_fingerprint(c.config))}.jsonl": c for c in cells}


def read_cell(path: Path) -> Run:
    """Read a file, with the rounds after an early stop; names one that is damaged or another's."""
    damaged = f"{path} is damaged: delete it and run again: "
    with in_plain_words(damaged):
        try:
            head, *rounds, summary = path.read_bytes().splitlines()
        except IsADirectoryError:
            raise ValueError("it is a folder") from None
        except ValueError:
            raise ValueError("it lacks lines") from None
        cell = _read(_HEAD, head, "its first line")
        rows = [_read(_ROUND, line, f"round {n}") for n, line in enumerate(rounds, 1)]
        run = Run(cell, rows, _read(_SUMMARY, summary, "its last line"))
        _check_rounds(rows)
        wanted = cell["settings"].get("num-rounds")
        if type(wanted) is not int:
            raise ValueError(f"it has num-rounds = {wanted!r}")
        if cell["settings"].get("stop-after") and stopped_after(rows) == len(rows) < wanted:
            rows += after_the_stop(rows, wanted)
        if len(rows) != wanted:
            raise ValueError(f"it has {len(rows)} of {wanted} rounds")
        name = readable_name(cell["panel"], cell["line"], cell["seed"])
        if path.stem.rpartition("-")[0] != name:
            raise ValueError(f"it holds {name}")
    return run


def _read(kind: TypeAdapter[Any], line: bytes, where: str) -> Any:
    with in_plain_words(f"{where}: "):
        return kind.validate_json(line)


def _check_rounds(rows: list[dict[str, Any]]) -> None:
    for number, row in enumerate(rows, 1):
        if row["round"] != number:
            raise ValueError(f"round {row['round']} stands in the place of round {number}")
        similarity = row.get("similarity", {"clients": [], "values": []})
        there, values = similarity["clients"], similarity["values"]
        if not {*row["chosen"], *there} <= set(row["clients"]):
            raise ValueError(f"round {number} names a client that was not there")
        if [len(each) for each in values] != [len(there)] * len(there):
            raise ValueError(f"the similarities of round {number} are not those of its clients")


def check_file(path: Path, cell: Cell) -> None:
    """Refuse a file that is not of this cell: a name says only part of what a cell is."""
    about = read_cell(path).cell
    found = {"stop-after": 0, **about["settings"], "clients": about["clients"]}
    for key, value in {**cell.settings, "clients": cell.clients}.items():
        if key not in PLACES and found.get(key) != value:
            raise ValueError(
                f"{path} is damaged: it was run with {key} = {found.get(key)!r}, not {value!r}: "
                "delete it and run again"
            )
