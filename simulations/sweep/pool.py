"""Where jobs are done: here one by one, or in Ray many at once; one that fails, fails alone."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from traceback import format_exception
from typing import Any, NamedTuple

from pncs_flower.plain_text import without_colours

from ..machine.signals import keeping_handlers
from ..machine.surroundings import cluster_address, short_folder

Do = Callable[[Any], Any]
RunJobs = Callable[[Do, Mapping[Path, Any]], Iterator[tuple[Path, Any]]]


class Failure(NamedTuple):
    """Why a job failed, and where."""

    error: Exception
    traceback: str


@contextmanager
def pool(workers: int) -> Iterator[RunJobs]:
    """Offer a function that does jobs, and yields results or `Failure` as they come."""
    # With 0 workers in this process, else in Ray, which is started for the first of the jobs.
    if workers == 0:
        yield _do_here
        return
    address = cluster_address()  # one that does not answer is told at once
    with ExitStack() as stack:
        start_once = cache(partial(_start_ray, workers, address, stack))

        def do_in_ray(do: Do, jobs: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
            if jobs:
                start_once()
                yield from _do_in_ray(do, jobs, workers)

        yield do_in_ray


def _do_here(do: Do, jobs: Mapping[Path, Any]) -> Iterator[tuple[Path, Any]]:
    for path, job in jobs.items():
        try:
            outcome = do(job)
        except Exception as error:
            outcome = Failure(error, "".join(format_exception(error)))
        yield path, outcome


def _start_ray(workers: int, address: str | None, stack: ExitStack) -> None:
    """Start Ray with a folder for what it keeps, or join the cluster of ``RAY_ADDRESS``."""
    # Ray's usage report wants the network; its warning on GPUs is about machines with some.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    own: dict[str, Any] = {}
    if address is None:
        folder = short_folder()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # Without "local" Ray would join whatever cluster somebody has started on this machine.
        own = {"address": "local", "num_cpus": workers, "include_dashboard": False}
        own["_temp_dir"] = str(folder)
    try:
        with keeping_handlers():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise ValueError(f"RAY_ADDRESS = {address}: {error}") from error
    stack.callback(ray.shutdown)


def _do_in_ray(do: Do, jobs: Mapping[Path, Any], workers: int) -> Iterator[tuple[Path, Any]]:
    import ray

    # A job that killed its worker would do so again.
    task = ray.remote(num_cpus=1, max_retries=0)(_do)
    running: dict[Any, Path] = {}
    todo = iter(jobs)
    while True:
        while len(running) < workers and (path := next(todo, None)) is not None:
            running[task.remote(do, jobs[path])] = path
        if not running:
            break
        finished, _ = ray.wait(list(running), num_returns=1)
        for reference in finished:
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)
                traceback = without_colours(str(error))  # of the worker too
                outcome = Failure(cause if isinstance(cause, Exception) else error, traceback)
            yield running.pop(reference), outcome


def _do(do: Do, job: Any) -> Any:
    return do(job)
