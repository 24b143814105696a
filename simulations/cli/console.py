"""What all commands share: where they write, how they read a setting, how an error is told."""

import contextlib
import errno
import io
import linecache
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from traceback import walk_tb
from typing import Any

import click
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..choices import Scalar, called_here, default_run_config
from ..how_far import listening
from ..timeouts import NEWS_IN_LOG

# Without markup: names, paths and titles may have brackets.
out = Console(markup=False, highlight=False)
"""For results."""

err = Console(stderr=True, markup=False, highlight=False)
"""For errors."""

_PACKAGE = "pncs_flower"
_OFTEN = 0.1  # seconds between two looks of a person at a bar
_traceback = False


class _CountColumn(MofNCompleteColumn):
    """How much is done of how much; nothing where that is not known."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


@contextlib.contextmanager
def progress_bar(
    what: str, total: int | None = None, *, thread: bool = True
) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar with the time that is left, in a terminal; and what takes long in between."""
    # Elsewhere, as in a log, there is now and then a line about what takes long. Without a thread
    # the bar moves when it is told to.
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _CountColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=out,
        auto_refresh=thread,
        disable=not out.is_terminal,
        transient=True,
    )
    parts: dict[str, TaskID] = {}
    last = time.monotonic()

    def show(part: str, done: int, total: int) -> None:
        nonlocal last
        if done < total and time.monotonic() - last < _OFTEN:
            return
        if out.is_terminal:
            last = time.monotonic()
            if part not in parts:
                parts[part] = bar.add_task(part, total=total)
            bar.update(parts[part], completed=done, refresh=not thread)
            if done >= total:
                bar.remove_task(parts.pop(part))
        elif time.monotonic() - last > NEWS_IN_LOG:
            last = time.monotonic()
            out.print(f"{part}: {done} of {total}")

    with bar, listening(show):
        yield bar, bar.add_task(what, total=total)


def note(text: str | None) -> None:
    """Tell a person what is no error, and may be of use to know; None is nothing to tell."""
    if text is not None:
        err.print(f"Note: {text}", soft_wrap=True)


def note_unused(unused: Mapping[str, Sequence[str]]) -> None:
    """Tell which settings are given and not read, by what does not read them."""
    for what, idle in unused.items():
        note(f"{what} does not use {', '.join(idle)}")


def show_tracebacks(wanted: bool) -> None:
    """Have `said_plainly` say where an error comes from, or only what it is."""
    global _traceback
    _traceback = wanted


def write_what_cannot_be_shown() -> None:
    """Have a terminal that lacks a character of a path or title show its code in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def said_plainly(full_disk: str = "make room") -> Iterator[None]:
    """Say in one sentence what a person can mend; anything else keeps its traceback."""
    # What this project does not check itself, so that it may be a fault of its own, comes with
    # what kind of error it is and how to see its traceback; see `show_tracebacks`.
    try:
        yield
    except ModuleNotFoundError as error:
        if _traceback or error.name is None or error.name.partition(".")[0] == _PACKAGE:
            raise
        _say_error(
            f"{error.name} is not installed: install pncs-flower with what the app needs, "
            '"pncs-flower[simulation]"'
        )
        raise typer.Exit(1) from None
    except (ValueError, OSError, RuntimeError) as error:
        if _traceback:
            _show_contexts(error)
            raise
        ours = _is_ours(error)
        kind = "" if ours or isinstance(error, OSError) else f"{type(error).__name__}: "
        text = f"{kind}{error}"
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            text += f": {full_disk}"
        notes = [*getattr(error, "__notes__", ())]
        if not ours:
            notes.append("Where it comes from: give the same command with --traceback")
        _say_error("\n".join([text, *notes]))
        raise typer.Exit(1) from None


def _is_ours(error: BaseException) -> bool:
    """Tell whether an error, and what it was made of, comes from a ``raise`` of this project."""
    frames = [*walk_tb(error.__traceback__)]
    if not frames:
        return False
    frame, line = frames[-1]
    raised = linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
    own = raised and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
    return own and (error.__cause__ is None or _is_ours(error.__cause__))


def _show_contexts(error: BaseException) -> None:
    """Undo each ``from None``, which keeps an error short where nobody asks for more."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__suppress_context__ = seen.__cause__ is not None
        seen = seen.__cause__ or seen.__context__


def _say_error(text: str) -> None:
    err.print(Text.assemble(("Error:", "bold red"), " ", text), soft_wrap=True)


def parse_setting(text: str, where: str = "--set ") -> tuple[str, Scalar]:
    """Read KEY=VALUE: numbers and truth values as TOML and Python write them, else text."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"{where}{text} must be KEY=VALUE, such as lr=0.05")
    context = click.get_current_context(silent=True)
    options = [name for each in context.command.params for name in each.opts] if context else []
    option = key if f"--{key}" in options else called_here(key)
    if f"--{option}" in options and option not in default_run_config():
        raise ValueError(f"{where}{text}: {key} is no setting, but an option: --{option} {value}")
    parsed = _read(value)
    # A folder may be called 2024, and a layer true.
    is_text = isinstance(default_run_config().get(key), str) and not isinstance(parsed, str)
    if not key.startswith("rule.") and (is_text or not isinstance(parsed, Scalar)):
        return key, value
    return key, parsed


def _read(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for read in (int, float, lambda text: tomllib.loads(f"value = {text}")["value"]):
        with contextlib.suppress(ValueError):
            return read(value)
    return value
