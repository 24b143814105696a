"""`pncs sweep`, `pncs reproduce` and `pncs report`: many runs by one command."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from ..choices import APP_DIRECTORY, CHOICES, Scalar, nearest
from ..folders import BOARD, OBSERVATIONS, SETTINGS, SUMMARY, SWEEP, check_folder, near_folder
from .board import BOARDS, carry_out_board, file_of, refuse_for_board, show_board
from .console import note, out, parse_setting, said_plainly
from .given import given_command
from .options import PATH, complete_setting, names
from .runs import carry_out, drawing, progress, stoppable

EXPERIMENTS = APP_DIRECTORY / "experiments"
"""The sweeps of the paper's tables and figures."""

TABLE1 = "table1"
"""The study of client pairs, which is no sweep."""

NAMES = sorted([TABLE1, *(path.stem for path in EXPERIMENTS.glob("*.toml"))])
"""The experiments that can be reproduced; beside them there are boards."""

ALL = [name for name in NAMES if not name.startswith("fedxplore")]
"""What "all" stands for: not what is another project's, and takes hours or days."""

FULL_DISK = "make room and give the same command again, which goes on from there"
"""What to do about it, of commands that take up what is there."""

_WORKERS = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Runs at once, each in a process; 0: one after the other in this one. "
        "[dim]\\[default: the CPUs, of the cluster if RAY_ADDRESS names one][/dim]",
    ),
]
_SEEDS = Annotated[int | None, typer.Option(min=1, help="Seeds, from 0.")]
_SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting for all runs, such as lr=0.05.",
        autocompletion=complete_setting,
    ),
]
_ONLY = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=VALUES",
        help="A part of the sweep, such as shards=1,2 or rules=pncs,uniform (axes: rules, shards, "
        "dirichlet, layers, selected, queue, devices, rule.KEY; of a board also setting); its "
        "report takes the place of the whole's, and the whole's comes back with the whole.",
    ),
]


def sweep(
    file: Annotated[Path, typer.Argument(click_type=PATH)],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            click_type=PATH,
            help="Folder for the results: this one itself. "
            "[dim]\\[default: runs/<file>, or runs/<file>-quick][/dim]",
        ),
    ] = None,
    seeds: _SEEDS = None,
    quick: Annotated[bool, typer.Option(help="The sweep's quick version.")] = False,
    workers: _WORKERS = None,
    only: _ONLY = None,
    settings: _SET = None,
) -> None:
    """Run the sweep or the board in a TOML file, or what is missing of it, and write its report."""
    with said_plainly(FULL_DISK), stoppable():
        if not file.exists():
            raise FileNotFoundError(f"there is no file {file}: {_instead(file)}")
        changes = dict(parse_setting(text) for text in settings or [])
        folder = output or Path("runs") / (f"{file.stem}-quick" if quick else file.stem)
        from ..board.file import is_board  # pydantic takes a moment, and --help needs none

        if is_board(file):
            failed = _run_board(file, folder, quick, only or (), seeds, changes, workers)
        else:
            failed = _run(file, folder, quick, only or (), {"seeds": seeds}, changes, workers)
    raise typer.Exit(1 if failed else 0)


