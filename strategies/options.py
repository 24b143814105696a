"""The options that every selection strategy takes, checked once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

__all__ = ["CheckedOptions", "SelectionOptions"]

OnTooFew = Literal["longest-waiting", "stop"]


class SelectionOptions(TypedDict, total=False):
    """Options that every selection strategy takes.

    Attributes
    ----------
    queue_length : int (default: 0)
        Length of the Age-of-Update queue, in clients: a client selected in round t may be selected
        again in round t' > t + queue_length / num_selected.
    seed : int (default: 0)
        Seed of everything random in sketches and choices.
    eligible : callable, optional (default: None)
        ``eligible(key) -> bool``: whether a client may take part at all.
    min_clients : int, optional (default: None)
        Wait for this many clients before the first round. If None, simulated clients (those with
        ``num-partitions`` in their node config) say how many there are.
    wait_timeout : float (default: 60.0)
        Seconds to wait for clients to connect, and for a new one to introduce itself.
    summary_timeout : float (default: 600.0)
        Seconds to wait for the summaries; the rule then chooses among those that arrived.
    history_path : str or Path, optional (default: None)
        A file to which the record of each round is appended, as a line of JSON.
    checkpoint : str or Path, optional (default: None)
        A folder in which the run is saved after each round. Where it holds a run already, `start`
        goes on in the round after. Clients must not depend on what they remember of earlier rounds.
    min_summaries : int (default: 1)
        Fewer summaries than this are not enough to choose by.
    on_too_few_summaries : {"longest-waiting", "stop"} (default: "longest-waiting")
        What to do then: choose the clients that have waited longest, or stop with an error. If
        nobody ever sent a summary that can be used, it is an error in either case.
    min_updates : int (default: 1)
        Fewer updates than this are not aggregated: the model stays as it is.
    max_empty_rounds : int (default: 3)
        Stop after so many rounds in a row without an update.
    max_weight : float (default: 1e9)
        The most that a client's weight in the mean, its number of examples, may be.
    clip_norm : float, optional (default: None)
        Scale updates (weights after minus weights before) down to this L2 norm.
    verify_sketches : bool (default: False)
        Compare the sketch of a local update with the update that its client delivers, and leave
        out a client for the rest of the run whose sketch is that of another. Training must be
        reproducible, as a client that lost the update it kept trains again.
    ride_along : bool (default: True)
        Ask for the next round's summaries in the exchange in which this round's model is sent out
        for evaluation, which saves an exchange. Where the answers turn out to be of no use (other
        clients take part, the base strategy changed its message, too few answered), a pre-round of
        its own is held.
    """

    queue_length: int
    seed: int
    eligible: Callable[[str], bool] | None
    min_clients: int | None
    wait_timeout: float
    summary_timeout: float
    history_path: str | Path | None
    checkpoint: str | Path | None
    min_summaries: int
    on_too_few_summaries: OnTooFew
    min_updates: int
    max_empty_rounds: int
    max_weight: float
    clip_norm: float | None
    verify_sketches: bool
    ride_along: bool


@dataclass(frozen=True)
class CheckedOptions:
    """`SelectionOptions` with their defaults."""

    queue_length: int = 0
    seed: int = 0
    eligible: Callable[[str], bool] | None = None
    min_clients: int | None = None
    wait_timeout: float = 60.0
    summary_timeout: float = 600.0
    history_path: str | Path | None = None
    checkpoint: str | Path | None = None
    min_summaries: int = 1
    on_too_few_summaries: OnTooFew = "longest-waiting"
    min_updates: int = 1
    max_empty_rounds: int = 3
    max_weight: float = 1e9
    clip_norm: float | None = None
    verify_sketches: bool = False
    ride_along: bool = True

    def check(self, num_selected: int) -> None:
        """Raise ValueError if an option is out of range, for so many clients per round."""
        if num_selected < 1:
            raise ValueError(
                f"num_selected is {num_selected}, but a round selects at least 1 client"
            )
        if self.queue_length < 0:
            raise ValueError(
                f"queue_length is {self.queue_length}, but must be 0 (no queue) or more"
            )
        if self.min_clients is not None and self.min_clients < num_selected:
            raise ValueError(
                f"min_clients is {self.min_clients}, but each round selects {num_selected}"
            )
        for name in ("wait_timeout", "summary_timeout"):
            seconds = getattr(self, name)
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{name} is {seconds}, but must be a number of seconds above 0")
        for name in ("min_summaries", "min_updates", "max_empty_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.min_updates > num_selected:
            raise ValueError(
                f"min_updates is {self.min_updates}, but only {num_selected} clients are selected"
            )
        if self.on_too_few_summaries not in ("longest-waiting", "stop"):
            raise ValueError(
                f"on_too_few_summaries is {self.on_too_few_summaries!r}, but must be "
                "'longest-waiting' or 'stop'"
            )
        for name in ("max_weight", "clip_norm"):
            most = getattr(self, name)
            if most is not None and not most > 0:
                raise ValueError(f"{name} is {most}, but must be above 0")
