"""What all commands share: where they write, how they read a setting, how an error is told."""

import contextlib
import errno
import tomllib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.text import Text

from .config import Scalar

__all__ = ["err", "out", "parse_setting", "said_plainly"]

# Without markup: names, paths and titles may have brackets.
out = Console(markup=False, highlight=False)
"""For results."""

err = Console(stderr=True, markup=False, highlight=False)
"""For errors."""


@contextlib.contextmanager
def said_plainly() -> Iterator[None]:
    """Say in one sentence what a person can mend; anything else keeps its traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "pncs_flower":
            raise
        _say_error(
            f"{error.name} is not installed: install pncs-flower with what the app needs, "
            '"pncs-flower[simulation]"'
        )
        raise typer.Exit(1) from None
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not isinstance(error, _plain_errors()):
            raise
        text = str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            text += ": make room and give the same command again, which goes on from there"
        _say_error(text)
        raise typer.Exit(1) from None


def _plain_errors() -> tuple[type[Exception], ...]:
    # Imported only now: Flower and torch take seconds, and a wrong setting is to be told at once.
    from pncs_flower.strategies import SelectionError

    from .flower_run import RunFailedError

    return SelectionError, RunFailedError


def _say_error(text: str) -> None:
    err.print(Text.assemble(("Error:", "bold red"), " ", text), soft_wrap=True)


def parse_setting(text: str) -> tuple[str, Scalar]:
    """Read key=value; a value that is no TOML number is text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text} must be KEY=VALUE, such as lr=0.05")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
    return key, parsed if isinstance(parsed, bool | int | float | str) else value
