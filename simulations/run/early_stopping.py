"""Early stopping: a run ends after some rounds in a row without a better accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["after_the_stop", "best_round", "stop_note", "stopped_after"]

_NOTE = "stopped early: no better accuracy for"


def best_round(accuracies: Sequence[float]) -> int:
    """Return the first round with the best accuracy; 0 is before training."""
    return max(range(len(accuracies)), key=accuracies.__getitem__)


def stop_note(accuracies: Sequence[float], patience: int) -> str | None:
    """Return the note of a round that is the last; None if the run goes on, as with patience 0."""
    best = best_round(accuracies)
    waited = len(accuracies) - 1 - best
    if not patience or waited < patience:
        return None
    return f"{_NOTE} {waited} rounds; the best was {accuracies[best]:.3f}, after round {best}"


def stopped_after(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the round after which a run was stopped early, from its rounds; None if it was not."""
    notes = rows[-1]["notes"] if rows else ()
    return int(rows[-1]["round"]) if any(note.startswith(_NOTE) for note in notes) else None


def after_the_stop(rows: Sequence[Mapping[str, Any]], num_rounds: int) -> list[dict[str, Any]]:
    """Return the rounds of a stopped run as if it had gone on with its model, and sent nothing."""
    last = rows[-1]
    still: dict[str, Any] = {
        "asked": [],
        "answered": [],
        "chosen": [],
        "delivered": [],
        "rejected": {},
    }
    still |= {"chosen_by_layer": {}, "bytes_up": {}, "bytes_down": {}, "seconds": {}, "notes": []}
    kept = {key: value for key, value in last.items() if key != "similarity"}
    return [{**kept, **still, "round": n} for n in range(int(last["round"]) + 1, num_rounds + 1)]
