"""Calls a function of the user's with each round that is whole, whatever that function raises."""

from collections.abc import Callable
from logging import WARNING
from typing import Any

from flwr.common import log
from flwr.serverapp.strategy import Result

from pncs_flower.plain_text import in_one_line, shortened

from .record import RoundRecord

OnRecord = Callable[[dict[str, Any]], None]

METRICS = (
    "train_metrics_clientapp",
    "evaluate_metrics_clientapp",
    "evaluate_metrics_serverapp",
)
"""The metrics of a round, by the names that Flower's result has for them."""


def call_with(on_record: OnRecord, record: RoundRecord, result: Result) -> None:
    """Give a round to a function; an error in it is noted in the record, and costs nothing else."""
    # An account that ran out overnight must not cost the run, nor go unnoticed.
    found = {name: getattr(result, name).get(record.round) for name in METRICS}
    metrics = {name: dict(values) if values else {} for name, values in found.items()}
    try:
        on_record({**record.to_dict(), **metrics})
    except Exception as error:
        words = shortened(in_one_line(str(error)))
        record.notes.append(f"on_record raised {type(error).__name__}: {words}")
        log(WARNING, "Round %d: %s; the run goes on.", record.round, record.notes[-1])
        log(WARNING, "It came from here:", exc_info=error)
