"""How far work has come that takes long and lies deep in a command, told to whoever listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is, and how much there is to do."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have a listener told of all work until the end of the block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(what: str, done: int, total: int) -> None:
    """Say how far some work has come; it is at its end when ``done`` is ``total``."""
    if (listener := _listener.get()) is not None:
        listener(what, done, total)
