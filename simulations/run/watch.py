"""What a run may keep beside its records: similarities seen by a rule, and TensorBoard's log."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pncs_flower.strategies import SelectionStrategy
from pncs_flower.strategies.rule import Summary
from pncs_flower.strategies.rules.pncs import PNCSRule

__all__ = ["MOST_CLIENTS", "TENSORBOARD", "open_tensorboard", "watch_similarity"]

MOST_CLIENTS = 20
"""Similarities of more clients than this are not kept: their number grows with its square."""

TENSORBOARD = "tensorboard"
"""Folder of TensorBoard's log within a run's."""

Similarity = Mapping[str, Any]


def watch_similarity(strategy: SelectionStrategy) -> Callable[[], Similarity | None]:
    """Return a function that hands over the similarities computed since it was last called.

    ``{"clients": keys, "values": K rows of K numbers}`` to four places; None if the rule computes
    none, or for more than `MOST_CLIENTS`.
    """
    rule = strategy.rule
    seen: list[Similarity] = []
    if isinstance(rule, PNCSRule):
        compute = rule.similarity

        def similarity(summaries: Mapping[str, Summary]) -> Any:
            values = compute(summaries)
            if len(summaries) <= MOST_CLIENTS:
                seen.append({"clients": list(summaries), "values": values.round(4).tolist()})
            return values

        # On the rule itself: it is frozen, and a rule of another class would be another rule in
        # records and checkpoints.
        object.__setattr__(rule, "similarity", similarity)
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
