"""What a run leaves on disk: written as it goes, and read by whoever reports on it."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pncs_flower.strategies.history import append_json_line

from .config import Config, Scalar

__all__ = ["ROUNDS", "RunFolder", "format_toml", "output_path", "read_rounds"]

ROUNDS = "rounds.jsonl"
"""Name of the file with one line of JSON for each round."""


def output_path(config: Config) -> Path:
    """Return the absolute path of a run's folder, made, which must not hold a run already.

    Raises
    ------
    FileExistsError
        If there are rounds or settings in it: two runs in one file would look like one.
    ValueError
        If the folder cannot be made.
    """
    default = f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy.replace(':', '-')}"
    path = Path(config.output_dir or default).expanduser().resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        taken = (path / "config.toml").exists() or bool(read_rounds(path))
    except OSError as error:
        raise ValueError(
            f"output-dir is {str(path)!r}, where no folder can be made: {error.strerror}. Give the "
            "path of a folder that you may write"
        ) from None
    if taken:
        raise FileExistsError(f"{path} holds a run already: choose another output-dir, or move it")
    return path


class RunFolder:
    """Writes a run's folder.

    Parameters
    ----------
    path : Path
        The folder; made if it does not exist.
    config : Config
        The settings, for ``config.toml``.
    """

    def __init__(self, path: Path, config: Config) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        (path / "config.toml").write_text(format_toml(config.to_run_config()), encoding="utf-8")
        (path / ROUNDS).touch()

    def add_round(self, row: Mapping[str, Any]) -> None:
        """Append a round to ``rounds.jsonl``; a number that is not finite becomes null."""
        append_json_line(self.path / ROUNDS, _finite(dict(row)))

    def finish(self, weights: Mapping[str, NDArray[Any]], summary: Mapping[str, Any]) -> None:
        """Write ``weights.npz`` and ``summary.json``."""
        with (self.path / "weights.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **weights)
        text = json.dumps(_finite(dict(summary)), indent=2, allow_nan=False)
        (self.path / "summary.json").write_text(text + "\n", encoding="utf-8")


def read_rounds(path: Path, skip: int = 0) -> list[dict[str, Any]]:
    """Return the rounds in a run's folder, without the first ``skip``.

    A line that is still being written is left for the next time.
    """
    try:
        text = (path / ROUNDS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1].splitlines()
    return [json.loads(line) for line in whole[skip:]]


def format_toml(values: Mapping[str, Scalar]) -> str:
    """Return settings as TOML."""
    # For these types JSON is TOML, if only what lies beyond ASCII is left as it is.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "\n".join(lines) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
