"""By which file a folder of results is known, and which was meant by one that is not there."""

from difflib import get_close_matches
from pathlib import Path

SUMMARY = "summary.json"
"""Of a run: what came out; there once it is done."""

SWEEP = "sweep.json"
"""Of a sweep: what it is."""

BOARD = "board.json"
"""Of a board: what it is."""

REPORT = "report.html"
"""Of a sweep, a board or a study: the page that a person reads."""


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
    there = [
        each
        for parent in parents
        if parent.is_dir()
        for each in parent.iterdir()
        if each != wrong and any((each / mark).is_file() for mark in marks)
    ]
    if not there:
        return ""
    there.sort(key=lambda each: (each.stat().st_mtime, each), reverse=True)
    near = get_close_matches(wrong.name, [each.name for each in there], n=1)
    if near:
        return f"; did you mean {next(each for each in there if each.name == near[0])}?"
    return f"; the latest is {there[0]}"
