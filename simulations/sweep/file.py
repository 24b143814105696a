"""A sweep's small TOML file, read and checked key by key."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..toml_file import read_toml
from .plan import Report
from .sweep import Sweep, tupled

__all__ = ["read_sweep"]

# By what the type of a key contains; the first that does.
_IN_WORDS = {
    "tuple[int": "a list of whole numbers",
    "tuple[str": "a list of texts",
    "tuple[float": "a list of numbers",
    "tuple": "a list of tables",
    "Mapping": "a table",
    "int": "a whole number",
    "str": "text",
}


def read_sweep(path: Path) -> Sweep:
    """Read a sweep's TOML file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not TOML, or has an unknown key or a wrong value; names it.
    """
    try:
        values = read_toml(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    try:
        report = values.pop("report", {})
        if not isinstance(report, dict):
            raise ValueError(f"report = {report!r} must be a table: [report]")
        _check_keys(report, Report, "report.")
        _check_keys(values, Sweep)
        _check_quick(values.get("quick", {}))
        missing = [key for key in ("title", "rules") if key not in values]
        if missing:
            raise ValueError(f"missing: {', '.join(missing)}")
        sweep = Sweep(
            **{key: tupled(value) for key, value in values.items()},
            report=Report(**{key: tupled(value) for key, value in report.items()}),
        )
        sweep.quickened()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return sweep


def _check_keys(values: Mapping[str, Any], kind: Any, prefix: str = "") -> None:
    types = {f.name: f.type for f in fields(kind)}
    for key, value in values.items():
        if key not in types:
            near = get_close_matches(key, types, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(types)}"
            raise ValueError(f"unknown key {prefix}{key}: {hint}")
        wanted = str(types[key])
        good = (
            (type(value) is int and wanted == repr(int))
            or (isinstance(value, str) and wanted == repr(str))
            or (isinstance(value, dict) and "Mapping[str" in wanted and "tuple" not in wanted)
            or (isinstance(value, list) and "tuple" in wanted and _all_of(value, wanted))
        )
        if not good:
            kind = next(words for part, words in _IN_WORDS.items() if part in wanted)
            raise ValueError(f"{prefix}{key} = {value!r} has the wrong type: it must be {kind}")


def _check_quick(values: Mapping[str, Any]) -> None:
    """Check the keys of the sweep that are replaced; settings are checked with all others."""
    keys = {f.name for f in fields(Sweep)}
    for key in ("title", "quick", "report"):
        if key in values:
            raise ValueError(f"[quick] cannot replace {key}")
    if "settings" in values:
        raise ValueError("[quick.settings]: settings stand in [quick] itself")
    _check_keys({key: value for key, value in values.items() if key in keys}, Sweep, "quick.")


def _all_of(values: Sequence[Any], wanted: str) -> bool:
    kinds: tuple[type, ...] = (dict,)
    for name, kind in (("tuple[int", (int,)), ("tuple[str", (str,)), ("tuple[float", (float, int))):
        if wanted.startswith(name):
            kinds = kind
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in values)
