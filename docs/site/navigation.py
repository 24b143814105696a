"""The front page and the navigation, made from README.md and docs/index.md, and links between them.

All is written as people read it on GitHub, so that it is there and here, and written once.
"""

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_SECTION = re.compile(r"^## (.+)\n((?:.*\n)*?)(?=^## |\Z)", re.M)
_PAGE = re.compile(r"^- \[(.+?)\]\(([\w/-]+)\.md\)", re.M)
_README = re.compile(r"^\[.+\]\(\.\./README\.md\)$", re.M)
_READ_ON = "## Read on\n"
_LINK = re.compile(r"\]\((?!\w+:|#)(docs/)?")
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


def front(text: str, readme: str) -> str:
    """Return the front page with what the README says in the place of the line that links to it.

    Left out are its title and, from `Read on` to its end, links that the front page has itself.
    """
    body = readme.partition("\n")[2].partition(_READ_ON)[0].strip()
    body = _LINK.sub(lambda found: "](" if found[1] else "](../", body)
    return _README.sub(lambda _: body, text, count=1)


def outside(text: str, page: Path, docs: Path) -> str:
    """Point links to files of the repository at where it is, if that is known; else at nothing.

    A build on GitHub knows it. Anywhere else the file's name is all that a reader needs. The README
    is the front page.
    """
    root = docs.parent
    server, repository = (os.environ.get(f"GITHUB_{each}") for each in ("SERVER_URL", "REPOSITORY"))

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if docs in target.parents:
            return found[0]
        if not target.exists() or root not in (target, *target.parents):
            raise ExtensionError(f"{page.name} links to {found[2]}, which is not there")
        if target == root / "README.md":
            index = Path(os.path.relpath(docs / "index.md", page.parent)).as_posix()
            return f"[{found[1]}]({index}{found[3] or ''})"
        if not server or not repository:
            return found[1]
        kind = "tree" if target.is_dir() else "blob"
        where = target.relative_to(root).as_posix()
        return f"[{found[1]}]({server}/{repository}/{kind}/main/{where}{found[3] or ''})"

    return _OUTSIDE.sub(link, text)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    path, docs = Path(app.env.doc2path(name)), Path(app.srcdir)
    text = source[0]
    if name == "index" and _README.search(text):
        text = front(text, (docs.parent / "README.md").read_text(encoding="utf-8"))
    text = outside(text, path, docs)
    source[0] = toctrees(text) if name == "index" else text


def setup(app: Sphinx) -> dict[str, Any]:
    """Have each page read with these."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
