"""What others print, made fit for one line or a file."""

import re

__all__ = ["one_line", "without_colours"]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def without_colours(text: str) -> str:
    """Return a text without a terminal's control sequences, such as those for colours."""
    return _ANSI.sub("", text)


def one_line(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {without_colours(str(error))}".strip().splitlines()[0]
