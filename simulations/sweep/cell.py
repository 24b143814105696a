"""A run of a sweep, and the file that it leaves: named by what its result depends on."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    with_config,
)
from typing_extensions import TypedDict

from ..config import Config, Scalar, default_run_config, format_toml
from ..run.early_stopping import after_the_stop, stopped_after
from ..validation import in_plain_words
from .statistics import Run

__all__ = ["CELLS", "Cell", "check_file", "digest", "read_cell", "readable_name"]

CELLS = "cells"
"""Folder with a file of JSON lines for each finished cell: what it is, its rounds, its summary."""

# Settings that say where something is or computes, and change no result.
_PLACES = {"output-dir", "data-dir", "cache-dir", "weights", "device"}
_PLACES |= {"tensorboard", "checkpoint", "resume"}


@dataclass(frozen=True)
class Cell:
    """One run of a sweep, with every setting of the app.

    ``panel`` is what it shares with those it is compared with, such as ``"shards 2, selected 4"``,
    ``line`` what a report calls it, and ``rule`` the sweep's name for the rule: ``"all"`` for the
    ceiling, and for nothing else.
    """

    panel: str
    line: str
    rule: str
    seed: int
    clients: int
    settings: Mapping[str, Scalar]

    @property
    def config(self) -> Config:
        """The settings, checked."""
        return Config.from_run_config(self.settings)

    @property
    def command(self) -> str:
        """The command that runs this cell alone."""
        defaults = default_run_config()
        changed = [
            f"--set {shlex.quote(f'{key}={value}')}"
            for key, value in self.settings.items()
            if value != defaults[key] and key != "output-dir"
        ]
        return " ".join([f"pncs run --engine in-process --clients {self.clients}", *changed])

    def name(self, files: str) -> str:
        """Return a name for its file; ``files`` is the fingerprint of the data and the weights."""
        own = digest(self.clients, self.settings, files)
        return f"{readable_name(self.panel, self.line, self.seed)}-{own}"


def digest(clients: int, settings: Mapping[str, Scalar], files: str) -> str:
    """Hash what a result depends on."""
    kept = {key: value for key, value in settings.items() if key not in _PLACES}
    text = f"{clients}\n{format_toml(kept)}{files}"
    return blake2b(text.encode(), digest_size=6).hexdigest()


def readable_name(panel: str, line: str, seed: int) -> str:
    """Return what a cell's name begins with."""
    readable = f"{panel}-{line}-{seed}".replace(", ", "-").replace(" ", "")
    return "".join(c if c.isalnum() or c in "-." else "_" for c in readable)


_MORE = ConfigDict(extra="allow")
_Bytes = dict[str, Annotated[int, Field(strict=True, ge=0)]]


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
    bytes_up: _Bytes
    bytes_down: _Bytes
    clients: list[StrictStr]
    chosen: list[StrictStr]
    notes: list[StrictStr]
    similarity: NotRequired[_Similarity]


def _of_its_clients(row: _Round) -> _Round:
    similarity = row.get("similarity") or _Similarity(clients=[], values=[])
    there = similarity["clients"]
    if not {*row["chosen"], *there} <= set(row["clients"]):
        raise ValueError(f"round {row['round']} names a client that was not there")
    if [len(each) for each in similarity["values"]] != [len(there)] * len(there):
        raise ValueError(f"the similarities of round {row['round']} are not those of its clients")
    return row


@with_config(_MORE)
class _Summary(TypedDict):
    data: StrictStr
    notes: list[StrictStr]
    versions: dict[str, StrictStr]


class _File(TypedDict):
    cell: _Head
    rounds: list[Annotated[_Round, AfterValidator(_of_its_clients)]]
    summary: _Summary


_FILE: TypeAdapter[Any] = TypeAdapter(_File)


def read_cell(path: Path) -> Run:
    """Read a file, with the rounds after an early stop; names one that is damaged or another's."""
    with in_plain_words(f"{path} is damaged: delete it and run again: "):
        if path.is_dir():
            raise ValueError("it is a folder")
        lines = path.read_bytes().splitlines()
        if len(lines) < 2:
            raise ValueError("it lacks lines")
        parts = lines[0], b", ".join(lines[1:-1]), lines[-1]
        run = Run(**_FILE.validate_json(b'{"cell": %b, "rounds": [%b], "summary": %b}' % parts))
        rows, settings = [*run.rounds], run.cell["settings"]
        for number, row in enumerate(rows, 1):
            if row["round"] != number:
                raise ValueError(f"round {row['round']} stands in the place of round {number}")
        wanted = settings.get("num-rounds")
        if type(wanted) is not int:
            raise ValueError(f"it has num-rounds = {wanted!r}")
        if settings.get("stop-after") and stopped_after(rows) == len(rows) < wanted:
            rows += after_the_stop(rows, wanted)
        if len(rows) != wanted:
            raise ValueError(f"it has {len(rows)} of {wanted} rounds")
        name = readable_name(run.cell["panel"], run.cell["line"], run.cell["seed"])
        if path.stem.rpartition("-")[0] != name:
            raise ValueError(f"it holds {name}")
    return Run(run.cell, rows, run.summary)


def check_file(path: Path, cell: Cell) -> None:
    """Refuse a file that is not of this cell: a name says only part of what a cell is."""
    about = read_cell(path).cell
    found = {**about["settings"], "clients": about["clients"]}
    for key, value in {**cell.settings, "clients": cell.clients}.items():
        if key not in _PLACES and found.get(key) != value:
            raise ValueError(
                f"{path} is damaged: it was run with {key} = {found.get(key)!r}, not {value!r}: "
                "delete it and run again"
            )
