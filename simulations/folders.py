"""By which file a folder of results is known, and which was meant by one that is not there."""

from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from pncs_flower.plain_text import first_of

SUMMARY = "summary.json"
"""Of a run: what came out; there once it is done."""

SWEEP = "sweep.json"
"""Of a sweep: what it is."""

BOARD = "board.json"
"""Of a board: what it is."""

REPORT = "report.html"
"""Of a sweep, a board or a study: the page that a person reads."""

SETTINGS = "config.toml"
"""Of a run: with which settings it began."""

OBSERVATIONS = "observations"
"""Of a study: the folder of what was observed."""

WRITTEN = {
    SETTINGS: (SUMMARY, "weights.npz", "rounds.png", "round.png"),
    SWEEP: (
        REPORT,
        *(f"{name}.csv" for name in ("runs", "rounds", "reached", "tests")),
        *(f"{name}.png" for name in ("side-by-side", "rounds", "time", "bytes", "upload")),
        *(f"{name}.png" for name in ("choices", "similarities")),
    ),
    BOARD: (REPORT, *(f"leaderboard.{kind}" for kind in ("md", "svg", "csv"))),
    OBSERVATIONS: (REPORT, "table1.csv", "iterations.png"),
}
"""By what a folder of results is known: which files are written over there without asking."""


def refuse_to_write_over(folder: Path, own: str) -> None:
    """Refuse a folder that is not known by ``own``, where somebody's files would be lost."""
    if (folder / own).exists():
        return
    lost = [name for name in (*WRITTEN[own], "lock") if _has_content(folder / name)]
    if lost:
        raise FileExistsError(
            f"{folder} has a {first_of(lost, 4)} of something else, which would be written over: "
            "give another --output, such as a new folder, or move what is there"
        )


def _has_content(path: Path) -> bool:
    # An empty file loses nothing, and the lock that an earlier try has left is one.
    return path.is_dir() or (path.is_file() and path.stat().st_size > 0)


def check_folder(folder: Path, *marks: str, maker: str) -> None:
    """Refuse what is no folder, and say which was meant, or which command makes one."""
    if folder.is_dir():
        return
    if folder.exists():
        raise NotADirectoryError(f"{folder} is a file: give the folder that it is in")
    instead = near_folder(folder, *marks) or f"; {maker} makes one"
    raise FileNotFoundError(f"there is no folder {folder}{instead}")


def near_folder(wrong: Path, *marks: str) -> str:
    """Say which folder was meant, or which is the latest: in it, beside it or in runs.

    Only those that have a file of one of some names; empty if there is none.
    """
    parents = {wrong, wrong.parent, wrong.parent / "runs"}
    changed: dict[Path, float] = {}
    for parent in parents:
        with suppress(OSError):  # there is none, or it may not be looked into
            for each in parent.iterdir():
                with suppress(OSError):  # a stranger's, or gone meanwhile
                    if each != wrong and any((each / mark).is_file() for mark in marks):
                        changed[each] = each.stat().st_mtime
    there = sorted(changed, key=lambda each: (changed[each], each), reverse=True)
    if not there:
        return ""
    near = get_close_matches(wrong.name, [each.name for each in there], n=1)
    if near:
        return f"; did you mean {next(each for each in there if each.name == near[0])}?"
    return f"; the latest is {there[0]}"
