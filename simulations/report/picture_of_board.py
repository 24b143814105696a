"""The picture of a board: how far each rule ends below all clients, in each setting."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

from markupsafe import Markup, escape

from ..board.results import BoardResults, Standings

_LABEL, _CELL, _ROW, _RANK = 236, 78, 30, 66  # pixels: width of names, cells, their height, ranks
_HEAD = 66
_LETTERS = 11  # of a setting's name in a line
_WORST = 0.2  # a score so far below all clients has the palest colour
_BEST_COLOUR, _WORST_COLOUR = (8, 81, 116), (250, 243, 232)
_STAR = "*"  # where only those who send train, with a rule with which it is not so everywhere
_STYLE = "<style>text{fill:#24292f}</style>"


class Picture(NamedTuple):
    """An SVG element for a page, the same as a file of its own, and what one sees on it."""

    on_page: Markup
    file: str
    words: str
    caption: str  # how to read it


def draw_board(results: BoardResults) -> Picture:
    """Draw a row for each rule and a column for each setting; in a group the best rules first."""
    lines, settings = results.lines, [*results.settings.values()]
    alone = results.only_the_chosen_train
    blocks = {
        "Only those who send train": alone,
        "Others train too, before it is chosen who sends": [
            line for line in lines if line not in alone
        ],
    }
    means = results.ranking.means if results.ranking.settings else {}
    width = _LABEL + _CELL * len(settings) + _RANK
    parts: list[str] = []
    for place, setting in enumerate(settings):
        parts += _heading(_LABEL + _CELL * (place + 0.5), setting.name)
    parts += _heading(width - _RANK / 2, "mean rank")
    y = float(_HEAD)
    for title, own in blocks.items():
        if not own:
            continue
        parts.append(_text(0, y + 18, title, "font-weight:600;font-size:13px"))
        y += 26
        for line in own:
            parts.append(_text(10, y + 20, line))
            for place, setting in enumerate(settings):
                if line in setting.ends:
                    best = line == setting.best
                    text, behind = _shown(setting, line)
                    if line not in alone and setting.only_the_chosen_train(line):
                        text += _STAR
                    parts += _cell(_LABEL + _CELL * place, y, text, behind, best)
            if line in means:
                middle = "text-anchor:middle;font-weight:600"
                parts.append(_text(width - _RANK / 2, y + 20, f"{means[line]:.1f}", middle))
            y += _ROW
        y += 8
    words = _in_words(results, means)
    root = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(words)}" '
        f'viewBox="0 0 {width} {y:.0f}" font-family="system-ui, sans-serif" font-size="14">'
    )
    body = "\n".join(parts)
    ground = f'<rect width="{width}" height="{y:.0f}" fill="#fff"/>'
    return Picture(
        Markup(f"{root}\n{body}\n</svg>"),
        f"{root}\n{_STYLE}{ground}\n{body}\n</svg>\n",
        words,
        _caption(results),
    )


def _caption(results: BoardResults) -> str:
    all_there = all(each.ceiling for each in results.settings.values())
    shown = (
        "Points of accuracy at the end beside the reference, where all clients that are there "
        "train and send in every round: 0.0 is as good as if nobody were left out."
        if all_there
        else "Points of accuracy at the end; where all clients were tried too, beside them."
    )
    star = (
        f"{_STAR}: in this setting only those who send train, since no more are asked than chosen. "
        if _has_stars(results)
        else ""
    )
    return (
        f"{shown} The darker the nearer; from {100 * _WORST:.0f} points below, the colour stays "
        f"the same. Framed: the best rule of a setting. {star}The mean rank is over the settings, "
        "1 for the best; it orders the rules of each of the two groups."
    )


def _has_stars(results: BoardResults) -> bool:
    alone = results.only_the_chosen_train
    return any(
        setting.only_the_chosen_train(line)
        for setting in results.settings.values()
        for line in setting.competing
        if line not in alone
    )


def _shown(setting: Standings, line: str) -> tuple[str, float]:
    """Return what a cell says, and how far the line is below all clients, or else the best."""
    behind = setting.behind(line)
    if behind is None:
        return f"{100 * setting.ends[line]:.1f}", setting.ends[setting.best] - setting.ends[line]
    points = round(-100 * behind, 1)
    return f"{points:+.1f}".replace("-", "\N{MINUS SIGN}") if points else "0.0", behind


def _cell(x: float, y: float, text: str, behind: float, is_best: bool) -> Sequence[str]:
    share = min(1.0, max(0.0, behind / _WORST))
    ends = zip(_BEST_COLOUR, _WORST_COLOUR, strict=True)
    colour = ",".join(str(round(best + share * (worst - best))) for best, worst in ends)
    ink = "#fff" if share < 0.5 else "#24292f"
    frame = ' stroke="#d55e00" stroke-width="3"' if is_best else ""
    style = f"fill:{ink};text-anchor:middle" + (";font-weight:700" if is_best else "")
    return (
        f'<rect x="{x + 2:g}" y="{y + 2:g}" width="{_CELL - 4}" height="{_ROW - 4}" rx="3" '
        f'fill="rgb({colour})"{frame}/>',
        _text(x + _CELL / 2, y + 20, text, style),
    )


def _heading(x: float, text: str) -> Sequence[str]:
    rows = wrap(text, _LETTERS)
    first = _HEAD - 8 - 15 * (len(rows) - 1)
    return [
        _text(x, first + 15 * number, row, "text-anchor:middle;font-size:12px")
        for number, row in enumerate(rows)
    ]


def _text(x: float, y: float, text: str, style: str = "") -> str:
    own = f' style="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{own}>{escape(text)}</text>'


def _in_words(results: BoardResults, means: Mapping[str, float]) -> str:
    order = "; ".join(f"{line} {mean:.1f}" for line, mean in means.items())
    best = "; ".join(
        f"{each.name}: {each.best}, {each.ends[each.best]:.3f}"
        for each in results.settings.values()
    )
    words = f"Mean ranks, 1 is best: {order}. " if order else ""
    return f"{words}The best in each setting, by accuracy at the end: {best}."
