"""What others print, made fit for one line."""

import pytest

from pncs_flower.plain_text import first_of, one_line, shortened, without_colours


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad\nand more"), "ValueError: bad"),
        (KeyError("a"), "KeyError: 'a'"),
        (StopIteration(), "StopIteration:"),
        (ValueError("\n"), "ValueError:"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (RuntimeError("\x1b[36m(pid=1)\x1b[0m died"), "RuntimeError: (pid=1) died"),
    ],
)
def test_error_is_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


def test_all_of_a_terminals_sequences_go() -> None:
    assert without_colours("\x1b[1;31mred\x1b[0m \x1b[?25lhidden\x1b[ q") == "red hidden"


def test_a_long_reason_is_cut_in_the_middle() -> None:
    assert shortened("short") == "short"
    assert len(shortened("a" * 10**6 + "b")) < 500
    assert shortened("a" * 10**6 + "b").endswith("ab")


def test_of_many_the_first_are_named_and_the_others_counted() -> None:
    assert first_of([], 2) == ""
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b", "c"], 2) == "a, b and 1 more"
