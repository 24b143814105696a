"""What a selection rule is: a few pure functions of a state and a round.

A rule knows nothing of Flower, grids or messages. The same rule with the same state, round and
summaries makes the same choice, on any engine and after any restart.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from pncs_flower.fit import SketchFit
from pncs_flower.protocol import SummaryRequest
from pncs_flower.randomness import generator
from pncs_flower.tags import Tags

__all__ = [
    "Choice",
    "Metrics",
    "Round",
    "RuleState",
    "SelectionRule",
    "Summary",
    "check_rule",
    "parameters",
    "replaced",
]

RuleState = Mapping[str, Any]
"""What a rule remembers between rounds: JSON values and NumPy arrays, by name."""

Metrics = Mapping[str, float]
"""The numbers that a client reported with its update, such as ``"num-examples"``."""

Summary = Mapping[str, np.ndarray]
"""What a client sent in the pre-round: its decoded sketch of each layer, shape (r,), or of all
layers as one vector, ``"*"``, if the request is ``whole``; or, where it was asked for its loss,
``"loss"`` and ``"num-examples"``, each of shape (1,)."""


@dataclass(frozen=True)
class Round:
    """A round as a rule sees it.

    Attributes
    ----------
    number : int
        Counts from 1.
    seed : int
        The strategy's seed.
    num_selected : int
        How many clients to choose.
    available : tuple of str
        Keys of the clients that may be chosen, the longest waiting first, then the smaller key: a
        rule that takes the first among equals follows the library's rule for ties.
    last_rounds : mapping of str to int
        The round in which each available client was last chosen, whether or not its update came; 0
        for never.
    num_examples : mapping of str to float
        How many training examples clients have, as far as they have said.
    clients : tuple of str
        Keys of all clients that take part, also of those that cool down or have failed and step
        back. (In `candidates`, without those that step back.)
    asked : tuple of str (default: empty)
        Keys of the clients that were asked in this round's pre-round, once they were; without those
        that rest and were asked for the combination alone.
    last_asked : mapping of str to int (default: empty)
        The round before this one in which each client was last asked, whether or not it answered;
        clients that never were are absent.
    shares : mapping of str to float (default: empty)
        The weight of each client in the mean of all, as far as it is known; of sum 1.
    chances : mapping of str to float (default: empty)
        The probability with which each client was to be asked, where these differ.
    tags : mapping of str to mapping (default: empty)
        What clients say of themselves, such as their site, by name: of those that say something
        (`SummaryMod` of their app, ``tags=``). Nobody has checked that it is true.
    fit : SketchFit, optional (default: None)
        What the combination is to fit, where it fits sketches: for a rule that chooses for it.
    seconds : mapping of str to float (default: empty)
        In `observe`: how long the chosen took, from the message to the reply, in simulated seconds
        with ``devices``, else as measured in a deployment; of one that was too late, how long it
        was waited for. Empty in a simulation without devices.
    """

    number: int
    seed: int
    num_selected: int
    available: tuple[str, ...]
    last_rounds: Mapping[str, int]
    num_examples: Mapping[str, float]
    clients: tuple[str, ...]
    asked: tuple[str, ...] = ()
    last_asked: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    chances: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, Tags] = field(default_factory=dict)
    fit: SketchFit | None = field(default=None, compare=False, repr=False)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a random generator that depends on seed, round and purpose alone."""
        return generator(self.seed, purpose, self.number)


@dataclass(frozen=True)
class Choice:
    """What a rule decided.

    Attributes
    ----------
    clients : tuple of str
        Keys of the chosen clients.
    mean_similarity : float or None (default: None)
        Mean similarity over the pairs of chosen clients, if the rule computes it.
    optimal : bool or None (default: None)
        Whether the chosen set is proved to be the best by the rule's own measure.
    state : mapping, optional (default: None)
        The rule's state from here on; None leaves it as it is.
    by_layer : mapping of str to tuple of str (default: empty)
        For a choice of its own for each layer: the clients whose values of that layer count. All of
        them together are ``clients``.
    similarity : pair of a sequence and an array, optional (default: None)
        The clients compared, and the similarity of every two of them, shape (K, K), where the rule
        computes it: for who listens, see `RoundListener.chosen`.
    chances : mapping of str to float (default: empty)
        The probability with which each of the chosen was to be chosen, where the rule has drawn
        them and these differ: an update then weighs in a mean by its client's weight over it. Not
        with ``by_layer``.
    """

    clients: tuple[str, ...]
    mean_similarity: float | None = None
    optimal: bool | None = None
    state: RuleState | None = None
    by_layer: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    similarity: tuple[Sequence[str], np.ndarray] | None = field(default=None, compare=False)
    chances: Mapping[str, float] = field(default_factory=dict)


