"""Carries a run on from its last checkpoint, under Flower's own loop of rounds."""

import json
from collections.abc import Callable
from dataclasses import asdict
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result, Strategy

from .checkpoint import CheckpointFolder
from .errors import SelectionError
from .history import RoundRecord
from .snapshot import StrategyState
from .stopping import EvaluateFunction, ShouldStop

__all__ = ["Resumable", "Resumption"]


class Resumable(Protocol):
    """What a run is taken up with: a strategy's settings, history and state."""

    history: list[RoundRecord]

    def settings(self) -> str:
        """Return what a run must have in common with one that is taken up."""

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""

    def restore_history(self, records: list[RoundRecord]) -> None:
        """Take up the records of the rounds already done."""


class Resumption:
    """Saves a run after each round, and starts it where a killed one stopped.

    Flower's loop counts from 1, so after a restart its rounds are shifted by those already done.

    Parameters
    ----------
    folder : str or Path
        The checkpoints' folder.
    base : Strategy
        The base strategy as it was made.

    Attributes
    ----------
    offset : int
        Rounds done before this start.
    """

    def __init__(self, folder: str | Path, base: Strategy) -> None:
        self.offset = 0
        self._folder = CheckpointFolder(folder)
        self._base = StrategyState(base)
        self._config: ConfigRecord | None = None
        self._result = Result()
        self._stopped = False
        self._lines: list[str] = []

    def run(
        self,
        strategy: Resumable,
        loop: Callable[..., Result],
        arrays: ArrayRecord,
        num_rounds: int,
        train_config: ConfigRecord | None,
        evaluate_fn: EvaluateFunction | None,
        should_stop: ShouldStop | None = None,
    ) -> Result:
        """Run Flower's loop for the rounds that are not done yet.

        Parameters
        ----------
        strategy : Resumable
            The strategy.
        loop : callable
            Flower's ``start``, with what is not given here.
        arrays : ArrayRecord
            The initial model.
        num_rounds : int
            Rounds of the whole run.
        train_config : ConfigRecord or None
            As for ``start``. A base strategy may change it from round to round, so it is saved too.
        evaluate_fn : callable or None
            As for ``start``; called for the rounds that are not done yet.
        should_stop : callable or None
            As for ``start``. A run that it has stopped stays stopped, unless there is none.

        Returns
        -------
        Result
            That of the whole run.
        """
        self._config = ConfigRecord() if train_config is None else train_config
        self.offset, self._result = 0, Result(arrays=arrays)
        with self._folder.held():
            return self._run(strategy, loop, arrays, num_rounds, evaluate_fn, should_stop)

    def _run(
        self,
        strategy: Resumable,
        loop: Callable[..., Result],
        arrays: ArrayRecord,
        num_rounds: int,
        evaluate_fn: EvaluateFunction | None,
        should_stop: ShouldStop | None = None,
    ) -> Result:
        saved = self._folder.load()
        if saved is not None:
            _check_model(saved["arrays"], arrays)
            self._take_up(strategy, saved)
            log(INFO, "Going on after round %d of %d.", self.offset, num_rounds)
        else:
            # A run that was killed before its first checkpoint may have written a record already.
            strategy.restore_history([])
        if self._stopped and should_stop is not None:
            log(INFO, "The run was stopped early after round %d, and stays so.", self.offset)
            return self._result
        self._stopped = False
        if self.offset < num_rounds:
            result = loop(
                initial_arrays=self._result.arrays,
                num_rounds=num_rounds - self.offset,
                train_config=self._config,
                evaluate_fn=None if evaluate_fn is None else self._shifted(evaluate_fn),
                should_stop=None if should_stop is None else self._whole(should_stop),
            )
            if result.arrays:
                self._result.arrays = result.arrays
            done = strategy.history[-1].round if self._stopped else num_rounds
            self.save(strategy, done, self._result.arrays)
        return self._result

    def save(self, strategy: Resumable, round_number: int, arrays: ArrayRecord) -> None:
        """Save the run after a round. A full disk costs the checkpoint, but not the run.

        Raises
        ------
        SelectionError
            If the run was not started by the strategy that has the checkpoint.
        """
        if self._config is None:
            raise SelectionError(
                "a checkpoint needs the strategy's own start(): a wrapper around it would lose its "
                "state. Make the selection strategy the outermost, and wrap its base"
            )
        if round_number <= self.offset:
            return  # saved before, or nothing has happened yet
        state = {
            "round": round_number,
            "stopped": self._stopped,
            "settings": strategy.settings(),
            "arrays": arrays,
            "strategy": strategy.state(),
            "base": self._base.changed(),
            "train-config": self._config,
            "history": self._lines_of(strategy.history),
            "train-metrics": self._result.train_metrics_clientapp,
            "evaluate-metrics": self._result.evaluate_metrics_clientapp,
            "central-metrics": self._result.evaluate_metrics_serverapp,
        }
        try:
            self._folder.save(round_number, state)
        except OSError as error:
            strategy.history[-1].notes.append(f"no checkpoint was written: {error}")
            log(WARNING, "No checkpoint of round %d was written: %s", round_number, error)

    def _lines_of(self, history: list[RoundRecord]) -> list[str]:
        """Return a line of JSON for each record; those of earlier rounds are not made anew."""
        del self._lines[len(history) - 1 :]  # to the last record, a note may have been added
        self._lines += (json.dumps(asdict(record)) for record in history[len(self._lines) :])
        return list(self._lines)

    def note_train_metrics(self, round_number: int, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated training metrics for the result of the whole run."""
        if metrics is not None:
            self._result.train_metrics_clientapp[round_number] = metrics

    def note_evaluate_metrics(self, round_number: int, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated evaluation metrics for the result of the whole run."""
        if metrics is not None:
            self._result.evaluate_metrics_clientapp[round_number] = metrics

    def _take_up(self, strategy: Resumable, saved: dict[str, Any]) -> None:
        if saved["settings"] != strategy.settings():
            raise ValueError(
                f"the checkpoint is of a run with {saved['settings']}, but this one has "
                f"{strategy.settings()}: go on with the same settings, or use another folder"
            )
        self.offset, self._stopped = saved["round"], saved.get("stopped", False)
        strategy.restore(saved["strategy"])
        strategy.restore_history([RoundRecord(**json.loads(line)) for line in saved["history"]])
        self._base.restore(saved["base"])
        if self._config is not None:
            self._config.clear()
            self._config.update(saved["train-config"])
        self._result = Result(
            arrays=saved["arrays"],
            train_metrics_clientapp=saved["train-metrics"],
            evaluate_metrics_clientapp=saved["evaluate-metrics"],
            evaluate_metrics_serverapp=saved["central-metrics"],
        )

    def _shifted(self, evaluate_fn: EvaluateFunction) -> EvaluateFunction:
        def evaluate(loop_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if loop_round == 0 and self.offset:
                return self._result.evaluate_metrics_serverapp.get(self.offset)  # done before
            metrics = evaluate_fn(loop_round + self.offset, arrays)
            if metrics is not None:
                self._result.evaluate_metrics_serverapp[loop_round + self.offset] = metrics
            return metrics

        return evaluate

    def _whole(self, should_stop: ShouldStop) -> ShouldStop:
        """Have it asked with the rounds and the result of the whole run."""

        def asked(loop_round: int, result: Result) -> bool:
            if result.arrays:
                self._result.arrays = result.arrays
            self._stopped = bool(should_stop(loop_round + self.offset, self._result))
            return self._stopped

        return asked


def _check_model(saved: ArrayRecord, initial: ArrayRecord) -> None:
    """Refuse to go on with the checkpoint of another model."""
    shapes = [{name: tuple(a.shape) for name, a in record.items()} for record in (saved, initial)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the checkpoint is of a model with the arrays {shapes[0]}, but this one has "
            f"{shapes[1]}: use another folder"
        )
