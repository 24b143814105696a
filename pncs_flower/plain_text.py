"""What others print, made fit for one line or a file."""

import re
import unicodedata

__all__ = ["in_one_line", "one_line", "without_colours"]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def without_colours(text: str) -> str:
    """Return a text without a terminal's control sequences, such as those for colours."""
    return _ANSI.sub("", text)


def in_one_line(text: str) -> str:
    """Return what a stranger says as one line without control characters, fit for a log."""
    plain = without_colours(text)
    controls = ("Cc", "Cs")
    shown = (" " if unicodedata.category(letter) in controls else letter for letter in plain)
    return " ".join("".join(shown).split())


def one_line(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {without_colours(str(error))}".strip().splitlines()[0]
