"""What happened in each round, for a person and for a file; and who listens to rounds."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from glob import escape
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, TypeVar, cast

from flwr.app import ArrayRecord, MetricRecord
from flwr.common import log

from pncs_flower.files import PARTIAL, naming, write_whole
from pncs_flower.plain_text import first_of

from .rule import Choice

ENDED = "the run ended here: "
"""What the note begins with that names, by kind and text, the error that ended a run."""

_SHOWN = 20  # clients in the line of a log


@dataclass
class RoundRecord:
    """One round: who was asked, who answered, who was chosen, and what it cost.

    Clients are named by their keys. Phases are ``"introduction"`` (clients seen for the first
    time), ``"pre-round"``, ``"pre-round unused"`` (asked ahead in vain), ``"training"`` and, with
    simulated devices, ``"late"`` (bytes of replies that came too late to count).

    Attributes
    ----------
    round : int
        Counts from 1.
    rule : str
        The selection rule with its parameters.
    clients : list of str
        Clients on the roster: online, introduced and eligible; with simulated devices, those of
        them that are there. While they stay the same, it is one list for all rounds.
    cooling, released, backing_off : list of str
        Clients that the Age-of-Update queue holds back, those that had to leave it early because
        too few others were left, and those neither asked nor chosen because of earlier failures.
    rest_rounds : int
        For how many rounds the queue holds back a client that was selected.
    asked, answered : list of str
        Clients that were asked for a summary, and those whose summary could be used.
    rejected : dict of str to str
        Clients whose introduction, summary or update was not used, with the reason.
    chosen, delivered : list of str
        Clients that were asked for their full update, and those whose update was aggregated.
    chosen_by_layer : dict of str to list of str
        Where the rule chooses for each layer: whose values of it count; else empty.
    pre_round : str or None
        ``"ahead"`` if the summaries came with the evaluation of the round before; ``"own"`` if they
        came in an exchange of their own, with the reason (``"own: ..."``) if some were asked for
        ahead in vain, also before a restart; None if nobody was asked.
    mean_similarity : float or None
        Mean similarity over the pairs of chosen clients, where the rule computes it.
    optimal : bool or None
        Whether the chosen subset is proved to be the best, where that means something.
    bytes_down, bytes_up : dict of str to int
        Bytes of record contents to and from the clients in each phase, without framing.
    seconds : dict of str to float
        Of each phase, and of ``"waiting"`` (for clients to connect), ``"selection"``,
        ``"aggregation"`` and, as a part of that, ``"combination"``.
    clock : float or None
        With simulated devices (``devices``): the simulated seconds since the run began, when the
        round began; else None, and the next two are empty.
    simulated_seconds : dict of str to float
        What each phase would have taken on the clients' devices: ``"waiting"`` (until enough
        clients were there), ``"pre-round"``, ``"pre-round unused"``, ``"training"`` and
        ``"evaluation"``. Of summaries that were asked for ahead, what they took longer than the
        evaluation that they came with.
    timeline : dict of str to dict of str to list of float
        For each client and phase in which it was asked for something, simulated seconds since the
        run began: when it was asked, had the message, had computed, and when its reply was there.
        Those of one that broke off end there.
    combined : dict
        What the combination made of the updates: how many were ``"stored"`` and their
        ``"stored-bytes"``; of the sketched mean also the ``"coefficients"`` of updates, by client
        and round, and the ``"residual"``, relative to the target. Empty for the mean.
    notes : list of str
        Everything out of the ordinary.
    extra : dict of str to JSON value
        What your ``evaluate_fn`` or a listener of yours adds, such as an accuracy. It is saved with
        the record, and in `to_dict` and the file each has a key of its own.
    """

    round: int
    rule: str = ""
    clients: list[str] = field(default_factory=list)
    cooling: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    backing_off: list[str] = field(default_factory=list)
    rest_rounds: int = 0
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
    clock: float | None = None
    simulated_seconds: dict[str, float] = field(default_factory=dict)
    timeline: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    combined: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the round in one line, for a log."""
        parts = [f"Round {self.round}: chosen {first_of(self.chosen, _SHOWN) or 'nobody'}"]
        if self.asked:
            parts.append(f"{len(self.answered)} of {len(self.asked)} asked answered")
        parts.append(f"{len(self.delivered)} of {len(self.chosen)} chosen delivered")
        if "residual" in self.combined:
            parts.append(f"{self.combined['residual']:.1%} of the target left over")
        if self.rejected:
            who, why = next(iter((self.reasons("training") or self.rejected).items()))
            parts.append(f"{len(self.rejected)} rejected (client {who}, {why})")
        return "; ".join(parts)

    def reasons(self, phase: str) -> dict[str, str]:
        """Return why clients were not used in a phase, by client."""
        return {who: why for who, why in self.rejected.items() if why.startswith(f"{phase}: ")}

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, its own and what is extra beside them, not copied."""
        values = dict(vars(self))
        extra: dict[str, Any] = values.pop("extra")
        return values | extra


class RoundListener:
    """Is told of each round: for what goes on beside selection, such as a file or a checkpoint."""

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Hear of a round that begins, and with which model; all before it is over."""

    def chosen(self, record: RoundRecord, choice: Choice) -> None:
        """Hear of a choice, before anybody trains; it is not kept, for it may be large."""

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Hear of a round whose training is over, and of the aggregated metrics."""

    def evaluated(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Hear of the aggregated metrics of a round's evaluation on the clients."""

    def failed(self, error: BaseException) -> None:
        """Hear of an error that ends the run; of the same one perhaps more than once."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


def heard(method: _Method) -> _Method:
    """Have an object's listeners hear of an error that passes through a method of it."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            for listener in self.listeners:
                listener.failed(error)
            raise

    return cast(_Method, call)


