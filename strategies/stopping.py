"""Flower's loop of rounds, which ends early where it is asked to: in every release of Flower."""

from collections.abc import Callable
from functools import wraps
from logging import INFO
from typing import Any, TypeVar

from flwr.app import ArrayRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result

from .callback import OnRecord, call_with
from .grids.releases import takes
from .record import RoundListener, RoundRecord

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
    """Flower's loop of rounds, over a whole run: after a restart, Flower counts from 1 again."""

    # Flower asks ``should_stop`` after each round since 1.43. An older loop is left from within
    # the evaluation on the server, which is the last thing that it does in a round.

    def __init__(self, on_record: OnRecord | None = None) -> None:
        self._on_record = on_record
        self._untold: RoundRecord | None = None  # a round that has been trained, and not been told
        self._running = False  # where another strategy is around this one, that has the loop
        self.result = Result()  # of the whole run, so far
        self.done = 0  # rounds before this start
        self.stopped = False  # by should_stop

    def run(
        self,
        start: Callable[..., Result],
        num_rounds: int,
        evaluate_fn: EvaluateFunction | None,
        should_stop: ShouldStop | None,
        **arguments: Any,
    ) -> Result:
        """Run the rounds that are left, by Flower's ``start``, which gets all further arguments."""
        flower_asks = takes(start, "should_stop")
        leaves = should_stop is not None and not flower_asks
        by_round = self.result.evaluate_metrics_serverapp

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            if number == 0 and self.done:
                return by_round.get(self.done)  # done before
            metrics = None if evaluate_fn is None else evaluate_fn(number + self.done, arrays)
            if metrics is not None:
                by_round[number + self.done] = metrics
            if number and leaves and stops(number, Result(arrays)):
                raise _StopError
            return metrics

        def stops(number: int, result: Result) -> bool:
            if result.arrays:
                self.result.arrays = result.arrays
            done = number + self.done
            self.stopped = should_stop is not None and bool(should_stop(done, self.result))
            return self.stopped

        if should_stop is not None and flower_asks:
            arguments["should_stop"] = stops
        self._running = True
        try:
            result = start(
                initial_arrays=self.result.arrays,
                num_rounds=num_rounds - self.done,
                evaluate_fn=evaluate if evaluate_fn is not None or leaves else None,
                **arguments,
            )
        except _StopError:
            log(INFO, "Stopped early, as should_stop asked.")
            result = self.result
        # Flower forgets the model if no round gave a new one.
        result.arrays = self.result.arrays = result.arrays or self.result.arrays
        self._tell()
        return result

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Tell of the round before this one, which is whole by now."""
        self._tell()

    def _tell(self) -> None:
        """Call the function that is to hear of each whole round, once for each."""
        record, self._untold = self._untold, None
        if record is not None and self._on_record is not None:
            call_with(self._on_record, record, self.result)

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated training metrics."""
        self._untold = record
        if metrics is not None:
            self.result.train_metrics_clientapp[record.round] = metrics

    def evaluated(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated metrics of the clients' evaluation."""
        if metrics is not None:
            self.result.evaluate_metrics_clientapp[record.round] = metrics
        if not self._running:  # perhaps nothing comes after it
            self._tell()
