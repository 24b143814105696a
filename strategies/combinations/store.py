"""Updates of earlier rounds, kept by the server within a budget: in memory, or mapped files."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from ..checks import check_one_of, check_whole
from ..kept_arrays import KeptArray

IN_MEMORY = 10**9
"""Bytes of updates that are held in memory; those beyond are in files that are mapped."""

_BLOCK = 16_384  # values: what is summed of them stays in the processor's cache
_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_FLOAT16_TOP = 15  # the largest number of an update is made just less than 2 to this


@dataclass(frozen=True, eq=False)
class StoredUpdate:
    """An update that a client delivered.

    Attributes
    ----------
    client : str
        Its key.
    round : int
        When it was delivered.
    norm : float
        The Euclidean norm of what was delivered.
    sketch : numpy.ndarray, optional
        Its sketch.
    scale : float
        What the values are multiplied by to be the update: a power of 2.
    num_bytes : int
        Of the values.
    kept : KeptArray, optional
        The file of the checkpoint that the values are in.
    """

    client: str
    round: int
    norm: float
    sketch: np.ndarray | None
    scale: float
    num_bytes: int
    kept: KeptArray | None
    # Files are mapped when they are used: each that stays mapped is an open file of the process,
    # which may have no more than 1,024.
    _read: Callable[[], np.ndarray] = field(repr=False)
    _place: int | None = None  # in the store's own file

    @property
    def values(self) -> np.ndarray:
        """The stored values, which cannot be changed: of the store's dtype, shape (P,)."""
        return self._read()


