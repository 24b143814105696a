"""What others print, made fit for one line or a file."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

_LONGEST_REASON = 400
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


def plain_reason(reason: object) -> str:
    """Return the line of an error that says what happened, without colours and traceback."""
    lines = [line.strip() for line in without_colours(str(reason or "")).splitlines()]
    told = [line for line in lines if line] or ["no reason given"]
    return in_one_line(told[-1][-_LONGEST_REASON:])


def shortened(reason: str) -> str:
    """Return a reason cut to what a record should hold of it: it may quote what a client sent."""
    if len(reason) <= _LONGEST_REASON:
        return reason
    half = _LONGEST_REASON // 2
    return f"{reason[:half]} ... {reason[-half:]}"


def listed(names: Iterable[str]) -> str:
    """Return names in one text, set apart by semicolons where a comma is in one of them."""
    names = list(names)
    return ("; " if any("," in name for name in names) else ", ").join(names)


def first_of(texts: Sequence[str], most: int) -> str:
    """Return the first of some texts in one, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def in_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in one text, three and more in a row by their ends: ``"1, 4 to 7"``."""
    rows: list[list[int]] = []
    for number in sorted(numbers):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(
        f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows
    )


def counted(number: int, one: str, many: str = "") -> str:
    """Return how many there are of a thing: ``"1 client"``, ``"2 clients"``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def size_in_words(num_bytes: float) -> str:
    """Return an amount of memory to three places, ``"44 GB"``; 1 kB is 1,000 bytes."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
