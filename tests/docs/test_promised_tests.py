"""The tests that pages name for what they promise: each is there, by its file and by its words."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r'`([\w/]*test_\w+\.py)(?: -k (?:"([^"`]+)"|(\w+)))?`')


@cache
def words_of(path: Path) -> str:
    """Return the names and texts in a file of tests, of which pytest makes what -k looks into."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    texts = [str(each.value) for each in nodes if isinstance(each, ast.Constant)]
    return " ".join([path.stem, *names, *texts]).lower()


def test_a_test_that_a_page_names_is_there() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    found = (ROOT / "tests").rglob("test_*.py")
    tests = {path.relative_to(ROOT).as_posix(): path for path in found}
    named = set(NAMED.findall(pages))
    assert len(named) > 100
    for name, several, one in named:
        paths = [path for place, path in tests.items() if f"/{place}".endswith(f"/{name}")]
        assert paths, name
        for word in {*re.findall(r"\w+", several or one)} - {"and", "or", "not"}:
            assert any(word.lower() in words_of(path) for path in paths), (name, word)