class UpdateStore:
    """Keeps updates of P values each, the oldest first, until they are beyond a budget.

    Parameters
    ----------
    budget : int or str, optional
        How many updates, also as a text, or how many bytes of them (``"500MB"``, ``"2GB"``; 1 MB
        is 10^6 bytes); None for all.
    dtype : {"float32", "float16"}
        What they are kept in; float16 is scaled by a power of 2, of each update's own.
    folder : Path, optional
        Where in a checkpoint each has a file of its own. Without one, they are in memory up to
        `IN_MEMORY` bytes, and those beyond in one file without a name, which ends with the process.

    Attributes
    ----------
    entries : list of StoredUpdate
        In the order in which they were added.

    Raises
    ------
    TypeError, ValueError
        If the budget or the dtype is not one of these.
    """

    def __init__(
        self,
        budget: int | str | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        folder: Path | None = None,
    ) -> None:
        check_one_of(["float32", "float16"], dtype=dtype)
        self._most_updates, self._most_bytes = _limits(budget)
        self._dtype = np.dtype(dtype)
        self._folder = folder
        self._file: IO[bytes] | None = None
        self.entries: list[StoredUpdate] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the updates that are kept."""
        return sum(entry.num_bytes for entry in self.entries)

    @property
    def _bytes_in_memory(self) -> int:
        held = (each for each in self.entries if each.kept is None and each._place is None)
        return sum(entry.num_bytes for entry in held)

    @property
    def about(self) -> dict[str, int]:
        """What a round's record says of it."""
        return {"stored": len(self.entries), "stored-bytes": self.num_bytes}

    def take(
        self,
        round: int,
        updates: Mapping[str, np.ndarray],
        sketches: Mapping[str, np.ndarray] | None = None,
    ) -> list[str]:
        """Keep the updates of a round, within the budget; return the problems."""
        found = [self.add(c, round, u, (sketches or {}).get(c)) for c, u in updates.items()]
        self.trim()
        return [problem for problem in found if problem]

    def add(
        self, client: str, round: int, values: np.ndarray, sketch: np.ndarray | None = None
    ) -> str:
        """Keep an update of finite values; to keep a client's newest only, `forget` first.

        An array that is in memory already in the store's dtype is kept itself, without a copy, and
        cannot be changed from then on.
        What is returned is empty, or says that no file could be written: the update is then in
        memory, and a checkpoint holds it itself.
        """
        values = np.asarray(values, np.float32)
        exponent, kept, place, problem = 0, None, None, ""
        if self._dtype == np.float16:
            exponent = math.frexp(np.abs(values).max(initial=0))[1] - _FLOAT16_TOP
        stored = np.ldexp(values, -exponent) if exponent else values
        stored = stored.astype(self._dtype, copy=False)
        stored.flags.writeable = False
        if self.entries and self.entries[0].num_bytes != stored.nbytes:
            raise ValueError(
                f"an update of {stored.size} values is not of the size of those stored"
            )
        read: Callable[[], np.ndarray] = partial(np.asarray, stored)
        try:
            if self._folder is not None:
                kept = KeptArray.write(self._folder, stored)
                read = partial(kept.map, self._folder)
            elif self._bytes_in_memory + stored.nbytes > IN_MEMORY:
                place, read = self._into_file(stored)
        except OSError as error:
            problem = f"an update of round {round} is kept in memory and in no file: {error}"
            log(WARNING, "%s", problem)
        copied = None if sketch is None else np.array(sketch)
        about = (client, round, norm(values), copied, 2.0**exponent, stored.nbytes)
        self.entries.append(StoredUpdate(*about, kept, read, place))
        return problem

    def _into_file(self, values: np.ndarray) -> tuple[int, Callable[[], np.ndarray]]:
        """Write values to the store's own file; return the place there, and what reads them."""
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115 -- it ends with the store
        taken = {entry._place for entry in self.entries}
        place = next(n for n in count() if n not in taken)
        self._file.seek(place * values.nbytes)
        self._file.write(values.data)  # in full: mapped beyond a full disk, it would be a crash
        self._file.flush()
        where = {"mode": "r", "offset": place * values.nbytes, "shape": values.shape}
        return place, partial(_map, self._file, values.dtype, **where)

    def trim(self) -> None:
        """Drop the oldest updates until the others are within the budget."""
        num_bytes = self.num_bytes
        while len(self.entries) > self._most_updates or num_bytes > self._most_bytes:
            num_bytes -= self.entries.pop(0).num_bytes

    def forget(self, client: str) -> None:
        """Drop all updates of a client."""
        self.entries = [entry for entry in self.entries if entry.client != client]

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint must hold: with a folder, the arrays' files in their place."""
        names = ("client", "round", "norm", "sketch", "scale", "num_bytes", "kept")
        return [
            {name: getattr(entry, name) for name in names}
            | {"values": entry.values if entry.kept is None else None}
            for entry in self.entries
        ]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Take up what `state` returned."""
        self.entries = []
        for saved in state:
            about = dict(saved)
            values, kept = about.pop("values"), about["kept"]
            read = partial(np.asarray, values) if kept is None else partial(kept.map, self._folder)
            self.entries.append(StoredUpdate(**about, _read=read))


def weighted_sum(
    vectors: Sequence[np.ndarray | StoredUpdate], coefficients: Sequence[float] | np.ndarray
) -> NDArray[np.float64]:
    """Return the sum of vectors of P values, each times its coefficient.

    Needs memory for the sum only; the same bits come out with any number of threads.
    """
    total, buffer = np.zeros(len(_values_of(vectors[0]))), np.empty(_BLOCK)
    # One after the other, so that one file at a time is open.
    for vector, coefficient in zip(vectors, coefficients, strict=True):
        if not coefficient:
            continue
        values = _values_of(vector)
        factor = coefficient * (vector.scale if isinstance(vector, StoredUpdate) else 1.0)
        for start in range(0, total.size, _BLOCK):
            part = total[start : start + _BLOCK]
            product = buffer[: part.size]
            product[:] = values[start : start + _BLOCK]  # to multiply with a cast is slower
            product *= factor
            part += product
    return total


def _values_of(vector: np.ndarray | StoredUpdate) -> np.ndarray:
    return vector.values if isinstance(vector, StoredUpdate) else vector


def norm(values: np.ndarray) -> float:
    """Return the Euclidean norm of a vector: the same bits with any number of threads."""
    blocks = (values[n : n + _BLOCK].astype(np.float64) for n in range(0, values.size, _BLOCK))
    return math.sqrt(sum(float(np.einsum("i,i->", block, block)) for block in blocks))


def _map(*arguments: Any, **options: Any) -> np.ndarray:
    """Return what is in a part of a file."""
    return np.asarray(np.memmap(*arguments, **options))


def _limits(budget: int | str | None) -> tuple[float, float]:
    """Return how many updates, and how many bytes of them, a budget allows."""
    if budget is None:
        return math.inf, math.inf
    if isinstance(budget, str) and budget.strip().isdecimal():
        budget = int(budget)
    if not isinstance(budget, str):
        check_whole(least=0, store=budget)
        return budget, math.inf
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?b)", budget.strip().lower())
    if found is None:
        raise ValueError(
            f"store is {budget!r}, but must be a number of updates, such as 50, or an amount of "
            "memory, such as '500MB' or '2GB'"
        )
    return math.inf, int(float(found[1]) * _UNITS[found[2]])