class Records(RoundListener):
    """The records of a run, in memory and, as they come, as lines of a file if there is a path."""

    # A round's line is written when its training is over, again if something is added to it later
    # (a note on its evaluation or on its checkpoint), and in any case if an error ends the run.

    def __init__(self, path: str | Path | None) -> None:
        self.all: list[RoundRecord] = []  # the last may be of a round that still goes on
        self._path = None if path is None else Path(path).expanduser()
        self._ready = path is None
        self._written: tuple[RoundRecord, bytes] | None = None

    def prepare(self) -> None:
        """Make sure that the file can be written, before the first round, or raise ValueError."""
        if self._ready or self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    if file.read() != b"\n":  # a line that a killed run has left unfinished
                        file.write(b"\n")
        except OSError as error:
            raise ValueError(
                f"history_path is {str(self._path)!r}, which cannot be written: {error.strerror}. "
                "Give the path of a file"
            ) from None
        self._ready = True

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Begin with the record of a round, which ends the one before."""
        self.prepare()
        self.write()
        self.all.append(record)

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Write the round's line, and log it."""
        in_vain = bool(record.chosen) and not record.delivered
        log(WARNING if in_vain else INFO, "\t└──> %s", record.line())
        self.write()

    def evaluated(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Write what notes there are on the evaluation."""
        self.write()

    def failed(self, error: BaseException) -> None:
        """Have the record of the round on disk, with the reason."""
        if not self.all:
            return
        text = str(error)
        note = f"{ENDED}{type(error).__name__}{text and ': '}{text}"
        if note not in self.all[-1].notes:
            self.all[-1].notes.append(note)
        self.write()

    def write(self) -> None:
        """Write the last record to the file; a full disk costs the line, not the run."""
        if self._path is None or not self.all:
            return
        record = self.all[-1]
        line = _line(record.to_dict())
        try:
            if self._written is None or self._written[0] is not record:
                append_line(self._path, line)
            elif self._written[1] != line:
                _replace_last(self._path, self._written[1], line)
        except OSError as error:
            note = f"the record was not written to {self._path} at once: {error}"
            if note not in record.notes:
                record.notes.append(note)
                log(WARNING, "The record of round %d was not written: %s", record.round, error)
        else:
            self._written = record, line

    def replace(self, records: Iterable[RoundRecord]) -> None:
        """Take up the records of rounds that are done; the file then holds these and no others."""
        self.all[:] = records
        self._written = None
        if self._path is not None:
            self.prepare()
            for left in self._path.parent.glob(f"{escape(self._path.name)}.[0-9]*{PARTIAL}"):
                left.unlink(missing_ok=True)  # of a start that was killed
            lines = [_line(record.to_dict()) for record in self.all]
            write_whole(self._path, b"".join(lines))
            if lines:
                self._written = self.all[-1], lines[-1]


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a file by lines of JSON, all of them or none."""
    write_whole(path, b"".join(map(_line, rows)))


def _line(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, allow_nan=False) + "\n").encode()


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, so that a reader sees whole lines only."""
    size = path.stat().st_size if path.exists() else 0
    with naming(path):
        try:
            with path.open("ab") as file:
                file.write(line)
        except OSError:
            with suppress(OSError):
                os.truncate(path, size)  # part of a line may be there
            raise


def _replace_last(path: Path, before: bytes, line: bytes) -> None:
    """Put a line in place of the last one, if that is still as it was written."""
    with naming(path), path.open("r+b") as file:
        start = max(0, file.seek(0, os.SEEK_END) - len(before))
        file.seek(start)
        if file.read() != before:
            return  # another run has gone on in this file: its lines stay
        file.truncate(start)
    try:
        append_line(path, line)
    except OSError:
        with suppress(OSError):
            append_line(path, before)
        raise
