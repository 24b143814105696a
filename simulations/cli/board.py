"""A board: its settings one after the other, each a sweep, and one page of all of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pncs_flower.plain_text import counted

from ..choices import APP_DIRECTORY, Scalar
from .console import note, out, progress_bar
from .runs import carry_out, drawing

_FOLDER = APP_DIRECTORY / "boards"

BOARDS = sorted(path.stem for path in _FOLDER.glob("*.toml"))
"""The boards of the package."""

_SHOWN = 5  # rules of which a terminal has the mean rank


def file_of(name: str) -> Path:
    """Return the file of a board of the package."""
    return _FOLDER / f"{name}.toml"


def carry_out_board(
    file: Path,
    folder: Path,
    workers: int | None,
    *,
    quick: bool,
    only: Sequence[str],
    seeds: int | None,
    changes: Mapping[str, Scalar],
    command: str,
) -> bool:
    """Run a board, or what is missing of it, write its page, and tell if a run failed."""
    from ..board.file import read_board, sweeps_of

    board = read_board(file)
    board = board.quickened() if quick else board
    wanted = sweeps_of(board, only, {"seeds": seeds}, changes)
    with progress_bar("starting"):  # PyTorch takes seconds, and a wrong file is told before
        from ..board.results import describe
        from ..machine.surroundings import cluster_address
        from ..sweep.pool import pool
        from ..sweep.run import cell_files, check_cells

        # A board of the package is there wherever the package is.
        own = file.parent != _FOLDER
        places = {key: f"{f'{file}: ' if own else ''}setting.{key}: " for key in wanted}
        elsewhere = workers != 0 and cluster_address() is not None
        # Data that are not there are told now, and not after an hour.
        total = sum(len(cell_files(s.cells(), folder, places[key])) for key, s in wanted.items())
        for key, sweep in wanted.items():
            check_cells(sweep.cells(), elsewhere, places[key])
    text = f"{board.title}: {counted(len(wanted), 'setting')}, {counted(total, 'run')}"
    text += " beside those for learning rates" if any(s.tune for s in wanted.values()) else ""
    describe(board, folder, command)
    out.print(text, soft_wrap=True)
    content = file.read_text(encoding="utf-8-sig") if own else ""
    strategies = set().union(*(sweep.strategies for sweep in wanted.values()))
    failed = False
    with pool(workers, strategies, note) as shared:
        for key, sweep in wanted.items():
            failed |= carry_out(
                sweep,
                folder / key,
                workers,
                command=command,
                file=content,
                shared=shared,
                where=places[key],
            )
    show_board(folder)
    return failed


def show_board(folder: Path) -> None:
    """Write the page of a board's folder, and show what fits in a terminal."""
    with drawing():
        from ..board.results import read_board_results
        from ..report.of_board import TWIN, write_board

        results = read_board_results(folder)
        page = write_board(folder, results)
    ranked = [*results.ranking.means.items()] if results.ranking.settings else []
    if ranked:
        shown = "; ".join(f"{rule} {mean:.1f}" for rule, mean in ranked[:_SHOWN])
        out.print(f"Mean ranks, 1 is best: {shown}", soft_wrap=True)
    if results.missing:
        out.print(f"Settings without a result: {'; '.join(results.missing)}", soft_wrap=True)
    out.print(f"The same in Markdown: {page.with_name(TWIN)}", soft_wrap=True)
    out.print(f"Report: {page}", soft_wrap=True)


def refuse_for_board(**given: Any) -> None:
    """Refuse options that would make all settings of a board one."""
    for key, value in given.items():
        if value is not None:
            raise ValueError(
                f"--{key} {value}: the settings of a board have theirs; a board of your own is a "
                "file for pncs sweep (docs/sweeps.md)"
            )
