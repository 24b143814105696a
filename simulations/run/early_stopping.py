"""Which rounds count: the best, the last, and the one after which a run is stopped early."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pncs_flower.plain_text import counted

LAST = 5  # rounds over which the converged score is the mean

_NOTE = "stopped early: no better"


def best_round(scores: Sequence[float]) -> int:
    """Return the first round with the best score; 0 is before training."""
    return max(range(len(scores)), key=scores.__getitem__)


def stop_note(scores: Sequence[float], patience: int, name: str = "accuracy") -> str | None:
    """Return the note of a round that is the last; None if the run goes on, as with patience 0."""
    best = best_round(scores)
    waited = len(scores) - 1 - best
    if not patience or waited < patience:
        return None
    rounds = counted(waited, "round")
    return f"{_NOTE} {name} for {rounds}; the best was {scores[best]:.3f}, after round {best}"


def is_stopped(notes: Iterable[str]) -> bool:
    """Tell from the notes of a round whether the run was stopped early after it."""
    return any(note.startswith(_NOTE) for note in notes)


def stopped_after(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the round after which a run was stopped early, from its rounds; None if it was not."""
    return int(rows[-1]["round"]) if rows and is_stopped(rows[-1]["notes"]) else None


def after_the_stop(rows: Sequence[Mapping[str, Any]], num_rounds: int) -> list[dict[str, Any]]:
    """Return the rounds of a stopped run as if it had gone on with its model, and sent nothing."""
    kept = {key: value for key, value in rows[-1].items() if key != "similarity"}
    for key in ("asked", "answered", "chosen", "delivered", "notes"):
        kept[key] = []
    for key in ("rejected", "chosen_by_layer", "bytes_up", "bytes_down", "seconds"):
        kept[key] = {}
    kept["simulated_seconds"] = {}
    return [{**kept, "round": n} for n in range(kept["round"] + 1, num_rounds + 1)]
