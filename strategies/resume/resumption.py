"""Carries a run on from its last checkpoint, under Flower's own loop of rounds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result, Strategy

from ..errors import SelectionError, UnsavableError
from ..options import SelectionOptions
from ..record import RoundListener, RoundRecord
from ..rule import SelectionRule
from ..stopping import EvaluateFunction, ShouldStop
from .checkpoint import Checkpoint, CheckpointFolder
from .remembered import SKIP, Remembered, Setting
from .settings import differences, in_words, settings_of
from .snapshot import Decoder, Encoder, decode, encode

__all__ = ["Resumable", "Resumption"]


class Resumable(Protocol):
    """What a run is taken up with: a strategy's settings, history and state."""

    base: Strategy
    rule: SelectionRule
    options: SelectionOptions
    history: list[RoundRecord]

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""

    def restore_history(self, records: list[RoundRecord]) -> None:
        """Take up the records of the rounds already done."""


class Resumption(RoundListener):
    """Saves a run after each round, and starts it where a killed one stopped.

    Flower's loop counts from 1, so after a restart its rounds are shifted by those already done.

    Parameters
    ----------
    folder : str or Path
        The checkpoints' folder.

    Attributes
    ----------
    offset : int
        Rounds done before this start.
    """

    def __init__(self, folder: str | Path) -> None:
        self.offset = 0
        self._path = folder
        self._folder = CheckpointFolder(folder)
        self._strategy: Resumable | None = None
        self._remembered: Remembered | None = None
        self._settings: dict[str, Setting] = {}
        self._made: dict[str, str] = {}
        self._configs: dict[str, ConfigRecord] = {}
        self._result = Result()
        self._stopped = False
        self._saved = 0  # rounds whose lines are beside the checkpoints

    def run(
        self,
        strategy: Resumable,
        loop: Callable[..., Result],
        initial_arrays: ArrayRecord,
        num_rounds: int,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
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
        initial_arrays : ArrayRecord
            The initial model.
        num_rounds : int
            Rounds of the whole run.
        train_config, evaluate_config : ConfigRecord or None
            As for ``start``. A base strategy may change them from round to round, so they are saved
            too.
        evaluate_fn : callable or None
            As for ``start``; called for the rounds that are not done yet.
        should_stop : callable or None
            As for ``start``. A run that it has stopped stays stopped, unless there is none.

        Returns
        -------
        Result
            That of the whole run.

        Raises
        ------
        UnsavableError
            If the base strategy or the rule holds something that a checkpoint cannot.
        ValueError
            If the run to take up had other settings, or no checkpoint of it can be used.
        """
        configs = {"train_config": train_config, "evaluate_config": evaluate_config}
        self._configs = {
            name: ConfigRecord() if config is None else config for name, config in configs.items()
        }
        self._strategy = strategy
        self._remembered = Remembered(strategy.base, strategy.rule)
        given = settings_of(
            strategy.rule, strategy.base, strategy.options, initial_arrays, self._configs
        )
        self._settings = given | self._remembered.settings
        self._made = self._remembered.made
        self.offset, self._result = 0, Result(arrays=initial_arrays)
        with self._folder.held():
            return self._run(strategy, loop, initial_arrays, num_rounds, evaluate_fn, should_stop)

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
            self._take_up(strategy, saved)
        else:
            # A run that was killed before its first checkpoint may have written a record already.
            strategy.restore_history([])
        if self._stopped and should_stop is not None:
            log(INFO, "The run was stopped early after round %d, and stays so.", self.offset)
            return self._result
        if self.offset:
            self._say_what_is_left(num_rounds)
        self._stopped = False
        self._encoded(strategy, self._result.arrays)  # or say now that it cannot be saved
        if self.offset < num_rounds:
            result = loop(
                initial_arrays=self._result.arrays,
                num_rounds=num_rounds - self.offset,
                train_config=self._configs["train_config"],
                evaluate_config=self._configs["evaluate_config"],
                evaluate_fn=None if evaluate_fn is None else self._shifted(evaluate_fn),
                should_stop=None if should_stop is None else self._whole(should_stop),
            )
            if result.arrays:
                self._result.arrays = result.arrays
            done = strategy.history[-1].round if self._stopped else num_rounds
            try:
                self.save(strategy, done, self._result.arrays, last=True)
            except UnsavableError as error:  # the run is done, so there is nothing to stop
                _note_unsaved(strategy, done, error, last=True)
        return self._result

    def _say_what_is_left(self, num_rounds: int) -> None:
        if self.offset < num_rounds:
            log(INFO, "Going on after round %d of %d.", self.offset, num_rounds)
        elif self.offset == num_rounds:
            log(INFO, "All %d rounds are done already: nothing is left to do.", num_rounds)
        else:
            log(
                WARNING,
                "The run in %s has %d rounds already, more than the %d asked for: nothing is left "
                "to do, and its result is that of %d rounds.",
                *(self._path, self.offset, num_rounds, self.offset),
            )

    def save(
        self, strategy: Resumable, round_number: int, arrays: ArrayRecord, last: bool = False
    ) -> None:
        """Save the run after a round. A full disk costs the checkpoint, but not the run.

        Raises
        ------
        UnsavableError
            If something has turned up in the base strategy or the rule that a checkpoint cannot
            hold.
        """
        if round_number <= self.offset:
            return  # saved before, or nothing has happened yet
        about = {
            "round": round_number,
            "stopped": self._stopped,
            "settings": self._settings,
            "made": self._made,
        }
        state = self._encoded(strategy, arrays)
        lines = [self._line(record) for record in strategy.history[self._saved :]]
        try:
            self._folder.save(round_number, Checkpoint(about, *state, lines))
        except OSError as error:
            _note_unsaved(strategy, round_number, error, last)
        else:
            self._saved = len(strategy.history)

    def _encoded(
        self, strategy: Resumable, arrays: ArrayRecord
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the run's state as JSON and arrays."""
        assert self._remembered is not None
        encoder = Encoder(self._remembered.ids())
        state = {
            "remembered": self._remembered.state(encoder),
            "arrays": encoder.encode(arrays, "the model"),
            "configs": encoder.encode(self._configs, "the configs"),
            "strategy": encoder.encode(strategy.state(), "the state of the rule"),
        }
        encoder.check()
        return state, encoder.arrays

    def _line(self, record: RoundRecord) -> str:
        """Return what is kept of a round: its record, and what its metrics were."""
        numbers = [0, 1] if record.round == 1 else [record.round]
        kept = [[by_round.get(n) for n in numbers] for by_round in self._metrics()]
        metrics, arrays = encode(kept, "the metrics")
        if arrays:
            raise UnsavableError(f"the metrics of round {record.round} hold arrays: keep numbers")
        return json.dumps({"record": asdict(record), "metrics": metrics})

    def _metrics(self) -> list[dict[int, MetricRecord]]:
        result = self._result
        return [
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ]

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Save the round before this one, whose model it begins with."""
        if self._strategy is None:
            raise SelectionError(
                "a checkpoint needs the strategy's own start(): a wrapper around it would lose its "
                "state. Make the selection strategy the outermost, and wrap its base"
            )
        self.save(self._strategy, record.round - 1, arrays)

    def closed(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated training metrics for the result of the whole run."""
        if metrics is not None:
            self._result.train_metrics_clientapp[record.round] = metrics

    def evaluated(self, record: RoundRecord, metrics: MetricRecord | None) -> None:
        """Keep a round's aggregated evaluation metrics for the result of the whole run."""
        if metrics is not None:
            self._result.evaluate_metrics_clientapp[record.round] = metrics

    def _take_up(self, strategy: Resumable, saved: Checkpoint) -> None:
        about, remembered = saved.about, self._remembered
        assert remembered is not None
        if other := differences(about["settings"], self._settings):
            own = other.keys() & remembered.settings.keys()
            hint = f". {SKIP} of its class names attributes that may differ" if own else ""
            raise ValueError(
                f"the run in {self._path} had other settings ({in_words(other)}): go on with the "
                f"same, or use another folder{hint}"
            )
        self._made = about["made"]
        _warn_of_others(self._made, remembered.made)
        decoder = Decoder(saved.arrays, remembered.there)
        nodes = saved.state
        attributes = {path: decoder.decode(node) for path, node in nodes["remembered"].items()}
        model, configs, state = map(
            decoder.decode, (nodes["arrays"], nodes["configs"], nodes["strategy"])
        )
        self.offset, self._stopped = about["round"], about["stopped"]
        self._result = Result(arrays=model)
        records = [self._read_line(line) for line in saved.lines]
        self._saved = len(records)
        strategy.restore(state)
        strategy.restore_history(records)
        remembered.restore(attributes)
        for name, config in self._configs.items():
            config.clear()
            config.update(configs[name])

    def _read_line(self, line: str) -> RoundRecord:
        """Take up what was kept of a round."""
        kept = json.loads(line)
        record = RoundRecord(**kept["record"])
        numbers = [0, 1] if record.round == 1 else [record.round]
        for by_round, found in zip(self._metrics(), decode(kept["metrics"]), strict=True):
            by_round |= {
                n: value for n, value in zip(numbers, found, strict=True) if value is not None
            }
        return record

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


def _warn_of_others(saved: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Name attributes with arrays that were made otherwise; a model may be drawn at random."""
    names = [n for n in dict.fromkeys([*saved, *given]) if saved.get(n) != given.get(n)]
    if names:
        log(
            WARNING,
            "%s %s made otherwise than in the run that is taken up: what was saved is used. To "
            "change %s, use another folder.",
            *(", ".join(names), *(("was", "it") if len(names) == 1 else ("were", "them"))),
        )


def _note_unsaved(strategy: Resumable, number: int, error: Exception, last: bool) -> None:
    follows = (
        "The run is done; started again, it repeats the rounds that were not saved"
        if last
        else "The run goes on, and to save it is tried again after the next round"
    )
    strategy.history[-1].notes.append(
        f"no checkpoint of this round was written: {error}. {follows}"
    )
    log(WARNING, "No checkpoint of round %d was written: %s", number, error)
