"""A sweep's TOML file, and the part of the sweep that a command asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..toml_file import read_toml
from ..validation import in_plain_words
from .plan import Report
from .sweep import PARAMETER, Sweep, read_parameters, short

__all__ = ["changed", "part_of", "read_sweep"]

_AXES = ("rules", "shards", "dirichlet", "layers", "selected", "queue")


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
        sweep = TypeAdapter(Sweep).validate_python({**values, "parameters": read_parameters(axes)})
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
    """Return what is left with some values of axes alone, such as ``"shards=1,2"``.

    Claims on lines that are left out are left out too, and the title says what stays.
    """
    seen = set()
    for text in only:
        axis, equals, values = text.partition("=")
        axis = axis.strip()
        axes = [*_AXES, *(f"{PARAMETER}{key}" for key in sweep.parameters)]
        if not equals or axis not in axes:
            raise ValueError(
                f"--only {text} must be AXIS=VALUES, such as shards=1,2; the axes are "
                f"{', '.join(axes)}"
            )
        if axis in seen:
            raise ValueError(f"--only {axis} is given twice: give all its values at once")
        seen.add(axis)
        sweep = _narrowed(sweep, axis, [v.strip() for v in values.split(",") if v.strip()])
    return sweep


def _narrowed(sweep: Sweep, axis: str, wanted: Sequence[str]) -> Sweep:
    key = axis.removeprefix(PARAMETER)
    values = sweep.parameters[key] if key != axis else getattr(sweep, axis)
    there = {short(each): each for each in values}
    text, known = f"--only {axis}={','.join(wanted)}", ", ".join(there) or "none"
    if not set(wanted) <= there.keys():
        raise ValueError(f"{text}: of {axis} the sweep has {known}")
    kept = {name: value for name, value in there.items() if name in wanted}
    # Of the two kinds of partitions one may go altogether.
    other = {"shards": sweep.dirichlet, "dirichlet": sweep.shards}
    if not kept and not other.get(axis):
        raise ValueError(f"{text} leaves nothing: of {axis} the sweep has {known}")
    if axis == "queue" and len(kept) == 1 < len(there):
        raise ValueError(f"{text}: keep two of {known} or more, to compare")
    changes: dict[str, Any] = {axis: tuple(kept.values())}
    if key != axis:
        changes = {"parameters": {**sweep.parameters, key: changes[axis]}}
    if axis == "rules":
        changes["rule"] = {name: own for name, own in sweep.rule.items() if name in kept}
    title = f"{sweep.title}; only {axis} {', '.join(kept) or 'none'}"
    part = replace(sweep, **changes, title=title, report=Report())
    lines = {cell.line for cell in part.cells()}
    if sweep.reference not in lines:
        return replace(part, report=replace(sweep.report, reference="", claims=()))
    claims = tuple(claim for claim in sweep.report.claims if set(claim.against) <= lines)
    return replace(part, report=replace(sweep.report, reference=sweep.reference, claims=claims))
