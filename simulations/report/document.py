"""A page as its parts, written as HTML and as Markdown with the same words and numbers.

Texts may have ``**bold**``, code between backticks and ``[links](page.md)``, as in Markdown.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from markupsafe import Markup, escape

from pncs_flower.files import write_whole

from .page import write_page

_WIDTH = 118  # characters of a line of Markdown
_RICH = (
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"`(.+?)`"), r"<code>\1</code>"),
    # The page lies elsewhere than the documentation: there a link has nowhere to lead.
    (re.compile(r"\[(.+?)\]\((\S+?)\)"), r"\1 (docs/\2)"),
)


class Words(NamedTuple):
    """A paragraph."""

    text: str
    kind: str = "words"


class Items(NamedTuple):
    """A list."""

    texts: Sequence[str]
    kind: str = "items"


class Sheet(NamedTuple):
    """A table, what it is called, and what its columns mean."""

    id: str
    title: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    look: str = "sortable"  # classes of HTML: with "words" too, cells have lines
    kind: str = "sheet"


class Command(NamedTuple):
    """A command to give."""

    text: str
    kind: str = "command"


class Drawing(NamedTuple):
    """A picture: on the page as it is, and for Markdown the file beside it."""

    svg: Markup
    words: str
    file: str
    kind: str = "drawing"


Part = Words | Items | Sheet | Command | Drawing


class Section(NamedTuple):
    """Parts below a heading, which a page's list of sections calls by a shorter name."""

    id: str
    title: str
    short: str
    parts: Sequence[Part]


def write_both(
    path: Path, title: str, lead: str, sections: Sequence[Section], *, twin: str
) -> Path:
    """Write a page and, with another name beside it, its twin in Markdown; return the page."""
    write_whole(path.with_name(twin), _markdown(title, lead, sections))
    return write_page(path, "document.html", title=title, lead=lead, sections=sections, rich=rich)


def rich(text: str) -> Markup:
    """Return a text as HTML."""
    html = str(escape(text))
    for pattern, instead in _RICH:
        html = pattern.sub(instead, html)
    return Markup(html)


def _markdown(title: str, lead: str, sections: Sequence[Section]) -> str:
    blocks = [f"# {title}", _filled(lead)]
    for section in sections:
        blocks += [f"## {section.title}", *map(_block, section.parts)]
    return "\n\n".join(blocks) + "\n"


def _block(part: Part) -> str:
    if isinstance(part, Words):
        return _filled(part.text)
    if isinstance(part, Items):
        return "\n".join(_filled(text, "- ", "  ") for text in part.texts)
    if isinstance(part, Command):
        return f"```console\n$ {part.text}\n```"
    if isinstance(part, Drawing):
        return f"![{part.words}]({part.file})"
    lines = [part.headings, ["---"] * len(part.headings), *part.rows]
    table = "\n".join(f"| {' | '.join(c.replace('|', '/') for c in line)} |" for line in lines)
    if not part.caption:
        return table  # the heading above says what it is
    return f"{_filled(f'**{part.title}.** {part.caption}')}\n\n{table}"


def _filled(text: str, first: str = "", other: str = "") -> str:
    return fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=other,
        break_long_words=False,
        break_on_hyphens=False,
    )
