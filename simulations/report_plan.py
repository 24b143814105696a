"""What a report on a grid is to show, and which of the paper's claims it is to judge."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "check_claim"]

_CLAIMS = {
    "best": set[str](),
    "similar": {"within"},
    "sooner": {"target", "by", "after"},
    "ahead": {"from"},
}


@dataclass(frozen=True)
class Report:
    """What a report on a grid shows.

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
        If a key is missing or unknown.
    """
    kind = claim.get("kind")
    if kind not in _CLAIMS:
        raise ValueError(f"a claim's kind = {kind!r} must be one of {', '.join(_CLAIMS)}")
    wanted = {"text", "kind", "against"} | _CLAIMS[kind]
    if set(claim) != wanted:
        raise ValueError(f"a claim of kind {kind} has {sorted(claim)}, but needs {sorted(wanted)}")
