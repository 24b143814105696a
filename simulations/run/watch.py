"""What a run may keep beside its records: similarities seen by a rule, and TensorBoard's log."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from pncs_flower.strategies import Choice, RoundRecord
from pncs_flower.strategies.record import RoundListener

__all__ = ["TENSORBOARD", "SimilarityWatch", "open_tensorboard"]

TENSORBOARD = "tensorboard"
"""Folder of TensorBoard's log within a run's."""

_MOST_CLIENTS = 20  # the number of similarities grows with its square


class SimilarityWatch(RoundListener):
    """Keeps the similarities of a round's choice to four places, where there are some, but few."""

    seen: Mapping[str, Any] | None = None

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Forget those of the round before."""
        self.seen = None

    def chosen(self, record: RoundRecord, choice: Choice) -> None:
        """Keep the keys of K clients, and K rows of K numbers."""
        if choice.similarity is not None and len(choice.similarity[0]) <= _MOST_CLIENTS:
            clients, values = choice.similarity
            self.seen = {"clients": list(clients), "values": values.round(4).tolist()}


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
            "test/accuracy": row["accuracy"],
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
