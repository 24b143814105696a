"""What a run may keep beside its records: similarities seen by a rule, and TensorBoard's log."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pncs_flower.strategies import Choice, RoundRecord, SelectionStrategy
from pncs_flower.strategies.record import RoundListener

__all__ = ["MOST_CLIENTS", "TENSORBOARD", "open_tensorboard", "watch_similarity"]

MOST_CLIENTS = 20
"""Similarities of more clients than this are not kept: their number grows with its square."""

TENSORBOARD = "tensorboard"
"""Folder of TensorBoard's log within a run's."""

Similarity = Mapping[str, Any]


def watch_similarity(strategy: SelectionStrategy) -> Callable[[], Similarity | None]:
    """Return a function that hands over the similarities of the last choice, once.

    ``{"clients": keys, "values": K rows of K numbers}`` to four places; None if the rule computes
    none, or for more than `MOST_CLIENTS`.
    """
    seen: list[Similarity] = []

    class Watcher(RoundListener):
        def chosen(self, record: RoundRecord, choice: Choice) -> None:
            seen.clear()
            if choice.similarity is not None and len(choice.similarity[0]) <= MOST_CLIENTS:
                clients, values = choice.similarity
                seen.append({"clients": list(clients), "values": values.round(4).tolist()})

    strategy.listeners.append(Watcher())
    return lambda: seen.pop() if seen else None


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
