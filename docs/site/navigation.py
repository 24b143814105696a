"""The navigation, made from the lists of docs/index.md, and links that leave docs/.

Both are written as people read them on GitHub, so the pages are the same there and here.
"""

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_SECTION = re.compile(r"^## (.+)\n((?:.*\n)*?)(?=^## |\Z)", re.M)
_PAGE = re.compile(r"^- \[(.+?)\]\(([\w/-]+)\.md\)", re.M)
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def toctrees(text: str) -> str:
    """Return the front page with a hidden toctree for each section that lists pages."""

    def with_toctree(section: re.Match[str]) -> str:
        pages = [f"{title} <{page}>" for title, page in _PAGE.findall(section[2])]
        if not pages:
            return section[0]
        lines = ["```{toctree}", ":hidden:", f":caption: {section[1]}", "", *pages, "```", "", ""]
        return section[0].rstrip("\n") + "\n\n" + "\n".join(lines)

    return _SECTION.sub(with_toctree, text)


def outside(text: str, page: Path, docs: Path) -> str:
    """Point links to files of the repository at where it is, if that is known; else at nothing.

    A build on GitHub knows it. Anywhere else the file's name is all that a reader needs.
    """
    root = docs.parent
    server, repository = (os.environ.get(f"GITHUB_{each}") for each in ("SERVER_URL", "REPOSITORY"))

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if docs in target.parents:
            return found[0]
        if not target.exists() or root not in (target, *target.parents):
            raise ExtensionError(f"{page.name} links to {found[2]}, which is not there")
        if not server or not repository:
            return found[1]
        kind = "tree" if target.is_dir() else "blob"
        where = target.relative_to(root).as_posix()
        return f"[{found[1]}]({server}/{repository}/{kind}/main/{where}{found[3] or ''})"

    return _OUTSIDE.sub(link, text)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    text = outside(source[0], path, Path(app.srcdir))
    source[0] = toctrees(text) if name == "index" else text


def setup(app: Sphinx) -> dict[str, Any]:
    """Have each page read with these."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
