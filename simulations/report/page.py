"""A report as one HTML file that needs no other: its style, tables and pictures."""

import base64
import csv
from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO
from pathlib import Path

from pncs_flower.files import write_whole

__all__ = ["Row", "picture", "table", "write_csv", "write_page"]

Row = Sequence[str]

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 72rem; margin: 0 auto; padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
img { max-width: 100%; height: auto; display: block; margin: .5rem 0; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; padding: .3rem 0; color: #444; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; }
code { font-size: .8rem; overflow-wrap: anywhere; }
.warning { border-left: 4px solid #d55e00; padding: .3rem 1rem; margin: 1rem 0;
  background: #fdf3ec; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 3px solid #0072b2; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; }
  h2, caption { break-after: avoid; } img, tr { break-inside: avoid; }
  .scroll { overflow: visible; } table { font-size: 8pt; } th, td { padding: .15rem .35rem; } }
"""


def write_page(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page, whole or not at all.

    Parameters
    ----------
    path : Path
        The file.
    title : str
        Plain text.
    parts : iterable of str
        HTML, one after the other.
    """
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
    write_whole(path, page)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, headings first, whole or not at all."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_whole(path, text.getvalue())


def table(headings: Iterable[str], rows: Iterable[Row], caption: str) -> str:
    """Return a table whose cells are HTML already; it scrolls where it is too wide."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        '<div class="scroll" tabindex="0"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def picture(path: Path, text: str) -> str:
    """Return a picture within the page, with a text for those who cannot see it."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'
