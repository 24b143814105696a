"""A part of a sweep, whose runs are those of the whole."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .plan import Report
from .sweep import Sweep

__all__ = ["part_of"]

_AXES = ("rules", "shards", "dirichlet", "layers", "selected", "queue")


def part_of(sweep: Sweep, only: Sequence[str]) -> Sweep:
    """Return the part of a sweep that has some of the values of its axes.

    Parameters
    ----------
    sweep : Sweep
        The whole.
    only : sequence of str
        Such as ``"shards=1,2"`` and ``"rules=pncs,uniform"``: for an axis (``rules``, ``shards``,
        ``dirichlet``, ``layers``, ``selected`` or ``queue``) those of the sweep's values that stay.
        Claims on lines that are left out are left out too, and the title says what stays.

    Raises
    ------
    ValueError
        If there is no such axis or value, or nothing is left.
    """
    seen = set()
    for text in only:
        axis, equals, values = text.partition("=")
        axis = axis.strip()
        if not equals or axis not in _AXES:
            raise ValueError(
                f"--only {text} must be AXIS=VALUES, such as shards=1,2; the axes are "
                f"{', '.join(_AXES)}"
            )
        if axis in seen:
            raise ValueError(f"--only {axis} is given twice: give all its values at once")
        seen.add(axis)
        wanted = [value.strip() for value in values.split(",") if value.strip()]
        sweep = _narrowed(sweep, axis, wanted)
    return sweep


def _narrowed(sweep: Sweep, axis: str, wanted: Sequence[str]) -> Sweep:
    there = {str(value): value for value in getattr(sweep, axis)}
    text, known = f"--only {axis}={','.join(wanted)}", ", ".join(there) or "none"
    if not set(wanted) <= there.keys():
        raise ValueError(f"{text}: of {axis} the sweep has {known}")
    kept = tuple(value for name, value in there.items() if name in wanted)
    # Of the two kinds of partitions one may go altogether.
    other = {"shards": sweep.dirichlet, "dirichlet": sweep.shards}
    if not kept and not other.get(axis):
        raise ValueError(f"{text} leaves nothing: of {axis} the sweep has {known}")
    if axis == "queue" and len(kept) == 1 < len(there):
        raise ValueError(f"{text}: keep two of {known} or more, to compare")
    changes: dict[str, Any] = {axis: kept}
    if axis == "rules":
        changes["rule"] = {name: own for name, own in sweep.rule.items() if name in kept}
    title = f"{sweep.title}; only {axis} {', '.join(map(str, kept)) or 'none'}"
    part = replace(sweep, **changes, title=title, report=Report())
    lines = {cell.line for cell in part.cells()}
    report = sweep.report
    if sweep.reference not in lines:
        report = replace(report, reference="", claims=())
    else:
        report = replace(report, reference=sweep.reference)
    claims = tuple(claim for claim in report.claims if set(claim["against"]) <= lines)
    return replace(part, report=replace(report, claims=claims))
