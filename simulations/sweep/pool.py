"""Where jobs are done: one by one, or many at once, here or in Ray; one that fails, fails alone."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pncs_flower.plain_text import without_colours

from ..config import Config
from ..machine.limits import usable_cpus
from ..machine.signals import end_if_signalled
from ..machine.surroundings import cluster_address, short_folder
from ..run.cluster import Parcel, UnfitNodeError, alive, joined, machines, prepare, session
from ..timeouts import LOOK_AT_NODES_AGAIN, NODE_ENDS, NODES_COME
from .failure import Failure

_FORKS = sys.platform == "linux"  # elsewhere not with PyTorch in memory
_MOST_NODES = 3  # on which a job is tried, if they die

Moved = Callable[[Config], Config]
"""Puts paths into settings that are right where a job is done."""

Do = Callable[[Any, Moved], Any]
RunJobs = Callable[[Do, Mapping[Path, Any], Collection[Config]], Iterator[tuple[Path, Any]]]
"""What to do, the job for each path, and the settings of the jobs."""


@contextmanager
def pool(
    workers: int | None,
    strategies: Iterable[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[RunJobs]:
    """Offer a function that does jobs, and yields results or `Failure` as they come."""
    # With 0 workers in this process, else in so many others, by None as many as there are CPUs: on
    # the cluster that there is, or forked at once, so that there should be no threads yet. Where
    # that cannot be done Ray starts them, for the first of the jobs. ``strategies`` are those of
    # all jobs to come; ``say`` is told of nodes that are lost.
    if workers == 0:
        yield _do_here
        return
    address = cluster_address()  # one that does not answer is told at once
    if address is None and _can_fork():
        from .processes import Processes  # which only Linux can import

        with closing(Processes(workers or usable_cpus())) as processes:
            yield lambda do, jobs, configs: processes.do(partial(_do, do, parcel=None), jobs)
        return
    with ExitStack() as stack:
        started = False

        def do_in_ray(
            do: Do, jobs: Mapping[Path, Any], configs: Collection[Config]
        ) -> Iterator[tuple[Path, Any]]:
            nonlocal started
            if not jobs:
                return
            if not started:
                stack.enter_context(
                    _ray_here(workers or usable_cpus())
                    if address is None
                    else joined(address, strategies)
                )
                started = True
            parcel = None if address is None else prepare(configs)
            yield from _do_in_ray(do, jobs, parcel, workers, say)

        yield do_in_ray


def _can_fork() -> bool:
    """Tell whether processes can be forked: of one that has used a GPU they could use none."""
    torch = sys.modules.get("torch")  # features of frozen layers may have been computed here
    return _FORKS and not (torch and torch.cuda.is_initialized())


def _do_here(
    do: Do, jobs: Mapping[Path, Any], configs: Collection[Config]
) -> Iterator[tuple[Path, Any]]:
    for path, job in jobs.items():
        try:
            outcome = _do(do, job, None)
        except Exception as error:
            outcome = Failure.of(error)
        end_if_signalled()  # whatever has become of it in a cell, which has not failed then
        yield path, outcome


@contextmanager
def _ray_here(workers: int) -> Iterator[None]:
    """Have Ray on this machine, with a folder for what it keeps."""
    with short_folder() as folder:
        own = {"num_cpus": workers, "include_dashboard": False, "_temp_dir": str(folder)}
        # Without "local" Ray would join whatever cluster somebody has started on this machine.
        with session("local", **own):
            yield


def _do_in_ray(
    do: Do,
    jobs: Mapping[Path, Any],
    parcel: Parcel | None,
    workers: int | None,
    say: Callable[[str], None],
) -> Iterator[tuple[Path, Any]]:
    import ray

    # A job that killed its worker would do so again; but it is not to blame for its node's end.
    task = ray.remote(num_cpus=1, max_retries=0)(_do)
    of_nodes = (ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError)
    running: dict[Any, tuple[Path, set[str]]] = {}
    todo, lost = list(jobs)[::-1], Counter[Path]()
    unfit: UnfitNodeError | None = None
    given = ray.put(parcel)
    while todo or running:
        most = workers or sum(each.cpus for each in machines())  # a cluster may grow and shrink
        while todo and len(running) < max(most, 1):
            path = todo.pop()
            running[task.remote(do, jobs[path], given)] = path, alive()
        finished, _ = ray.wait(list(running), num_returns=1, timeout=NODES_COME)
        while finished:
            # Not held while others are waited for: Ray would tell if it were lost with its node.
            reference = finished.pop()
            path, before = running.pop(reference)
            try:
                outcome = ray.get(reference)
                del reference
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, UnfitNodeError):  # idle, it would be given all others too
                    if unfit is None:
                        say(f"{cause}. No other run is begun; those of other nodes are waited for.")
                    unfit = cause
                    todo.clear()
                    continue
                crashed = isinstance(error, ray.exceptions.WorkerCrashedError)
                may_end = parcel is not None  # there is but one, if Ray was started here
                if isinstance(error, of_nodes) or (crashed and may_end and _one_ends(before)):
                    lost[path] += 1
                    if lost[path] < _MOST_NODES:
                        say(f"{path.stem}: its node of the Ray cluster is gone, so it runs again.")
                        todo.append(path)
                        continue
                traceback = without_colours(str(error))  # of the worker too
                outcome = Failure(cause if isinstance(cause, Exception) else error, traceback)
            yield path, outcome
    if unfit is not None:
        raise ValueError(f"{unfit}. Stop that node or mend it: the same command goes on")


def _one_ends(nodes: set[str]) -> bool:
    """Tell whether a node is gone, or soon is: one that ends may stop its workers first."""
    deadline = monotonic() + NODE_ENDS
    while not nodes - alive():
        if monotonic() >= deadline:
            return False
        sleep(LOOK_AT_NODES_AGAIN)
    return True


def _do(do: Do, job: Any, parcel: Parcel | None) -> Any:
    if parcel is None:
        return do(job, lambda config: config)
    parcel.accept()
    return do(job, parcel.moved)
