"""The errors that end a run, each with what to do about it."""

__all__ = ["NoSummariesError", "SelectionError", "TooFewClientsError"]


class SelectionError(RuntimeError):
    """A round could not be carried out."""


class TooFewClientsError(SelectionError):
    """Fewer clients take part than a round must select."""


class NoSummariesError(SelectionError):
    """Every client that was asked failed to send a summary that can be used."""
