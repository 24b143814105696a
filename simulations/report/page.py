"""A report as one HTML file that needs no other: page.html, filled with sections of blocks."""

import base64
import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from pncs_flower.files import write_whole

__all__ = [
    "Details",
    "Picture",
    "Points",
    "Section",
    "Table",
    "Text",
    "Warn",
    "bold",
    "verdict_of",
    "with_code",
    "write_csv",
    "write_page",
]

Point = tuple[str, Sequence["Point"]]
"""A text and the points below it."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Warn:
    """A paragraph that is not to be overlooked."""

    kind: ClassVar[str] = "warning"
    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    kind: ClassVar[str] = "points"
    items: Sequence[Point]


@dataclass(frozen=True)
class Details:
    """A list that is shown on demand."""

    kind: ClassVar[str] = "details"
    summary: str
    items: Sequence[Point]


@dataclass(frozen=True)
class Table:
    """A table, which scrolls where it is too wide; nothing if it has no rows."""

    kind: ClassVar[str] = "table"
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str


@dataclass(frozen=True)
class Picture:
    """A PNG within the page, with a text for those who cannot see it."""

    kind: ClassVar[str] = "picture"
    path: Path
    text: str

    @property
    def data(self) -> str:
        """The file in base64."""
        return base64.b64encode(self.path.read_bytes()).decode()


@dataclass(frozen=True)
class Section:
    """A heading, or none, and what stands below it."""

    heading: str
    blocks: Sequence[Text | Warn | Points | Details | Table | Picture]


def bold(text: str, wanted: bool = True) -> str:
    """Return a text as bold, if that is wanted."""
    return Markup("<strong>{}</strong>").format(text) if wanted else text


def verdict_of(claim: str, verdict: str) -> str:
    """Return a claim with what came of it."""
    return Markup("{}: <strong>{}</strong>").format(claim, verdict)


def with_code(text: str, code: str) -> str:
    """Return a text with what can be pasted into a terminal."""
    return Markup("{}: <code>{}</code>").format(text, code)


def write_page(path: Path, title: str, sections: Iterable[Section]) -> Path:
    """Write a page, whole or not at all; every text is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=loader, autoescape=True).get_template("page.html")
    write_whole(path, template.render(title=title, sections=sections) + "\n")
    return path


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, headings first, whole or not at all."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_whole(path, text.getvalue())
