"""Flower's loop of rounds, which ends early where it is asked to: in every release of Flower."""

from collections.abc import Callable
from functools import wraps
from logging import INFO
from typing import Any, TypeVar

from flwr.app import ArrayRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result

from .grids.releases import takes
from .record import RoundListener, RoundRecord

__all__ = ["EvaluateFunction", "Loop", "ShouldStop", "naming_round"]

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
ShouldStop = Callable[[int, Result], bool]
_Given = TypeVar("_Given")
_Answer = TypeVar("_Answer")


def naming_round(
    name: str, function: Callable[[int, _Given], _Answer] | None
) -> Callable[[int, _Given], _Answer] | None:
    """Have an error in a function of the app, which passes as it is, say in which round it was."""
    if function is None:
        return None
    if not callable(function):
        raise TypeError(f"{name} is {function!r}, but must be callable")

    @wraps(function)
    def call(number: int, given: _Given) -> _Answer:
        try:
            return function(number, given)
        except Exception as error:
            error.add_note(f"raised by {name} in round {number}")
            raise

    return call


class _StopError(Exception):
    """Takes a run out of a loop that has no other way to end early."""


class Loop(RoundListener):
    """Flower's ``start``, which takes ``should_stop`` also where Flower's own does not.

    Flower asks after each round since 1.43. An older loop is left from within the evaluation on
    the server, which is the last thing that it does in a round.
    """

    def __init__(self, start: Callable[..., Result]) -> None:
        self._start = start
        self._result = Result()

    def __call__(
        self,
        *,
        evaluate_fn: EvaluateFunction | None,
        should_stop: ShouldStop | None,
        **arguments: Any,
    ) -> Result:
        """Run the rounds; see Flower's ``start``, which gets all arguments."""
        if should_stop is None:
            return self._start(evaluate_fn=evaluate_fn, **arguments)
        if takes(self._start, "should_stop"):
            return self._start(evaluate_fn=evaluate_fn, should_stop=should_stop, **arguments)
        self._result = result = Result(arrays=arguments["initial_arrays"])

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = None if evaluate_fn is None else evaluate_fn(number, arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics
            result.arrays = arrays
            if number and should_stop(number, result):
                raise _StopError
            return metrics

        try:
            return self._start(evaluate_fn=evaluate, **arguments)
        except _StopError:
            log(INFO, "Stopped early, as should_stop asked.")
            return result

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated training metrics, for who decides whether to stop."""
        if metrics is not None:
            self._result.train_metrics_clientapp[record.round] = metrics

    def evaluated(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated metrics of the clients' evaluation, for the same."""
        if metrics is not None:
            self._result.evaluate_metrics_clientapp[record.round] = metrics
