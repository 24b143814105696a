"""Carries a run on from its last checkpoint, under Flower's own loop of rounds."""

import json
from collections.abc import Callable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import log
from flwr.serverapp.strategy import Result

from pncs_flower.plain_text import counted

from ..errors import SelectionError, UnsavableError
from ..record import RoundListener, RoundRecord
from ..stopping import EvaluateFunction, Loop, ShouldStop
from .checkpoint import Checkpoint, CheckpointFolder
from .remembered import Remembered, encoded
from .settings import Resumable, check_same, settings_of, survey
from .snapshot import Decoder, Encoder

# What is saved beside the attributes of the base strategy and of the rule.
_STATE = ("the model", "the configs", "the state of the rule")
_METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class Resumption(RoundListener):
    """Saves a run after each round, and starts it where a killed one stopped."""

    def __init__(self, folder: str | Path, loop: Loop) -> None:
        self._folder = CheckpointFolder(folder)
        self._loop = loop
        self._strategy: Resumable | None = None
        self._remembered = Remembered()
        self._about: dict[str, Any] = {}
        self._configs: dict[str, ConfigRecord] = {}
        self._saved = 0  # rounds whose lines are beside the checkpoints

    def run(
        self,
        strategy: Resumable,
        start: Callable[..., Result],
        num_rounds: int,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFunction | None,
        should_stop: ShouldStop | None,
    ) -> Result:
        """Run the rounds not done yet, and return the result of the whole run."""
        loop, self._strategy = self._loop, strategy
        # A base strategy may change them from round to round, so they are saved too.
        self._configs = {
            "train_config": ConfigRecord() if train_config is None else train_config,
            "evaluate_config": ConfigRecord() if evaluate_config is None else evaluate_config,
        }
        self._remembered = Remembered(strategy.base, strategy.rule)
        settings = settings_of(strategy, loop.result.arrays, self._configs)
        settings |= self._remembered.attributes()
        self._about = survey(settings, self._remembered.there)
        with self._folder.held():
            saved = self._folder.load()
            if saved is not None:
                self._take_up(strategy, saved)
            else:
                # A run that was killed before its first checkpoint may have written a record.
                strategy.restore_history([])
            if loop.stopped and should_stop is not None:
                log(INFO, "The run was stopped early after round %d, and stays so.", loop.done)
                return loop.result
            loop.stopped = False
            self._say_what_is_left(num_rounds)
            self._encoded(strategy)  # or say now that it cannot be saved
            if loop.done < num_rounds:
                loop.run(start, num_rounds, evaluate_fn, should_stop, **self._configs)
                self._save(strategy, strategy.history[-1].round, last=True)
            return loop.result

    def _say_what_is_left(self, num_rounds: int) -> None:
        done = self._loop.done
        if 0 < done < num_rounds:
            log(INFO, "Going on after round %d of %d.", done, num_rounds)
        elif 0 < done == num_rounds:
            log(INFO, "%s done already: nothing is left to do.", counted(done, "round"))
        elif done > num_rounds:
            rounds = counted(done, "round")
            log(
                WARNING,
                "The run in %s has %s already, more than the %d asked for: nothing is left to do, "
                "and its result is that of %s.",
                *(self._folder.path, rounds, num_rounds, rounds),
            )

    def opened(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Save the round before this one, whose model it begins with."""
        if self._strategy is None:
            raise SelectionError(
                "a checkpoint needs the strategy's own start(): a wrapper around it would lose its "
                "state. Make the selection strategy the outermost, and wrap its base"
            )
        self._loop.result.arrays = arrays
        self._save(self._strategy, record.round - 1)

    def _save(self, strategy: Resumable, number: int, last: bool = False) -> None:
        """Save the run after a round; a full disk costs the checkpoint, but not the run."""
        if number <= self._loop.done:
            return  # saved before, or nothing has happened yet
        about = {**self._about, "stopped": self._loop.stopped}
        try:
            nodes, encoder = self._encoded(strategy)
            lines = [
                self._line(strategy.history, n) for n in range(self._saved, len(strategy.history))
            ]
            content = ({**about, "state": nodes}, encoder.arrays, lines, encoder.files)
            self._folder.save(number, Checkpoint(*content))
        except (OSError, UnsavableError) as error:
            if isinstance(error, UnsavableError) and not last:
                raise
            follows = (
                "The run is done; started again, it repeats the rounds that were not saved"
                if last
                else "The run goes on, and to save it is tried again after the next round"
            )
            note = f"no checkpoint of this round was written: {error}. {follows}"
            strategy.history[-1].notes.append(note)
            log(WARNING, "No checkpoint of round %d was written: %s", number, error)
        else:
            self._saved = len(strategy.history)

    def _encoded(self, strategy: Resumable) -> tuple[dict[str, Any], Encoder]:
        """Return the run's state as JSON, and what wrote it, with its arrays."""
        encoder = Encoder(self._remembered.there)
        attributes = self._remembered.attributes()
        nodes = {name: encoded(encoder, value, name) for name, value in attributes.items()}
        values = (self._loop.result.arrays, self._configs, strategy.state())
        nodes |= {name: encoder.encode(v, name) for name, v in zip(_STATE, values, strict=True)}
        encoder.check()
        return nodes, encoder

    def _take_up(self, strategy: Resumable, saved: Checkpoint) -> None:
        about, remembered = saved.manifest, self._remembered
        check_same(about, self._about, self._folder.path, remembered.attributes())
        self._about["made"] = about["made"]
        decoder = Decoder(saved.arrays, remembered.there)
        values = {name: decoder.decode(node) for name, node in about["state"].items()}
        model, configs, state = (values.pop(name) for name in _STATE)
        self._loop.result.arrays, self._loop.stopped = model, about["stopped"]
        records: list[RoundRecord] = []
        for line in saved.lines:
            records.append(self._read_line(line, records))
        self._saved = len(records)
        strategy.restore(state)
        strategy.restore_history(records)
        remembered.restore(values)
        for name, config in self._configs.items():
            config.clear()
            config.update(configs[name])

    def _line(self, history: list[RoundRecord], place: int) -> str:
        """Return what is kept of a round: its record, and what its metrics were."""
        # Without its clients where they are those of the round before: there may be thousands.
        record, values = history[place], dict(vars(history[place]))
        if place and record.clients == history[place - 1].clients:
            del values["clients"]
        numbers = (0, 1) if record.round == 1 else (record.round,)
        metrics = {name: getattr(self._loop.result, name) for name in _METRICS}
        kept = {name: {n: of[n] for n in numbers if n in of} for name, of in metrics.items()}
        encoder = Encoder()
        node = encoder.encode(kept, "the metrics")
        if encoder.arrays:
            raise UnsavableError(f"the metrics of round {record.round} hold arrays: keep numbers")
        return json.dumps({"record": values, "metrics": node})

    def _read_line(self, line: str, before: list[RoundRecord]) -> RoundRecord:
        """Take up what was kept of a round, after those before it."""
        kept = json.loads(line)
        for name, by_round in Decoder({}).decode(kept["metrics"]).items():
            getattr(self._loop.result, name).update(by_round)
        clients = {"clients": before[-1].clients} if before else {}
        return RoundRecord(**{**clients, **kept["record"]})
