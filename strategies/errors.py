"""The errors that end a run, each with what to do about it."""

__all__ = [
    "DeadWorkerError",
    "EmptyRoundsError",
    "NoSummariesError",
    "SelectionError",
    "TooFewClientsError",
]


class SelectionError(RuntimeError):
    """A round could not be carried out."""


class TooFewClientsError(SelectionError):
    """Fewer clients take part than a round must select."""


class NoSummariesError(SelectionError):
    """Every client that was asked failed to send a summary that can be used."""


class EmptyRoundsError(SelectionError):
    """Too many rounds in a row ended without a single update."""


class DeadWorkerError(SelectionError):
    """A worker process of the simulation has died; Flower goes on handing it work."""
