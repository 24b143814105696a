"""What a run notes of its rounds beside their records, and TensorBoard's log."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from pncs_flower.strategies import Choice, RoundRecord
from pncs_flower.strategies.record import RoundListener

from ..scores import ACCURACY, score_name, score_of

TENSORBOARD = "tensorboard"  # folder of its log, in a run's

_MOST_CLIENTS = 20  # the number of similarities grows with its square


class RunWatch(RoundListener):
    """Adds to each record the seconds that training has taken, and a few similarities, if any."""

    def __init__(self, history: Sequence[RoundRecord], score: str = ACCURACY) -> None:
        self._history = history
        self._score = score
        self._start = 0.0  # until the first round begins

    @property
    def elapsed(self) -> float:
        """Seconds since training began, without those between two starts."""
        return time.perf_counter() - self._start

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Note what is known at once: when the round began."""
        if not self._start:
            earlier = [each.extra["elapsed"] for each in self._history if each is not record]
            self._start = time.perf_counter() - max(earlier, default=0.0)
        record.extra.update({self._score: None, "loss": None, "elapsed": self.elapsed})

    def chosen(self, record: RoundRecord, choice: Choice) -> None:
        """Keep the keys of K clients, and K rows of K numbers to four places."""
        if choice.similarity is not None and len(choice.similarity[0]) <= _MOST_CLIENTS:
            clients, values = choice.similarity
            seen = {"clients": list(clients), "values": values.round(4).tolist()}
            record.extra["similarity"] = seen


def open_tensorboard(folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that adds a round's row to TensorBoard's log in a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "tensorboard = true, but TensorBoard is not installed: pip install tensorboard, or "
            "set tensorboard = false"
        ) from None
    writer: Any = SummaryWriter(str(folder))

    def add(row: Mapping[str, Any]) -> None:
        values = {
            f"test/{score_name(row)}": score_of(row),
            "test/loss": row["loss"],
            "round/mean similarity": row["mean_similarity"],
            "round/bytes up": sum(row["bytes_up"].values()),
            "round/bytes down": sum(row["bytes_down"].values()),
            "round/seconds": sum(row["seconds"].values()),
        }
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, row["round"])
        writer.flush()

    return add
