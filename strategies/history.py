"""What happened in each round, for a person and for a file."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common import log

__all__ = ["RecordFile", "RoundRecord", "append_json_line", "write_json_lines"]


@dataclass
class RoundRecord:
    """One round: who was asked, who answered, who was chosen, and what it cost.

    Clients are named by their keys. Phases are ``"introduction"`` (clients seen for the first
    time), ``"pre-round"``, ``"pre-round unused"`` (asked ahead in vain) and ``"training"``.

    Attributes
    ----------
    round : int
        Counts from 1.
    rule : str
        The selection rule with its parameters.
    clients : list of str
        Clients on the roster: online, introduced and eligible.
    cooling : list of str
        Clients that the Age-of-Update queue holds back in this round.
    released : list of str
        Clients that had to leave the queue early, because too few others were left.
    asked, answered : list of str
        Clients that were asked for a summary, and those that sent one that could be used.
    rejected : dict of str to str
        Clients whose introduction, summary or update was not used, with the reason.
    chosen, delivered : list of str
        Clients that were asked for their full update, and those whose update was aggregated.
    chosen_by_layer : dict of str to list of str
        Where the rule chooses for each layer: whose values of it count; else empty.
    pre_round : str or None
        ``"ahead"`` if the summaries came with the evaluation of the round before; ``"own"`` if they
        came in an exchange of their own, with the reason if some were asked for ahead in vain; None
        if nobody was asked.
    mean_similarity : float or None
        Mean similarity over the pairs of chosen clients, where the rule computes it.
    optimal : bool or None
        Whether the chosen subset is proved to be the best, where that means something.
    bytes_down, bytes_up : dict of str to int
        Bytes of record contents to and from the clients in each phase, without framing.
    seconds : dict of str to float
        Wall time of each phase, and of ``"waiting"`` (for clients to connect), ``"selection"`` and
        ``"aggregation"``.
    notes : list of str
        Everything out of the ordinary.
    """

    round: int
    rule: str = ""
    clients: list[str] = field(default_factory=list)
    cooling: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    chosen: list[str] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    chosen_by_layer: dict[str, list[str]] = field(default_factory=dict)
    pre_round: str | None = None
    mean_similarity: float | None = None
    optimal: bool | None = None
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


class RecordFile:
    """The file of a run's records, as lines of JSON.

    Parameters
    ----------
    path : str, Path or None
        The file; None writes nothing.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path).expanduser()

    def append(self, record: RoundRecord) -> None:
        """Append a round. A full disk costs its line, which the record says, but not the run."""
        if self._path is None:
            return
        try:
            append_json_line(self._path, record.to_dict())
        except OSError as error:
            record.notes.append(f"the record was not written to history_path: {error}")
            log(WARNING, "The record of round %d was not written: %s", record.round, error)

    def replace(self, records: Iterable[RoundRecord]) -> None:
        """Have the file hold these records and no others."""
        if self._path is not None:
            write_json_lines(self._path, [record.to_dict() for record in records])


def append_json_line(path: Path, values: dict[str, Any]) -> None:
    """Append one line of JSON to a file, so that a reader sees whole lines only."""
    line = json.dumps(values, allow_nan=False) + "\n"
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError:
        with suppress(OSError):
            os.truncate(path, size)  # part of a line may be there
        raise


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a file by lines of JSON, all of them or none."""
    partial = path.with_name(path.name + ".partial")
    lines = (json.dumps(row, allow_nan=False) + "\n" for row in rows)
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(path)
