"""What a report on a sweep is to show, and which of the paper's claims it is to judge."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "check_claim"]

_CLAIMS: dict[str, tuple[str, ...]] = {
    "best": (),
    "similar": ("within",),
    "sooner": ("target", "by", "after"),
    "ahead": ("from",),
}


@dataclass(frozen=True)
class Report:
    """What a report on a sweep shows.

    Attributes
    ----------
    reference : str
        The line that every other is tested against; the first if empty.
    rounds : tuple of int
        Rounds whose accuracy has a column.
    targets : tuple of float
        Accuracies (0 to 1) of which the report says when they are reached.
    claims : tuple of mapping
        What the paper says; see `check_claim`.
    """

    reference: str = ""
    rounds: tuple[int, ...] = ()
    targets: tuple[float, ...] = (0.4, 0.5, 0.6)
    claims: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for number in self.rounds:
            if number < 1:
                raise ValueError(f"report.rounds: {number} must be at least 1")
        for target in self.targets:
            if not 0 < target <= 1:
                raise ValueError(f"report.targets: {target} must be above 0 and at most 1")
        for claim in self.claims:
            check_claim(claim)


def check_claim(claim: Mapping[str, Any]) -> None:
    """Refuse a claim that cannot be judged.

    Parameters
    ----------
    claim : mapping
        ``text``, ``against`` (lines) and ``kind``: ``"best"`` (the reference has the highest
        converged accuracy), ``"similar"`` (all within ``within`` of each other), ``"sooner"`` (it
        reaches ``target`` in the median ``by`` a round, the others later than ``after``) or
        ``"ahead"`` (in every round from ``from`` on).

    Raises
    ------
    ValueError
        If a key is missing or unknown, or a value is not what it should be.
    """
    kind = claim.get("kind")
    if not isinstance(kind, str) or kind not in _CLAIMS:
        raise ValueError(f"a claim's kind = {kind!r} must be one of {', '.join(_CLAIMS)}")
    wanted = {"text", "kind", "against", *_CLAIMS[kind]}
    if set(claim) != wanted:
        raise ValueError(f"a claim of kind {kind} has {sorted(claim)}, but needs {sorted(wanted)}")
    if not isinstance(claim["text"], str) or not claim["text"].isprintable():
        raise ValueError(f"a claim's text = {claim['text']!r} must be printable text")
    against = claim["against"]
    if (
        not isinstance(against, list | tuple)
        or not against
        or not all(isinstance(line, str) for line in against)
    ):
        raise ValueError(f"a claim's against = {against!r} must be a list of rules, at least one")
    for key in _CLAIMS[kind]:
        value = claim[key]
        if key in ("within", "target"):
            good = isinstance(value, int | float) and type(value) is not bool and 0 < value <= 1
            limits = "a number above 0 and at most 1"
        else:
            good, limits = type(value) is int and value >= 1, "a whole number, at least 1"
        if not good:
            raise ValueError(f"a claim's {key} = {value!r} must be {limits}")
