"""Runs of a sweep, with a bar that says how far they are, and what to do about those that fail."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, TaskID

from pncs_flower.plain_text import counted

from ..timeouts import NEWS_IN_LOG
from .console import err, note, out, progress_bar

if TYPE_CHECKING:
    from ..sweep.cell import Cell
    from ..sweep.pool import RunJobs
    from ..sweep.sweep import Sweep


def carry_out(
    wanted: "Sweep",
    folder: Path,
    workers: int | None,
    players: Callable[[], int] = lambda: 1,
    *,
    command: str,
    file: str = "",
    shared: "RunJobs | None" = None,
    where: str = "",
) -> bool:
    """Run a sweep, or what is missing of it, showing how far it is, and tell if a cell failed.

    ``players`` says how many processes play clients; it is asked once PyTorch is there.
    """
    out.print(f"{wanted.title}; results in {folder}", soft_wrap=True)
    for key, rules in wanted.left_out.items():
        note(f"{key} is left out where the rule has none: {', '.join(rules)}")
    with progress_bar("starting"):  # torch takes seconds, and a wrong file is told before
        from ..sweep.pool import pool
        from ..sweep.run import FAILED, run_sweep

        many = players()
    start = last = time.perf_counter()
    # Where processes are forked there must be no thread, as that of a bar, beside.
    own = pool(workers, wanted.strategies, note) if shared is None else nullcontext(shared)
    with own as run_jobs, progress("runs", thread=many == 1) as (bar, task):
        runs = ("run", "runs")
        rates = ("run for the learning rates", "runs for the learning rates")
        parts = iter((rates, runs) if wanted.tune else (runs,))
        over = 0

        def begin(done: int, total: int) -> None:
            nonlocal over
            over = done
            bar.update(task, completed=done, total=total, refresh=True)
            text = counted(total, *next(parts))
            text += f", of which {done} {'is' if done == 1 else 'are'} there" if done else ""
            bar.console.print(text)

        def show_round(cell: "Cell", row: Mapping[str, Any]) -> None:
            share = row["round"] / int(cell.settings["num-rounds"])
            line = f"{cell.line}, seed {cell.seed}"
            bar.update(task, completed=over + share, description=line, refresh=many > 1)

        def show(cell: "Cell", done: int, total: int) -> None:
            nonlocal last, over
            over = done
            bar.update(task, completed=done, total=total, description=f"{cell.panel}: {cell.line}")
            if not out.is_terminal and time.perf_counter() - last > NEWS_IN_LOG:
                last = time.perf_counter()
                out.print(f"{last - start:.0f} s: {done} of {total} runs")

        def tell_others(count: int) -> None:
            note(
                f"{folder} has {counted(count, 'run')} that this command does not ask for: kept, "
                "and left out of the report"
            )

        failures = run_sweep(
            wanted,
            folder,
            workers,
            show,
            begin,
            on_round=show_round,
            players=many,
            command=command,
            file=file,
            shared=run_jobs,
            where=where,
            on_others=tell_others,
        )
    for name, reason in failures.items():
        err.print(f"failed: {name}: {reason}", soft_wrap=True)
    if failures:
        err.print(f"Their tracebacks: {folder / FAILED}", soft_wrap=True)
        err.print("The same command runs the failed cells again, and no other.")
    return bool(failures)


@contextmanager
def stoppable(then: str = "The same command goes on from here.") -> Iterator[None]:
    """Have a signal end the block, and say what to do then once all is cleaned up."""
    from ..machine.signals import exit_on_signals

    try:
        with exit_on_signals():
            yield
    except (KeyboardInterrupt, SystemExit):
        err.print(f"Stopped. {then}")
        raise


@contextmanager
def drawing() -> Iterator[None]:
    """Say that a report is drawn, which takes seconds, and on a busy machine many."""
    out.print("Drawing the report ...")
    with progress_bar("drawing"):
        yield


@contextmanager
def progress(what: str, thread: bool = True) -> Iterator[tuple[Progress, TaskID]]:
    """Show a bar, and say at the end how long it took."""
    start = time.perf_counter()
    with progress_bar(what, thread=thread) as (bar, task):
        yield bar, task
    out.print(f"{time.perf_counter() - start:.0f} s")
