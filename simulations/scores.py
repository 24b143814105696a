"""What a model is judged by: accuracy where it tells classes, R² where it tells numbers."""

from collections.abc import Mapping
from typing import Any

ACCURACY, R2 = "accuracy", "r2"

SCORES: Mapping[str, str] = {ACCURACY: "accuracy", R2: "R²"}
"""The key of each score in a round's row, and what a person calls it. Of each, more is better."""

LEAST: Mapping[str, float] = {ACCURACY: 0.0, R2: -1.0}
"""The lowest that each can be: what a run counts as that came to no end."""


def score_name(row: Mapping[str, Any]) -> str:
    """Return the key of a row's score."""
    return next(name for name in SCORES if name in row)


def score_of(row: Mapping[str, Any]) -> float | None:
    """Return a row's score; None before the end of the round, and where it is not finite."""
    score: float | None = row[score_name(row)]
    return score