class SelectionRule(ABC):
    """A rule for choosing clients. Subclass it as a frozen dataclass of the rule's parameters.

    Only `select` must be written. The rest is for rules that ask the clients for something or
    remember something.
    """

    num_selected: int
    """How many clients a round selects."""
    chooses_unasked: ClassVar[bool] = False
    """Whether clients may be chosen that were not asked in the pre-round."""
    # What does not go with these is refused when the strategy is made, not at the first choice.
    per_layer: bool = False
    """Whether it chooses for each layer, `Choice.by_layer`."""
    draws: ClassVar[bool] = False
    """Whether it draws some clients more often than others, `Choice.chances`."""

    def __repr__(self) -> str:
        # Goes into records and checkpoints, so it must be the same in another process.
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__qualname__}({values})"

    @property
    def request(self) -> SummaryRequest | None:
        """What each candidate is asked for before the choice; None asks nobody."""
        return None

    def initial_state(self) -> RuleState:
        """Return the state before the first round."""
        return {}

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Return the clients to ask in the pre-round; all that are available by default."""
        return now.available

    def chances(self, now: Round) -> Mapping[str, float]:
        """Return the probability with which `candidates` has each client, where these differ."""
        return {}

    @abstractmethod
    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose clients.

        Parameters
        ----------
        state : mapping
            What the rule remembers.
        now : Round
            The round. Clients that were asked and did not answer are no longer available; where
            fewer are left than a round selects, ``num_selected`` is their number.
        summaries : mapping of str to Summary
            The answers by client, in the order of ``now.available``, and then those of clients
            that were asked but cannot be chosen; empty if nobody was asked.

        Returns
        -------
        Choice
            ``now.num_selected`` of the available clients, or so many for each layer.
        """

    def observe(self, state: RuleState, now: Round, delivered: Mapping[str, Metrics]) -> RuleState:
        """Return the state after the round, given who delivered an update and its metrics."""
        return state

    def forget(self, state: RuleState, client: str) -> RuleState:
        """Return the state without a client, which has left for good.

        Its entries in mappings and its key in lists go, however deep, which is enough unless
        a rule keeps arrays with a row for each client.
        """
        return {name: _without(value, client) for name, value in state.items()}


def _without(value: Any, client: str) -> Any:
    """Return a value without a client's entries and key."""
    if isinstance(value, Mapping):
        return {key: _without(each, client) for key, each in value.items() if key != client}
    if isinstance(value, list | tuple):
        kept = (each for each in value if not (isinstance(each, str) and each == client))
        return type(value)([_without(each, client) for each in kept])
    return value


def parameters(rule: type[SelectionRule]) -> dict[str, "Field[Any]"]:
    """Return a rule's fields by the names that users give them, which ``metadata`` may say."""
    found: tuple[Field[Any], ...] = fields(rule) if is_dataclass(rule) else ()
    return {each.metadata.get("name", each.name): each for each in found if each.init}


def replaced(rule: SelectionRule, **values: object) -> None:
    """Put values of one form in place of what a frozen rule was given; for ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(rule, name, value)


def check_rule(rule: object) -> None:
    """Refuse what is no rule, also the class of one; TypeError."""
    if isinstance(rule, type) and issubclass(rule, SelectionRule):
        raise TypeError(f"rule is the class {rule.__name__}: make one of it, {rule.__name__}(...)")
    if not isinstance(rule, SelectionRule):
        raise TypeError(f"rule is {rule!r}, but must be a SelectionRule")
    if not hasattr(rule, "num_selected"):
        raise TypeError(f"the rule {rule} has no num_selected, how many clients a round selects")
    if not isinstance(rule.request, SummaryRequest | None):
        raise TypeError(f"request of the rule {rule} is {rule.request!r}, want a SummaryRequest")
