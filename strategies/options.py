"""The options that every selection strategy takes, checked once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal

from pncs_flower.devices import Device, Fleet, as_fleet

from . import timeouts
from .callback import OnRecord
from .checks import (
    check_above_zero,
    check_flags,
    check_one_of,
    check_paths,
    check_seconds,
    check_whole,
    given,
)
from .combination import Combination

__all__ = ["SelectionOptions"]


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Options that every selection strategy takes.

    Attributes
    ----------
    queue_length : int or None (default: 0)
        Length of the Age-of-Update queue, in clients: a client selected in round t may be selected
        again in round t' > t + queue_length / num_selected. None: a client rests as long as leaves
        more than ``num_selected`` to choose from, and at most twice as many. With K clients that
        are there and have not failed lately, less ``extra``, these are ceil(K / num_selected) - 2
        rounds: 3 with 2 of 10, 8 with 10 of 100. It is worked out anew in each round.
    rest_rounds : int, optional (default: None)
        The same in rounds, in place of ``queue_length``: a client selected in round t may be
        selected again after so many rounds more, in t' > t + rest_rounds.
    seed : int (default: 0)
        Seed of everything random in sketches and choices, from -2**63 to 2**63 - 1.
    eligible : callable, optional (default: None)
        ``eligible(key) -> bool``: whether a client may take part at all; or, of a function that
        must have two arguments, ``eligible(key, tags)``, with what the client says of itself.
    min_clients : int, optional (default: None)
        Wait for this many clients, eligible or not, before the first round. If None, those with
        ``num-partitions`` in their node config, as simulated ones have it, say how many there are.
    wait_timeout : float (default: `timeouts.WAIT`)
        Seconds to wait for clients to connect and to introduce themselves. In the first round the
        time starts with the first answer of a client, but see ``start_timeout``.
    start_timeout : float (default: `timeouts.START`)
        Seconds to wait, from the start on, for connected clients that have not answered yet (Ray
        starts, their app imports), while fewer than ``num_selected`` have. At least
        ``wait_timeout``.
    summary_timeout : float (default: `timeouts.SUMMARIES`)
        Seconds to wait for the summaries; the rule then chooses among those that arrived.
    max_summary_bytes : int, optional (default: None)
        Refuse a sketch with which a summary would take more bytes than this. What a client sends is
        never more than its sketch takes: longer answers are rejected before they are read.
    history_path : str or Path, optional (default: None)
        A file to which the record of each round is appended, as a line of JSON. With a checkpoint,
        it holds the records of this run and no others.
    on_record : callable, optional (default: None)
        ``on_record(row)`` is called with each round that is whole, evaluations and all: a dict as
        `RoundRecord.to_dict` has it, with Flower's ``train_metrics_clientapp``,
        ``evaluate_metrics_clientapp`` and ``evaluate_metrics_serverapp`` of the round beside it, a
        dict each; nothing in it may be changed. What it raises is a note in the record and a
        warning in the log, and the run goes on. A run that is taken up does not call it again for
        rounds that are saved. (A round is told when the next one begins, or the run ends. Where
        another strategy is around this one, or the server an older one, no end is heard: a round
        is told after the evaluation on the clients, and the last one only if there is one.)
    checkpoint : str or Path, optional (default: None)
        A folder in which the run is saved after each round. Where it holds a run already, `start`
        goes on in the round after, if the settings are the same (but for `settings.MAY_DIFFER`).
        Clients must not depend on what they remember of earlier rounds. What the base strategy
        remembers must be such as can be saved without pickle, else it is an error before the first
        round; its attribute ``not_in_checkpoint`` names attributes that a resumed run does without.
    min_summaries : int (default: 1)
        Fewer summaries than this, of clients that may be chosen, are not enough to choose by.
    on_too_few_summaries : {"longest-waiting", "stop"} (default: "longest-waiting")
        What to do then: choose the clients that have waited longest, or stop with an error. If
        nobody ever sent a summary that can be used, it is an error in either case.
    min_updates : int (default: 1)
        Fewer updates than this are not aggregated: the model stays as it is.
    max_empty_rounds : int (default: 3)
        Stop after so many rounds in a row without an update; each tries others, if there are any.
    max_weight : float (default: 1e9)
        The most that a client's weight in the mean, its number of examples, may be.
    clip_norm : float, optional (default: None)
        Scale updates (weights after minus weights before) down to this L2 norm.
    combine : str or Combination (default: "mean")
        How what the chosen delivered becomes the new model, through the base strategy: their
        ``"mean"``; ``"surrogates:0.8"``, ``"fedvarp"`` and ``"mifa"`` let the last updates of the
        others count too; ``"sketched-mean"`` fits the mean of all clients. See
        `pncs_flower.strategies.combinations`.
    verify_sketches : bool, optional (default: None)
        Compare the sketch of a local update with the update that its client delivers, and leave
        out a client for the rest of the run whose sketch is that of another. Training must be
        reproducible, as a client that lost the update it kept trains again. If None, where the
        combination fits sketches.
    ride_along : bool (default: True)
        Ask for the next round's summaries in the exchange that evaluates this round's model. Where
        the answers are of no use (other clients take part, the base strategy changed its message,
        too few answered), a pre-round of its own is held. After two such rounds in a row, not
        counting those where clients came or went, it tries again 2, 4, ... and at most 16 later.
    devices : str, Path, mapping or Fleet, optional (default: None)
        Simulate what clients run on, and keep a clock: the name of a preset (``"phones"``,
        ``"cross-silo"``, ``"uniform"``), the path of a ``.csv`` or ``.json`` file, a mapping of
        clients' keys to `pncs_flower.devices.Device`, or a `pncs_flower.devices.Fleet`. The records
        then say what each phase would have taken, and who is not there is neither asked nor
        chosen. Nobody waits for simulated time.
    deadline : float, optional (default: None)
        Simulated seconds for which the server waits for the replies of an exchange (pre-round,
        training, evaluation); what comes later is lost. None: it waits for all.
    extra : int (default: 0)
        Choose so many clients beyond ``num_selected``, as far as they are there and free; the first
        ``num_selected`` whose updates arrive, in simulated time, count.
    """

    queue_length: int | None = 0
    rest_rounds: int | None = None
    seed: int = 0
    eligible: Callable[..., bool] | None = None
    min_clients: int | None = None
    wait_timeout: float = timeouts.WAIT
    start_timeout: float = timeouts.START
    summary_timeout: float = timeouts.SUMMARIES
    max_summary_bytes: int | None = None
    history_path: str | Path | None = None
    on_record: OnRecord | None = None
    checkpoint: str | Path | None = None
    min_summaries: int = 1
    on_too_few_summaries: Literal["longest-waiting", "stop"] = "longest-waiting"
    min_updates: int = 1
    max_empty_rounds: int = 3
    max_weight: float = 1e9
    clip_norm: float | None = None
    combine: str | Combination = "mean"
    verify_sketches: bool | None = None
    ride_along: bool = True
    devices: "str | Path | Mapping[str, Device] | Fleet | None" = None
    deadline: float | None = None
    extra: int = 0

    @property
    def checkpoint_folder(self) -> Path | None:
        """The folder of the checkpoint."""
        return None if self.checkpoint is None else Path(self.checkpoint).expanduser()

    def clients_in_queue(self, num_selected: int) -> int | None:
        """Return the length of the queue in clients, however it was given; None if it varies."""
        if self.rest_rounds is None:
            return self.queue_length
        return self.rest_rounds * num_selected

    @classmethod
    def of(cls, options: Mapping[str, Any], strategy: type) -> "SelectionOptions":
        """Return the options of a kind of strategy, or raise TypeError for one it does not have."""
        shared = [field.name for field in fields(cls)]
        for name in options:
            if name not in shared:
                parameters = signature(strategy).parameters.values()
                own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
                known = [*own, *(option for option in shared if option not in own)]
                meant = get_close_matches(name, known, n=1)
                hint = f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(known)}"
                raise TypeError(f"{strategy.__name__} has no option {name!r}: {hint}")
        return cls(**options)

    def check(self, num_selected: int) -> None:
        """Raise TypeError or ValueError for an option that does not suit so many per round."""
        check_whole(
            least=1,
            num_selected=num_selected,
            min_summaries=self.min_summaries,
            min_updates=self.min_updates,
            max_empty_rounds=self.max_empty_rounds,
            **given(max_summary_bytes=self.max_summary_bytes),
        )
        check_whole(least=0, **given(queue_length=self.queue_length, rest_rounds=self.rest_rounds))
        if self.queue_length and self.rest_rounds is not None:
            raise ValueError(
                f"queue_length is {self.queue_length} and rest_rounds is {self.rest_rounds}, but "
                "both say how long a client rests: give one of them"
            )
        self._check_devices()
        check_whole(seed=self.seed, **given(min_clients=self.min_clients))
        check_seconds(
            wait_timeout=self.wait_timeout,
            start_timeout=self.start_timeout,
            summary_timeout=self.summary_timeout,
        )
        check_above_zero(max_weight=self.max_weight, **given(clip_norm=self.clip_norm))
        check_flags(ride_along=self.ride_along, **given(verify_sketches=self.verify_sketches))
        check_paths(history_path=self.history_path, checkpoint=self.checkpoint)
        check_one_of(("longest-waiting", "stop"), on_too_few_summaries=self.on_too_few_summaries)
        for name, function in {"eligible": self.eligible, "on_record": self.on_record}.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name} is {function!r}, but must be callable")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(
                f"seed is {self.seed}, but must be at least -2**63 and below 2**63, as it is sent "
                "to the clients in 64 bits"
            )
        if self.min_clients is not None and self.min_clients < num_selected:
            raise ValueError(
                f"min_clients is {self.min_clients}, but each round selects {num_selected}"
            )
        if self.min_updates > num_selected:
            raise ValueError(
                f"min_updates is {self.min_updates}, but num_selected is only {num_selected}"
            )

    def _check_devices(self) -> None:
        check_whole(least=0, extra=self.extra)
        check_seconds(**given(deadline=self.deadline))
        if self.devices is None and (self.deadline is not None or self.extra):
            what = f"extra is {self.extra}"
            if self.deadline is not None:
                what = f"deadline is {self.deadline}"
            raise ValueError(
                f"{what}, but devices is None: it is about simulated time. Say what the clients "
                'run on, devices="phones", or leave it out; for real time there is start(timeout=)'
            )
        if self.devices is not None:
            as_fleet(self.devices)


def takes_tags(eligible: Callable[..., bool] | None) -> bool:
    """Tell whether a function must be given a client's tags beside its key."""
    try:
        given = [] if eligible is None else signature(eligible).parameters.values()
    except (TypeError, ValueError):  # some that are written in C
        return False
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is Parameter.empty for p in given) == 2
