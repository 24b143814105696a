"""What a run leaves on disk: written as it goes, and read by whoever reports on it."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from pncs_flower.files import held, replacing, write_whole

from ..config import Config
from ..folders import BOARD, SETTINGS, SUMMARY, SWEEP, refuse_to_write_over
from ..scores import SCORES, score_of
from .settings import keep_settings, read_settings, refuse_other_settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHECKPOINT = "checkpoint"  # the folder that a run is resumed from
FLOWER_LOG = "flwr.log"  # what Flower says
ROUNDS = "rounds.jsonl"  # a line for each round; no score before its end
WEIGHTS = "weights.npz"  # the model's at the end

_KEYS = {"round", "elapsed", "notes"}


def output_path(config: Config) -> Path:
    """Return the absolute path of a run's folder, made; two runs in one would look like one."""
    default = f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy.replace(':', '-')}"
    path = Path(config.output_dir or default).expanduser().resolve()
    if config.resume:
        check_saved(path, config)
        with held(path):  # refused now, not only when the run has been started
            pass
        return path
    for mark, kind in {SWEEP: "the runs of a sweep", BOARD: "a board"}.items():
        if (path / mark).exists():
            raise FileExistsError(f"{path} holds {kind} already: give another --output")
    if path.exists() and not path.is_dir():
        raise ValueError(f"output-dir is {str(path)!r}, which is a file: give another --output")
    try:
        if config.output_dir:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path = _new_folder(path)
        TemporaryFile(dir=path).close()
        taken = _holds_a_run(path, config)
    except OSError as error:
        raise ValueError(
            f"output-dir is {str(path)!r}, where nothing can be written: {error.strerror}. Give "
            "another --output: a folder that you may write"
        ) from None
    if taken:
        go_on = f", or go on with that run: pncs run --resume {shlex.quote(str(path))}"
        if (path / SUMMARY).is_file():  # it was at its end before, with fewer rounds
            go_on += f" --rounds {config.num_rounds}"
        if is_done(path, config.num_rounds):
            go_on = ""
        raise FileExistsError(f"{path} holds a run already: give another --output{go_on}")
    refuse_to_write_over(path, SETTINGS)
    return path


def check_saved(path: Path, config: Config) -> None:
    """Refuse to go on with a run that was never saved, or without saving it any more."""
    saved, _ = read_settings(path)
    if not saved.get("checkpoint", True):
        raise ValueError(
            f"the run in {path} was not saved, as its setting checkpoint is false, so it cannot "
            "go on: start it anew in another folder, where checkpoint = true"
        )
    if not config.checkpoint:
        raise ValueError(
            f"checkpoint = false is given, but the run in {path} goes on from its checkpoint, and "
            "is saved again: leave checkpoint out"
        )


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
def open_run(path: Path, config: Config) -> Iterator[None]:
    """Hold a run's folder, which has these settings."""
    path.mkdir(parents=True, exist_ok=True)
    with held(path):
        keep_settings(path, config)
        yield


def finish(
    path: Path,
    rows: list[dict[str, Any]],
    weights: "Mapping[str, NDArray[Any]]",
    summary: Mapping[str, Any],
) -> None:
    """Write what came out of a run; all of its rounds too, for a full disk may have cost some."""
    import numpy as np  # which readers need not, nor Flower

    from pncs_flower.strategies.record import write_json_lines

    write_json_lines(path / ROUNDS, rows)
    with replacing(path / WEIGHTS) as file:
        np.savez(file, allow_pickle=False, **weights)
    write_whole(path / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def follow_rounds(path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that gives the rounds that were done since it was last called."""
    # Those that are there now are not among them, unless they are done again.
    seen: set[tuple[int, float]] = set()
    state: object = None

    def news() -> list[dict[str, Any]]:
        nonlocal state
        with suppress(FileNotFoundError):
            found = (path / ROUNDS).stat()
            if state == (state := (found.st_mtime_ns, found.st_size)):
                return []
        done = (row for row in read_rounds(path) if score_of(row) is not None)
        rows = {(row["round"], row["elapsed"]): row for row in done}
        new = [row for key, row in rows.items() if key not in seen]
        seen.update(rows)
        return new

    news()
    return news


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the rounds in a run's folder, without a line that is still being written."""
    try:
        content = (path / ROUNDS).read_bytes()
    except FileNotFoundError:
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        row = None
        with suppress(ValueError):
            row = json.loads(line)
        if not isinstance(row, dict) or not (row.keys() >= _KEYS and row.keys() & SCORES.keys()):
            raise ValueError(f"line {number} of {path / ROUNDS} is no round of a run: remove it")
        if rows and "clients" in row and row["clients"] == rows[-1].get("clients"):
            row["clients"] = rows[-1]["clients"]  # one list for all, as there may be thousands
        rows.append(row)
    return rows


def rounds_done(path: Path) -> int:
    """Return how many of the rounds in a run's folder are at their end."""
    return sum(score_of(row) is not None for row in read_rounds(path))


def is_done(path: Path, num_rounds: int) -> bool:
    """Tell whether the run in a folder is at its end, of so many rounds or more, or stopped early.

    Without a summary it is not, though all its rounds may be done: what came out is yet to be
    written.
    """
    try:
        summary = read_summary(path)
    except (OSError, ValueError):
        return False
    return summary.get("stopped-after-round") is not None or summary["rounds"] >= num_rounds


def read_summary(path: Path) -> dict[str, Any]:
    """Return what came out of the run in a folder."""
    file, found = path / SUMMARY, None
    with suppress(ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "rounds" not in found:
        raise ValueError(
            f"{file} is damaged: give pncs run --resume {shlex.quote(str(path))}, which writes it "
            "anew"
        )
    return found
