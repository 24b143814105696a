"""A sweep's TOML file, and the part of the sweep that a command asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..toml_file import read_toml
from ..validation import in_plain_words
from .plan import Report
from .sweep import PARAMETER, Axes, Sweep, short

_AXES = ("rules", "shards", "dirichlet", "layers", "selected", "queue", "devices")


def read_sweep(path: Path) -> Sweep:
    """Read a sweep's file; names it with what is unknown or wrong there."""
    try:
        values = read_toml(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    axes = {key: values.pop(key) for key in list(values) if key.startswith(PARAMETER)}
    with in_plain_words(f"{path}: ", Sweep):
        if "parameters" in values:
            raise ValueError('unknown key parameters: write "rule.KEY" = [...] for each of them')
        values["parameters"] = TypeAdapter(Axes).validate_python(axes)
        sweep = TypeAdapter(Sweep).validate_python(values)
        sweep.check_parameters()
    with in_plain_words(f"{path}: quick: ", Sweep):
        sweep.quickened().check_parameters()
    return sweep


def changed(
    sweep: Sweep,
    quick: bool,
    only: Sequence[str],
    keys: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Sweep:
    """Return what a command asks for: a quick version, a part, other keys unless None, settings."""
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
    axes = {**{axis: getattr(sweep, axis) for axis in _AXES}, **sweep.parameters}
    kept: dict[str, Any] = {}
    title = sweep.title
    for text in only:
        axis, equals, values = (part.strip() for part in text.partition("="))
        if not equals or axis not in axes:
            raise ValueError(
                f"--only {text} must be AXIS=VALUES, such as shards=1,2; the axes are "
                f"{', '.join(axes)}"
            )
        if axis in kept:
            raise ValueError(f"--only {axis} is given twice: give all its values at once")
        wanted = [value.strip() for value in values.split(",") if value.strip()]
        there = {short(value): value for value in axes[axis]}
        may_go = wanted or axis in ("shards", "dirichlet")  # of which one is enough
        if not may_go or not set(wanted) <= there.keys():
            known = ", ".join(there) or "none"
            raise ValueError(f"--only {text}: of {axis} the sweep has {known}")
        if axis == "queue" and len(set(wanted)) == 1 < len(there):
            raise ValueError(f"--only {text}: keep two of {', '.join(there)} or more, to compare")
        kept[axis] = tuple(value for name, value in there.items() if name in wanted)
        title += f"; only {axis} {', '.join(map(short, kept[axis])) or 'none'}"
    if not kept:
        return sweep
    rules = kept.get("rules", sweep.rules)
    with in_plain_words(f"--only {', '.join(only)}: "):
        part = replace(
            sweep,
            **{axis: values for axis, values in kept.items() if axis in _AXES},
            parameters={key: kept.get(key, values) for key, values in sweep.parameters.items()},
            rule={name: own for name, own in sweep.rule.items() if name in rules},
            title=title,
            report=Report(),
        )
    lines = {cell.line for cell in part.cells()}
    reference = sweep.reference if sweep.reference in lines else ""
    claims = tuple(c for c in sweep.report.claims if {reference, *c.against} <= lines)
    return replace(part, report=replace(sweep.report, reference=reference, claims=claims))
