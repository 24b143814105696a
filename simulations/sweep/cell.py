"""A run of a sweep, and the file that it leaves: named by what its result depends on."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pncs_flower.files import write_whole

from ..config import Config, Scalar, default_run_config, format_toml
from ..run.early_stopping import LAST, after_the_stop
from ..scores import score_name, score_of
from ..validation import in_plain_words

CELLS = "cells"
"""Folder with a file for each finished cell: what it is, its rounds, its summary."""

# Settings that say where something is or computes, and change no result.
_PLACES = {"output-dir", "data-dir", "cache-dir", "weights", "device"}
_PLACES |= {"tensorboard", "checkpoint", "resume"}
# Settings that came later, with the value that says what was so before: cells keep their names.
_LATER: Mapping[str, Scalar] = {
    "combine": "",
    "max-weight": 1e9,
    **dict.fromkeys(("input-column", "label-column", "client-column"), ""),
    **dict.fromkeys(("image-size", "test-examples", "extra"), 0),
    "devices": "none",
    "rest-rounds": -1,
    "deadline": 0.0,
}
_FORMER_QUEUE = 4
"""PNCS's own length of the queue until records had for how many rounds clients rest."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep, with every setting of the app."""

    panel: str  # what it shares with those it is compared with, as "shards 2, selected 4"
    line: str  # what a report calls it
    rule: str  # the sweep's name for it: "all" for the ceiling, and for nothing else
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
        if _rests_by_default(self.settings):  # otherwise than before
            files += "as long as leaves a choice"
        own = digest(self.clients, self.settings, files)
        return f"{readable_name(self.panel, self.line, self.seed)}-{own}"


@dataclass(frozen=True)
class Run:
    """A finished cell: what it is, its rounds and its summary, as its file has them."""

    cell: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """Test accuracy, or R², after each round, shape (rounds,)."""
        return np.array([score_of(row) for row in self.rounds], dtype=np.float64)

    @cached_property
    def bytes_up(self) -> NDArray[np.float64]:
        """Bytes that all clients have sent up to each round, shape (rounds,)."""
        return np.cumsum([float(sum(row["bytes_up"].values())) for row in self.rounds])

    @cached_property
    def bytes_down(self) -> NDArray[np.float64]:
        """Bytes that all clients have received up to each round, shape (rounds,)."""
        return np.cumsum([float(sum(row["bytes_down"].values())) for row in self.rounds])

    @cached_property
    def simulated(self) -> NDArray[np.float64] | None:
        """Simulated seconds up to each round's end, shape (rounds,); None without devices."""
        if self.rounds[0].get("clock") is None:
            return None
        return np.cumsum([sum(row["simulated_seconds"].values()) for row in self.rounds])

    @property
    def initial(self) -> float | None:
        """Score before training."""
        found: float | None = self.summary.get(f"initial-{score_name(self.rounds[0])}")
        return found

    @property
    def trained(self) -> Sequence[Mapping[str, Any]]:
        """The rounds up to that after which it was stopped early, if it was."""
        return self.rounds[: self.summary.get("stopped-after-round")]

    @property
    def converged(self) -> float:
        """Mean score of the last rounds."""
        return float(self.scores[-LAST:].mean())


def digest(clients: int, settings: Mapping[str, Scalar], files: str) -> str:
    """Hash what a result depends on."""
    kept = {
        key: value
        for key, value in settings.items()
        if key not in _PLACES and value != _LATER.get(key)
    }
    text = f"{clients}\n{format_toml(kept)}{files}"
    return blake2b(text.encode(), digest_size=6).hexdigest()


def _rests_by_default(settings: Mapping[str, Scalar]) -> bool:
    """Tell whether clients rest as long as PNCS has them rest if nobody says it."""
    unsaid = all(settings.get(key, -1) == -1 for key in ("queue-length", "rest-rounds"))
    return unsaid and settings.get("strategy") == "pncs"


def readable_name(panel: str, line: str, seed: int) -> str:
    """Return what a cell's name begins with."""
    readable = f"{panel}-{line}-{seed}".replace(", ", "-").replace(" ", "")
    return "".join(c if c.isalnum() or c in "-." else "_" for c in readable)


def write_cell(path: Path, run: Run) -> None:
    """Write a file of JSON lines, whole or not at all, with a hash of the others at its end."""
    rows = [run.cell, *run.rounds, run.summary]
    content = "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows).encode()
    write_whole(path, content + _hash(content))


def read_cell(path: Path, wanted: Cell | None = None) -> Run:
    """Read a file, with the rounds after an early stop; names one that is damaged or another's."""
    # All settings are compared with those of the cell that it should be, of which a name says
    # part.
    with in_plain_words(f"{path} is damaged: delete it and run again: "):
        if path.is_dir():
            raise ValueError("it is a folder")
        *lines, end = path.read_bytes().splitlines(keepends=True) or [b""]
        if end != _hash(b"".join(lines)):
            raise ValueError("it is not as it was written")
        cell, *rounds, summary = map(json.loads, lines)
        name = readable_name(cell["panel"], cell["line"], cell["seed"])
        if path.stem.rpartition("-")[0] != name:
            raise ValueError(f"it holds {name}")
        there = {**_LATER, **cell["settings"], "clients": cell["clients"]}
        own = {**wanted.settings, "clients": wanted.clients} if wanted else {}
        for key in own.keys() - _PLACES:
            if own[key] != there.get(key):
                raise ValueError(f"it was run with {key} = {there.get(key)!r}, not {own[key]!r}")
    if _rests_by_default(cell["settings"]) and not any("rest_rounds" in row for row in rounds):
        cell["settings"]["queue-length"] = _FORMER_QUEUE
    rounds += after_the_stop(rounds, cell["settings"]["num-rounds"])
    return Run(cell, rounds, summary)


def _hash(content: bytes) -> bytes:
    return f'{{"blake2b": "{blake2b(content, digest_size=16).hexdigest()}"}}\n'.encode()
