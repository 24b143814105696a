"""Signals to end: what is to be cleaned up is, and the exit code is the signal's."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_IGNORED = dict.fromkeys(_ENDING, signal.SIG_IGN)
# Seconds in which another signal is the first one still: timeout sends it to a process and to its
# group, and a terminal that is closed may send two kinds.
_ONE = 1.0

_received: list[list[int]] = []  # in each `exit_on_signals` that goes on


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn the first signal to end into SystemExit; a later one ends the process at once."""
    # The block ends with the signal's exit code, whatever a library makes of it.
    received: list[int] = []
    _received.append(received)
    before, since = _handlers(), 0.0

    def leave(number: int, frame: object) -> None:
        nonlocal since
        if not received:
            since = time.monotonic()
            received.append(number)
            raise SystemExit(128 + number)
        if time.monotonic() - since > _ONE:  # cleaning up takes too long, or somebody keeps it up
            os._exit(128 + number)

    # One that is ignored stays so, as nohup leaves it.
    _set_handlers({each: leave for each, now in before.items() if now is not signal.SIG_IGN})
    try:
        yield
    finally:
        _received.pop()
        if received:
            raise SystemExit(128 + received[0])
        _set_handlers(before)


def end_if_signalled() -> None:
    """Raise SystemExit if a signal to end has come, and somebody's code has made little of it."""
    for number in chain(*_received):
        raise SystemExit(128 + number)


@contextmanager
def keeping_handlers() -> Iterator[None]:
    """Put the handlers of signals back in their place, where a library puts its own there."""
    before = _handlers()
    try:
        yield
    finally:
        _set_handlers(before)


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Finish cleaning up, whoever is impatient."""
    before = _handlers()
    _set_handlers(_IGNORED)
    try:
        yield
    finally:
        _set_handlers(before)


@contextmanager
def delaying_signals() -> Iterator[None]:
    """Have signals to end wait for the block's end: of what is raised in a fork nobody hears."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_the_caller() -> None:
    """Ignore signals to end in a forked process, which the calling one ends when it is time."""
    _set_handlers(_IGNORED)


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _ENDING}


def _set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # as it is where it was not set by Python
            signal.signal(number, handler)
