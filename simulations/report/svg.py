"""A plot as SVG within a page: it has the page's colours, light or dark, and the page's letters."""

import re
from collections.abc import Mapping
from io import StringIO

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

# Of some thousand points, more digits would be most of a page.
_DIGITS = re.compile(r"(-?\d+\.\d)\d+")
_STEP = re.compile(r"([MLz])(?: (\S+) (\S+))?\s*")
_PLACE = re.compile(r' (?:x|y|d)="[^"]*"')
_GROUP = re.compile(r'<g id="([^"]*)"')
_LINE = re.compile(r"(line|band)-(\d+)")


def line_id(index: int) -> str:
    """Return the id that says which rule's a line is, for ``Artist.set_gid``."""
    return f"line-{index}"


def band_id(index: int) -> str:
    """Return the id that says which rule's an interval is, for ``Artist.set_gid``."""
    return f"band-{index}"


def as_svg(figure: Figure, name: str, words: str, colours: Mapping[str, str]) -> Markup:
    """Return a figure as an SVG element.

    Parameters
    ----------
    figure : Figure
        It takes the page's background.
    name : str
        Unlike that of any other figure of the page: ids are made from it.
    words : str
        What it shows, numbers included, for whoever does not see it.
    colours : Mapping[str, str]
        What to write in CSS for colours of the figure, such as ``{"#000000": "currentColor"}``.
    """
    text = StringIO()
    # Letters stay text, and the same figure is the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", facecolor="none", metadata=nothing)
    svg = text.getvalue()
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    # What follows the root's own tag, without a style that would be the whole page's.
    inside = re.sub(r"<style.*?</style>", "", svg[svg.index(">", view.end()) + 1 :], flags=re.S)
    inside = _GROUP.sub(_class_of, inside)
    inside = _PLACE.sub(lambda place: _short(_DIGITS.sub(r"\1", place[0])), inside)
    # Letters are those of the page, which no text need name; and many are turned by 0 degrees.
    inside = re.sub(r'; font-family: [^;"]*| transform="rotate\(-?0 [^"]*"', "", inside)
    inside = re.sub(r"\s*\n\s*", "\n", inside)
    for colour, in_css in colours.items():
        inside = inside.replace(colour, in_css)
    return Markup(f'<svg role="img" aria-label="{escape(words)}" {view[0]}>{inside}')


def _short(place: str) -> str:
    """Return a place, a path with as few letters as say the same: most steps are across or up."""
    name, path, _ = place.split('"')
    if name != " d=" or re.search("[^MLz\\s\\d.-]", path):
        return place  # no path, or one with curves
    parts, x, y = [], "", ""
    for kind, to_x, to_y in _STEP.findall(path):
        if kind == "L" and (to_x == x or to_y == y):
            parts.append(f"V{to_y}" if to_x == x else f"H{to_x}")
        else:
            parts.append(f"{kind}{to_x} {to_y}".strip())
        x, y = to_x, to_y
    return f'{name}"{"".join(parts)}"'


def _class_of(group: re.Match[str]) -> str:
    """Return a group's tag without its id, which other figures have too; a rule's has a class."""
    found = _LINE.fullmatch(group[1])
    return f'<g class="{found[1]}" data-rule="{found[2]}"' if found else "<g"
