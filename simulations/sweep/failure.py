"""What is left of a job that fails, in whatever process that was."""

from traceback import format_exception
from typing import NamedTuple, Self


class Failure(NamedTuple):
    """Why a job failed, and where."""

    error: Exception
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return what is to be said of an error."""
        return cls(error, "".join(format_exception(error)))
