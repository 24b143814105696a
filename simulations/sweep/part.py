"""A part of a grid, whose runs are those of the whole."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .plan import Report
from .sweep import Grid

__all__ = ["part_of"]

_AXES = ("rules", "shards", "dirichlet", "layers", "selected", "queue")


def part_of(grid: Grid, only: Sequence[str]) -> Grid:
    """Return the part of a grid that has some of the values of its axes.

    Parameters
    ----------
    grid : Grid
        The whole.
    only : sequence of str
        Such as ``"shards=1,2"`` and ``"rules=pncs,uniform"``: for an axis (``rules``, ``shards``,
        ``dirichlet``, ``layers``, ``selected`` or ``queue``) those of the grid's values that stay.
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
        grid = _narrowed(grid, axis, wanted)
    return grid


def _narrowed(grid: Grid, axis: str, wanted: Sequence[str]) -> Grid:
    there = {str(value): value for value in getattr(grid, axis)}
    text, known = f"--only {axis}={','.join(wanted)}", ", ".join(there) or "none"
    if not set(wanted) <= there.keys():
        raise ValueError(f"{text}: of {axis} the grid has {known}")
    kept = tuple(value for name, value in there.items() if name in wanted)
    # Of the two kinds of partitions one may go altogether.
    other = {"shards": grid.dirichlet, "dirichlet": grid.shards}
    if not kept and not other.get(axis):
        raise ValueError(f"{text} leaves nothing: of {axis} the grid has {known}")
    if axis == "queue" and len(kept) == 1 < len(there):
        raise ValueError(f"{text}: keep two of {known} or more, to compare")
    changes: dict[str, Any] = {axis: kept}
    if axis == "rules":
        changes["rule"] = {name: own for name, own in grid.rule.items() if name in kept}
    title = f"{grid.title}; only {axis} {', '.join(map(str, kept)) or 'none'}"
    part = replace(grid, **changes, title=title, report=Report())
    lines = {cell.line for cell in part.cells()}
    report = grid.report
    if grid.reference not in lines:
        report = replace(report, reference="", claims=())
    else:
        report = replace(report, reference=grid.reference)
    claims = tuple(claim for claim in report.claims if set(claim["against"]) <= lines)
    return replace(part, report=replace(report, claims=claims))
