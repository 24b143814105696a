"""A report as one HTML file that needs no other; its words are in the templates here."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pncs_flower.files import write_whole

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
)


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Write a page, whole or not at all, every text escaped."""
    write_whole(path, _TEMPLATES.get_template(template).render(values) + "\n")
    return path


def write_csv(path: Path, headings: str, rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV below its headings, whole or not at all."""
    text = StringIO(newline="")
    csv.writer(text).writerows([headings.split(","), *rows])
    write_whole(path, text.getvalue())
