"""Folders that many processes want, made by one of them: there whole, or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path


def have_folder(folder: Path, is_whole: Callable[[], bool], make: Callable[[Path], object]) -> None:
    """Have a folder made, under another name beside it, unless it is there."""
    if is_whole():
        return
    from filelock import FileLock  # takes a moment, and --help needs none

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / "lock"):  # other processes wait, and find what this one has made
        if is_whole():
            return
        new = folder.with_name(".partial")
        shutil.rmtree(new, ignore_errors=True)  # what a killed process has left
        try:
            new.mkdir()
            make(new)
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
