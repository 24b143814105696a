"""Which parameters the library's rules have, without importing them, which takes seconds."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

from .choices import APP_DIRECTORY

_RULES = APP_DIRECTORY.parent / "strategies" / "rules"


@cache
def declared_parameters(strategy: str) -> tuple[str, ...]:
    """Return the parameters that a rule has besides how many it selects, as users give them."""
    file = _RULES / f"{strategy.replace('-', '_')}.py"
    (rule,) = (name for name in _classes(file) if name.endswith("Rule"))
    return tuple(name for name in _fields(file, rule) if name != "num_selected")


def _classes(file: Path) -> dict[str, ast.ClassDef]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {each.name: each for each in body if isinstance(each, ast.ClassDef)}


def _fields(file: Path, name: str) -> dict[str, None]:
    """Return the fields of a dataclass, those of its bases first; none of any other class."""
    own = _classes(file).get(name)
    if own is None:
        return _fields(_imported_from(file, name), name)
    if not any("dataclass" in ast.unparse(each) for each in own.decorator_list):
        return {}
    found: dict[str, None] = {}
    for base in own.bases:
        found |= _fields(file, ast.unparse(base))
    for line in own.body:
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation):
            found[_given_name(line)] = None
    return found


def _imported_from(file: Path, name: str) -> Path:
    """Return the file of this package that another one has a name from."""
    for line in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and name in (each.name for each in line.names):
            return file.parents[line.level - 1] / f"{line.module}.py"
    raise AssertionError(f"{file} has no {name}")


def _given_name(line: ast.AnnAssign) -> str:
    """Return what users call a field: its name, or what ``metadata`` says."""
    about: dict[str, Any] = {}
    for keyword in line.value.keywords if isinstance(line.value, ast.Call) else ():
        if keyword.arg == "metadata":
            about = ast.literal_eval(keyword.value)
    return str(about.get("name", ast.unparse(line.target)))
