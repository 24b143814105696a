"""A sweep's TOML file, and the part of the sweep that a command asks for."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pncs_flower.plain_text import listed

from ..choices import default_run_config, nearest
from ..toml_file import read_toml
from ..validation import in_plain_words
from .plan import Report
from .sweep import PARAMETER, Axes, Sweep, short

AXES = ("rules", "shards", "dirichlet", "layers", "selected", "queue", "devices")
"""The keys of a sweep of which a command may ask for some values, beside ``rule.KEY``."""


_KEYS = {each.name for each in fields(Sweep) if each.metadata.get("key", True)}


def read_sweep(path: Path) -> Sweep:
    """Read a sweep's file; names it with what is unknown or wrong there."""
    try:
        values = read_toml(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    axes = {key: values.pop(key) for key in list(values) if key.startswith(PARAMETER)}
    with in_plain_words(f"{path}: ", Sweep):
        refuse_settings(values, _KEYS)
        if "parameters" in values:
            raise ValueError('unknown key parameters: write "rule.KEY" = [...] for each of them')
        values["parameters"] = TypeAdapter(Axes).validate_python(axes)
        sweep = TypeAdapter(Sweep).validate_python(values)
        sweep.check_parameters()
    with in_plain_words(f"{path}: quick: ", Sweep):
        sweep.quickened().check_parameters()
    return sweep


def refuse_settings(table: object, keys: Collection[str], where: str = "") -> None:
    """Refuse a setting that stands among the keys of a table."""
    for key in table if isinstance(table, Mapping) else ():
        if key in default_run_config() and key not in keys:
            raise ValueError(
                f"{where}{key} is a setting: it belongs into the table {where}settings"
            )


def changed(
    sweep: Sweep,
    quick: bool,
    only: Sequence[str],
    keys: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Sweep:
    """Return what a command asks for: a quick version, a part, other keys unless None, settings."""
    for key, value in settings.items():
        if key in _KEYS and key not in default_run_config():
            part = f", or take some of its values with --only {key}=..." if key in AXES else ""
            raise ValueError(
                f"--set {key}={value}: {key} is no setting, but a key of the file: change it there"
                f"{part}"
            )
    if quick:
        sweep = sweep.quickened()
    own = {key: value for key, value in keys.items() if value is not None}
    if "lr" in settings:
        own["tune"] = None
    with in_plain_words(kind=Sweep):
        sweep = replace(sweep, settings={**sweep.settings, **settings}, **own)
        sweep.check_parameters()
    return part_of(sweep, only)


def part_of(sweep: Sweep, only: Sequence[str]) -> Sweep:
    """Return what is left, also of claims, with some values of axes, such as ``"shards=1,2"``."""
    axes = {**{axis: getattr(sweep, axis) for axis in AXES}, **sweep.parameters}
    kept: dict[str, Any] = {}
    title = sweep.title
    for text in only:
        axis = axis_of(text, axes)
        if axis in kept:
            raise ValueError(f"--only {axis} is given twice: give all its values at once")
        there = {short(value): value for value in axes[axis]}
        wanted = values_of(text, there)
        if not wanted and axis not in ("shards", "dirichlet"):  # of which one is enough
            raise ValueError(f"--only {text}: of {axis} the sweep has {listed(there) or 'none'}")
        if axis == "queue" and len(wanted) == 1 < len(there):
            raise ValueError(f"--only {text}: keep two of {listed(there)} or more, to compare")
        kept[axis] = tuple(there[name] for name in wanted)
        title += f"; only {axis} {listed(wanted) or 'none'}"
    if not kept:
        return sweep
    rules = kept.get("rules", sweep.rules)
    with in_plain_words(f"--only {'; '.join(only)}: "):
        part = replace(
            sweep,
            **{axis: values for axis, values in kept.items() if axis in AXES},
            parameters={key: kept.get(key, values) for key, values in sweep.parameters.items()},
            rule={name: own for name, own in sweep.rule.items() if name in rules},
            title=title,
            report=Report(),
        )
    lines = {cell.line for cell in part.cells()}
    reference = sweep.reference if sweep.reference in lines else ""
    claims = tuple(c for c in sweep.report.claims if {reference, *c.against} <= lines)
    return replace(part, report=replace(sweep.report, reference=reference, claims=claims))


def axis_of(text: str, axes: Collection[str]) -> str:
    """Return of which axis a text has values, such as ``"shards=1,2"``."""
    axis, equals, _ = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(
            f"--only {text} must be AXIS=VALUES, such as shards=1,2; the axes are {listed(axes)}"
        )
    if axis not in axes:
        hint = "--seeds says how many there are" if axis == "seeds" else nearest(axis, axes)
        raise ValueError(f"--only {text}: there is no axis {axis!r}: {hint}")
    return axis


def values_of(text: str, known: Collection[str]) -> list[str]:
    """Return the known values that a text names, in their own order; one may have a comma in it."""
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "(?!)"
    axis, _, values = (part.strip() for part in text.partition("="))
    found = re.findall(rf"\s*((?:{names})(?=\s*(?:[,;]|$))|[^,;]+)", values)
    wanted = [name.strip() for name in found if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        there = nearest(unknown[0], known) if known else "there is none"
        raise ValueError(f"--only {text}: of {axis} there is no {unknown[0]!r}: {there}")
    return [name for name in known if name in wanted]
