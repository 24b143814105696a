"""What others print, made fit for one line."""

import pytest

from pncs_flower.plain_text import one_line, without_colours


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
