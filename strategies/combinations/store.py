"""Updates of earlier rounds, kept by the server within a budget: in memory, or mapped files."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

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
    values : numpy.ndarray
        Of the store's dtype and shape (P,); they cannot be changed.
    """

    client: str
    round: int
    norm: float
    sketch: np.ndarray | None
    scale: float
    values: np.ndarray = field(repr=False)
    kept: KeptArray | None = None  # the file of the checkpoint that the values are in


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
        `IN_MEMORY` bytes, and those beyond in files without a name, which end with the process.

    Attributes
    ----------
    entries : list of StoredUpdate
        In the order in which they were added.

    Raises
    ------
    TypeError, ValueError
        If the budget or the dtype is none.
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
        self.entries: list[StoredUpdate] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the updates that are kept."""
        return sum(entry.values.nbytes for entry in self.entries)

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
        """Keep an update, a copy of finite values; to keep a client's newest only, `forget` first.

        What is returned is empty, or says that no file could be written: the update is then in
        memory, and a checkpoint holds it itself.
        """
        values = np.asarray(values, np.float32)
        kept, exponent, problem = None, 0, ""
        if self._dtype == np.float16:
            exponent = math.frexp(np.abs(values).max(initial=0))[1] - _FLOAT16_TOP
        stored = (np.ldexp(values, -exponent) if exponent else values).astype(self._dtype)
        try:
            if self._folder is not None:
                kept = KeptArray.write(self._folder, stored)
                stored = kept.map(self._folder)
            elif self.num_bytes + stored.nbytes > IN_MEMORY:
                stored = _in_file(stored)
        except OSError as error:
            problem = f"an update of round {round} is kept in memory and in no file: {error}"
            log(WARNING, "%s", problem)
        stored.flags.writeable = False
        copied = None if sketch is None else np.array(sketch)
        entry = StoredUpdate(client, round, norm(values), copied, 2.0**exponent, stored, kept)
        self.entries.append(entry)
        return problem

    def trim(self) -> None:
        """Drop the oldest updates until the others are within the budget."""
        num_bytes = self.num_bytes
        while len(self.entries) > self._most_updates or num_bytes > self._most_bytes:
            num_bytes -= self.entries.pop(0).values.nbytes

    def forget(self, client: str) -> None:
        """Drop all updates of a client."""
        self.entries = [entry for entry in self.entries if entry.client != client]

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint must hold: with a folder, the arrays' files in their place."""
        return [
            {**vars(entry), "values": entry.values if entry.kept is None else None}
            for entry in self.entries
        ]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Take up what `state` returned."""
        self.entries = []
        for saved in state:
            if saved["kept"] is not None and self._folder is not None:
                saved = {**saved, "values": saved["kept"].map(self._folder)}
            self.entries.append(StoredUpdate(**saved))


def weighted_sum(
    vectors: Sequence[np.ndarray | StoredUpdate], coefficients: Sequence[float] | np.ndarray
) -> NDArray[np.float64]:
    """Return the sum of vectors of P values, each times its coefficient.

    Needs memory for the sum only; the same bits come out with any number of threads.
    """
    terms = [
        (float(c) * v.scale, v.values) if isinstance(v, StoredUpdate) else (float(c), v)
        for v, c in zip(vectors, coefficients, strict=True)
    ]
    total = np.zeros(len(terms[0][1]))
    terms = [(coefficient, values) for coefficient, values in terms if coefficient]
    buffer = np.empty(_BLOCK)
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        product = buffer[: part.size]
        for coefficient, values in terms:
            product[:] = values[start : start + _BLOCK]  # to multiply with a cast is slower
            product *= coefficient
            part += product
    return total


def norm(values: np.ndarray) -> float:
    """Return the Euclidean norm of a vector: the same bits with any number of threads."""
    blocks = (values[n : n + _BLOCK].astype(np.float64) for n in range(0, values.size, _BLOCK))
    return math.sqrt(sum(float(np.einsum("i,i->", block, block)) for block in blocks))


def _in_file(values: np.ndarray) -> np.ndarray:
    """Return an array that is in a file which has no name, so that nothing is ever left of it."""
    with TemporaryFile() as file:
        file.write(values.data)  # in full: a full disk would else end the process when it is used
        file.flush()
        return np.asarray(np.memmap(file, values.dtype, "r", shape=values.shape))


def _limits(budget: int | str | None) -> tuple[float, float]:
    """Return how many updates, and how many bytes of them, a budget allows."""
    if budget is None:
        return math.inf, math.inf
    if isinstance(budget, str) and budget.strip().isdecimal():
        budget = int(budget)
    if not isinstance(budget, str):
        check_whole(least=0, budget=budget)
        return budget, math.inf
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?b)", budget.strip().lower())
    if found is None:
        raise ValueError(
            f"budget is {budget!r}, but must be a number of updates, such as 50, or an amount of "
            "memory, such as '500MB' or '2GB', or None for no limit"
        )
    return math.inf, int(float(found[1]) * _UNITS[found[2]])
