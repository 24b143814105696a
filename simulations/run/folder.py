"""What a run leaves on disk: written as it goes, and read by whoever reports on it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pncs_flower.files import held, replacing, write_whole
from pncs_flower.strategies import RoundRecord
from pncs_flower.strategies.record import append_json_line, write_json_lines

from ..config import Config
from .settings import keep_settings, read_settings, refuse_other_settings

__all__ = [
    "CHECKPOINT",
    "ROUNDS",
    "SUMMARY",
    "WEIGHTS",
    "RunFolder",
    "follow_rounds",
    "open_run",
    "output_path",
    "read_rounds",
    "read_summary",
]

CHECKPOINT = "checkpoint"  # the folder that a run is resumed from
ROUNDS = "rounds.jsonl"  # a line for each round; no accuracy where the run ended in it
SUMMARY = "summary.json"  # what came out; there once a run is done
WEIGHTS = "weights.npz"  # the model's at the end

_KEYS = {"round", "accuracy", "elapsed", "notes"}


def output_path(config: Config) -> Path:
    """Return the absolute path of a run's folder, made; two runs in one would look like one."""
    default = f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy.replace(':', '-')}"
    path = Path(config.output_dir or default).expanduser().resolve()
    if config.resume:
        read_settings(path)
        with held(path):  # refused now, not only when the run has been started
            pass
        return path
    try:
        if config.output_dir:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path = _new_folder(path)
        taken = _holds_a_run(path, config)
    except OSError as error:
        raise ValueError(
            f"output-dir is {str(path)!r}, where no folder can be made: {error.strerror}. Give the "
            "path of a folder that you may write"
        ) from None
    if taken:
        raise FileExistsError(
            f"{path} holds a run already: choose another output-dir, or go on with that run: "
            f"pncs run --resume {path}"
        )
    return path


def _holds_a_run(path: Path, config: Config) -> bool:
    """Tell whether a run has begun in a folder, unless it has these settings and did nothing."""
    if read_rounds(path) or any((path / CHECKPOINT).glob("*")):
        return True
    try:
        refuse_other_settings(path, config)
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


def _new_folder(path: Path) -> Path:
    """Make a folder of that name, or with a number after it if a run began in the same second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name, number = path.name, 1
    while True:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1
            path = path.with_name(f"{name}-{number}")


@contextmanager
def open_run(path: Path, config: Config, history: Sequence[RoundRecord]) -> Iterator["RunFolder"]:
    """Hold a run's folder, and its clock; an end before its time is written down as well.

    ``history`` are the records of its strategy, to which it adds.
    """
    path.mkdir(parents=True, exist_ok=True)
    with held(path):
        keep_settings(path, config)
        folder = RunFolder(path, history)
        try:
            yield folder
        except BaseException:  # also where a person stops it
            folder.end()
            raise


class RunFolder:
    """Writes a run's folder; ``rows`` has the rounds in it, also those of an earlier start."""

    def __init__(self, path: Path, history: Sequence[RoundRecord]) -> None:
        self.path = path
        self.rows = read_rounds(path)
        self._history = history
        self._start = time.perf_counter() - (self.rows[-1]["elapsed"] if self.rows else 0.0)
        # Without the line that was being written when an earlier start was stopped.
        self._write()

    @property
    def elapsed(self) -> float:
        """Seconds since training began, without those between two starts."""
        return time.perf_counter() - self._start

    def add_round(self, row: Mapping[str, Any]) -> None:
        """Append a round; those from it on, which an earlier start did not save, are dropped."""
        self.add_notes(self._history[-2:])
        kept = [earlier for earlier in self.rows if earlier["round"] < row["round"]]
        self._written &= len(kept) == len(self.rows)
        self.rows = [*kept, _finite(row)]
        if self._written:
            append_json_line(self.path / ROUNDS, self.rows[-1])
        else:
            self._write()

    def add_notes(self, records: Sequence[RoundRecord]) -> None:
        """Have the lines say what has been noted of rounds since they were written."""
        there = {row["round"]: row["notes"] for row in self.rows}
        for record in records:
            notes = there.get(record.round, record.notes)
            new = [note for note in record.notes if note not in notes]
            notes += new
            self._written &= not new
        if not self._written:
            with suppress(OSError):  # what is noted may be that there is no room
                self._write()

    def end(self) -> None:
        """Keep the record of the round that a run has ended in before its time."""
        self.add_notes(self._history[-2:])
        for record in self._history[-1:]:
            # An earlier start may have come further in this round, but what it did is not saved.
            known = {row["round"]: row for row in self.rows if row["accuracy"] is not None}
            if known.get(record.round, {}).get("seconds") != record.seconds:
                unknown = {"accuracy": None, "loss": None, "elapsed": self.elapsed}
                with suppress(OSError):  # a full disk may be the reason
                    self.add_round({**record.to_dict(), **unknown})

    def complete(self, scores: Mapping[int, Any]) -> None:
        """Have all rounds of a run that is done, with all that was noted of them, and no others.

        Lines that were lost, though the checkpoint of a later round was not, are put back.
        """
        self.add_notes(self._history)
        there = {row["round"]: row for row in self.rows if row["accuracy"] is not None}
        elapsed, rows = 0.0, []
        for record in self._history:
            row = there.get(record.round)
            if row is None:
                elapsed += sum(record.seconds.values())
                row = {**record.to_dict(), **scores.get(record.round, {}), "elapsed": elapsed}
                row["notes"] = [*row["notes"], "its line was lost, and written again at the end"]
            elapsed = max(elapsed, row["elapsed"])  # a start without those lines began from 0
            rows.append(_finite({**row, "elapsed": elapsed}))
        if rows != self.rows:
            self.rows = rows
            self._write()

    def finish(self, weights: Mapping[str, NDArray[Any]], summary: Mapping[str, Any]) -> None:
        """Write the weights and the summary."""
        with replacing(self.path / WEIGHTS) as file:
            np.savez(file, allow_pickle=False, **weights)
        text = json.dumps(_finite(summary), indent=2, allow_nan=False)
        write_whole(self.path / SUMMARY, text + "\n")

    def _write(self) -> None:
        write_json_lines(self.path / ROUNDS, self.rows)
        self._written = True


def follow_rounds(path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that gives the rounds that have come since it was last called.

    Those that are there now are not among them, unless they are done again.
    """
    seen: set[tuple[int, float]] = set()
    state: object = None

    def news() -> list[dict[str, Any]]:
        nonlocal state
        with suppress(FileNotFoundError):
            found = (path / ROUNDS).stat()
            if state == (state := (found.st_mtime_ns, found.st_size)):
                return []
        rows = {(row["round"], row["elapsed"]): row for row in read_rounds(path)}
        new = [row for key, row in rows.items() if key not in seen]
        seen.update(rows)
        return new

    news()
    return news


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the rounds in a run's folder, without a line that is still being written."""
    try:
        text = (path / ROUNDS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not row.keys() >= _KEYS:
            raise ValueError(f"line {number} of {path / ROUNDS} is no round of a run: remove it")
        rows.append(row)
    return rows


def read_summary(path: Path) -> dict[str, Any]:
    """Return what came out of the run in a folder."""
    found: dict[str, Any] = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    return found


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them, with null for a number that is not finite."""
    result: dict[str, Any] = json.loads(json.dumps(values), parse_constant=lambda _: None)
    return result
