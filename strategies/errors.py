"""The errors that end a run, each with what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR

from flwr.common import log


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


class UnsavableError(SelectionError, TypeError):
    """Something that a strategy remembers cannot be written to a checkpoint and read back."""


@contextmanager
def named(function: str, whose: str, number: int) -> Iterator[None]:
    """Have an error in somebody else's code tell whose it is, and in which round it was."""
    # Errors of the library and of Flower tell what they are about, and pass. Any other is logged
    # with its traceback, which a server may not print of an error that ends a run.
    try:
        yield
    except Exception as error:
        if isinstance(error, SelectionError) or type(error).__module__.partition(".")[0] == "flwr":
            raise
        text = f"{function} of {whose} raised {type(error).__name__} in round {number}: {error}"
        log(ERROR, "%s", text, exc_info=error)
        # contextlib takes an error whose cause is a StopIteration for that StopIteration.
        raise SelectionError(text) from (None if isinstance(error, StopIteration) else error)