def reproduce(
    name: Annotated[str, typer.Argument(autocompletion=names(*NAMES, *BOARDS, "all"))],
    *,
    quick: Annotated[
        bool, typer.Option(help="Minutes in place of hours: digits, small models, 3 seeds.")
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--data",
            help=f"{', '.join(CHOICES['dataset'])}, in place of the paper's.",
            autocompletion=names(*CHOICES["dataset"]),
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(click_type=PATH, help="Folder of the data set.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(click_type=PATH, help="State dict of torchvision's vgg16.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="vgg16 (frozen but for its last layers) or scratch.")
    ] = None,
    seeds: _SEEDS = None,
    output: Annotated[
        Path | None,
        typer.Option(
            click_type=PATH,
            help="Folder in which NAME gets a folder of its own, for it may be all: OUTPUT/NAME, "
            "or OUTPUT/NAME-quick. [dim]\\[default: runs][/dim]",
        ),
    ] = None,
    workers: _WORKERS = None,
    only: _ONLY = None,
    settings: _SET = None,
) -> None:
    """Run what a table or figure of the paper shows, and say whether it holds.

    Or a board, such as leaderboard: rules in many settings, and one page of all. `all` is what the
    paper has and what this project has measured beside it, without boards and what takes days.
    """
    with said_plainly(FULL_DISK), stoppable():
        if name not in (*NAMES, *BOARDS, "all"):
            raise ValueError(f"there is no {name!r}: {nearest(name, [*NAMES, *BOARDS, 'all'])}")
        if only and name in (TABLE1, "all"):
            raise ValueError(f"--only is for a part of one sweep, and {name} is none")
        changes: dict[str, Scalar] = {"dataset": dataset} if dataset else {}
        for key, path in (("data-dir", data_dir), ("weights", weights)):
            if path is not None:
                changes[key] = str(path.resolve())
        changes |= dict(parse_setting(text) for text in settings or [])
        if name in BOARDS:
            refuse_for_board(data=dataset, model=model)
        if dataset == "digits" and model is None:
            model = "scratch"  # 8x8 pixels are nothing to VGG16
        failed = False
        for each in ALL if name == "all" else [name]:
            folder = (output or Path("runs")) / f"{each}{'-quick' if quick else ''}"
            if each in BOARDS:
                file = file_of(each)
                failed |= _run_board(file, folder, quick, only or (), seeds, changes, workers)
                continue
            if each == TABLE1:
                # A study calls a model from scratch by its own name.
                network = {"model": "linear" if model == "scratch" else model} if model else {}
                _run_table1(folder, changes | network, seeds, quick, workers)
                continue
            keys = {"seeds": seeds, "model": model}
            file = EXPERIMENTS / f"{each}.toml"
            failed |= _run(file, folder, quick, only or (), keys, changes, workers)
    raise typer.Exit(1 if failed else 0)


def report(
    folder: Annotated[Path, typer.Argument(click_type=PATH)],
    *,
    round: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a run with devices: the round whose timeline is drawn. "
            "[dim]\\[default: that of median length][/dim]",
        ),
    ] = None,
) -> None:
    """Write the report of a sweep or a board, or the pictures of a run, again."""
    of_a_run = round is not None
    marks, maker = ((SUMMARY,), "run") if of_a_run else ((SUMMARY, BOARD, SWEEP), "compare")
    with said_plainly(), stoppable("The same command draws it again."):
        check_folder(folder, *marks, maker=f"pncs {maker}")
        if (folder / SUMMARY).is_file():
            _draw_run(folder, round)
        elif of_a_run:
            raise ValueError(
                f"--round is for the folder of a run, and {folder} has no {SUMMARY}"
                f"{near_folder(folder, *marks)}"
            )
        elif (folder / BOARD).is_file():
            show_board(folder)
        elif (folder / SWEEP).is_file():
            show_report(folder)
        else:
            raise FileNotFoundError(
                f"{folder} has no {SWEEP}, {BOARD} or {SUMMARY}: give the folder of a sweep, of a "
                "board or of a run that is done (for table1, give pncs reproduce table1 again, "
                f"which runs only what is missing){near_folder(folder, *marks)}"
            )


def _run(
    file: Path,
    folder: Path,
    quick: bool,
    only: Sequence[str],
    keys: Mapping[str, Any],
    changes: Mapping[str, Scalar],
    workers: int | None,
) -> bool:
    """Run a file with other keys and settings, write its report, and tell if a cell failed."""
    from ..config import unused_settings
    from ..sweep.file import changed, read_sweep

    wanted = changed(read_sweep(file), quick, only, keys, changes)
    unused = [unused_settings(cell.config) for cell in wanted.cells()]
    for key in changes:
        if all(any(key in names for names in each.values()) for each in unused):
            note(f"no run uses {key}")
    # A sweep of the package is there wherever the package is.
    text = "" if file.parent == EXPERIMENTS else file.read_text(encoding="utf-8-sig")
    again, where = given_command(name=file.stem), f"{file}: " if text else ""
    failed = carry_out(wanted, folder, workers, command=again, file=text, where=where)
    show_report(folder)
    return failed


