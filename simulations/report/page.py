"""A report as one HTML file that needs no other: blocks of page.html under headings."""

import base64
import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from pncs_flower.files import write_whole

__all__ = ["Section", "block", "picture", "write_csv", "write_page"]

_MACROS = (
    Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    .get_template("page.html")
    .module
)


class Section(NamedTuple):
    """What stands below a heading, or below the title if it has none."""

    heading: str
    blocks: Sequence[str]


def block(kind: str, *values: Any) -> Markup:
    """Return what a macro of page.html makes of some values, every text escaped."""
    return Markup(getattr(_MACROS, kind)(*values))


def picture(path: Path, text: str) -> Markup:
    """Return a picture within the page, with a text for those who cannot see it."""
    return block("picture", base64.b64encode(path.read_bytes()).decode(), text)


def write_page(path: Path, title: str, sections: Iterable[Section]) -> Path:
    """Write a page, whole or not at all."""
    write_whole(path, block("page", title, sections) + "\n")
    return path


def write_csv(path: Path, headings: str, rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV below its headings, whole or not at all."""
    text = StringIO(newline="")
    csv.writer(text).writerows([headings.split(","), *rows])
    write_whole(path, text.getvalue())
