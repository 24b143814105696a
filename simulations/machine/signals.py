"""Signals to end: what is to be cleaned up is, and the exit code is the signal's."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_IGNORED = dict.fromkeys(_ENDING, signal.SIG_IGN)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn the first signal to end into SystemExit, and heed no other until the process ends."""
    # The block ends with the signal's exit code, whatever a library makes of it.
    received: list[int] = []
    before = _handlers()

    def leave(number: int, frame: object) -> None:
        received.append(number)
        _set_handlers(_IGNORED)
        raise SystemExit(128 + number)

    # One that is ignored stays so, as nohup leaves it.
    _set_handlers({each: leave for each, now in before.items() if now is not signal.SIG_IGN})
    try:
        yield
    finally:
        if received:
            raise SystemExit(128 + received[0])
        _set_handlers(before)


@contextmanager
def keeping_handlers() -> Iterator[None]:
    """Put the handlers of signals back in their place, where a library puts its own there."""
    before = _handlers()
    yield
    # Not after an exception: a signal may have come, after which no other is heeded.
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


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _ENDING}


def _set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # as it is where it was not set by Python
            signal.signal(number, handler)