def _run_board(
    file: Path,
    folder: Path,
    quick: bool,
    only: Sequence[str],
    seeds: int | None,
    changes: Mapping[str, Scalar],
    workers: int | None,
) -> bool:
    return carry_out_board(
        file,
        folder,
        workers,
        quick=quick,
        only=only,
        seeds=seeds,
        changes=changes,
        command=given_command(name=file.stem),
    )


def _instead(file: Path) -> str:
    """Say what to give in place of a file that is not there."""
    if file.stem in NAMES:
        return f"the paper's is pncs reproduce {file.stem}"
    there = [str(path) for path in file.parent.glob("*.toml")] if file.parent.is_dir() else []
    if near := get_close_matches(str(file), there, n=1):
        return f"did you mean {near[0]}?"
    return "docs/sweeps.md has one to begin with, and pncs compare needs none"


def _run_table1(
    folder: Path, changes: Mapping[str, Scalar], seeds: int | None, quick: bool, workers: int | None
) -> None:
    from ..report.of_study import judge_rows, write_table1
    from ..study.study import Study, analyse, check_study, run_study

    study = Study.of_the_paper(dict(changes), quick)
    study = replace(study, seeds=seeds or study.seeds)
    check_study(study, folder)
    out.print("Table 1: which feature tells a good pair of clients")
    # Processes are forked meanwhile, so that there must be no thread.
    with progress("pairs", thread=False) as (bar, task):
        observed = run_study(
            study,
            folder / OBSERVATIONS,
            workers,
            lambda done, total: bar.update(task, completed=done, total=total, refresh=True),
        )
        rows = analyse(observed)
        page = write_table1(folder, study, rows)
    for verdict, text, _ in judge_rows(rows):
        out.print(f"{verdict}: {text}", soft_wrap=True)
    out.print(f"Report: {page}", soft_wrap=True)


def _draw_run(folder: Path, round: int | None) -> None:
    from ..report.picture_of_round import draw_round
    from ..report.picture_of_run import draw_rounds
    from ..run.folder import ROUNDS, read_rounds

    if not (folder / SETTINGS).is_file():
        raise FileNotFoundError(f"{folder} has no {SETTINGS}, which its run wrote: put it back")
    if not read_rounds(folder):
        raise ValueError(f"{folder} has no round in {ROUNDS}, so there is nothing to draw")
    for picture in (draw_rounds(folder), draw_round(folder, round)):
        if picture is not None:
            out.print(f"Picture: {picture}", soft_wrap=True)


def show_report(folder: Path) -> None:
    """Write the report of a sweep's folder, and show what fits in a terminal."""
    from ..sweep.results import read_results

    results = read_results(folder)
    with drawing():
        from ..report.of_sweep import write_report
        from ..report.pictures_of_sweep import draw_both
        from ..report.side_by_side import PICTURE, courses, side_by_side
        from ..sweep.statistics import judge

        page = write_report(folder, results)
        # Of several plots the page has more than a terminal could show.
        alone = len(results.panels) == 1
        picture = draw_both(results, folder / PICTURE) if alone else None
    for claim in results.about.report.claims:
        verdict, _ = judge(claim, results)
        out.print(f"{verdict}: {claim.text}", soft_wrap=True)
    if alone:
        out.print(courses(results))
        out.print(side_by_side(results))
    if results.missing:
        out.print(f"Runs without a result: {len(results.missing)}")
    for panel in results.without_reference:
        where = f" in {results.label(panel)}" if results.label(panel) else ""
        out.print(f"No test{where}: no result of {results.reference}", soft_wrap=True)
    if picture is not None:
        out.print(f"Picture: {picture}", soft_wrap=True)
    out.print(f"Report: {page}", soft_wrap=True)
