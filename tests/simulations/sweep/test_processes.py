"""Jobs in processes of this machine: what becomes of one that fails, or that kills its process."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psutil
import pytest

from pncs_flower.simulations.sweep.failure import Failure
from pncs_flower.simulations.sweep.processes import Processes
from pncs_flower.strategies import DeadWorkerError


class TwoWordsError(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def act(job: str) -> Any:
    """Do what a word says."""
    match job:
        case "raise":
            raise KeyError("x")
        case "raise two":
            raise TwoWordsError("of", "two")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
        case "exit":
            os._exit(7)
        case "function":
            return lambda: None
        case "sleep":
            time.sleep(1000)
        case "much":
            return bytes(10_000_000)
    return os.getpid()


@pytest.fixture
def do() -> Iterator[Callable[..., dict[str, Any]]]:
    with closing(Processes(2)) as processes:

        def of(*jobs: str) -> dict[str, Any]:
            paths = {Path(str(number)): job for number, job in enumerate(jobs)}
            outcomes = {paths[path]: outcome for path, outcome in processes.do(act, paths)}
            assert len(outcomes) == len(paths)
            return outcomes

        yield of


@pytest.mark.parametrize(
    ("job", "kind", "text"),
    [
        ("raise", KeyError, "'x'"),
        ("raise two", RuntimeError, "TwoWordsError: of two"),
        ("kill", DeadWorkerError, r"has died \(SIGKILL\): .* memory runs out: have fewer at once"),
        ("abort", DeadWorkerError, r"has died \(SIGABRT\): native code crashed"),
        ("exit", DeadWorkerError, r"has died \(exit code 7\): its own code"),
        ("function", Exception, "pickle"),
    ],
)
def test_a_job_that_fails_fails_alone(
    job: str, kind: type[Exception], text: str, do: Callable[..., dict[str, Any]]
) -> None:
    outcomes = do("a", job, "b", "c")
    failure = outcomes.pop(job)
    assert isinstance(failure, Failure)
    with pytest.raises(kind, match=text):
        raise failure.error
    if job.startswith("raise") or job == "abort":
        assert "in act" in failure.traceback
    assert all(isinstance(pid, int) and pid != os.getpid() for pid in outcomes.values())


def test_outcomes_may_be_large_and_processes_do_one_job_after_the_other(
    do: Callable[..., dict[str, Any]],
) -> None:
    pids = {*do(*"abcdefgh").values()}
    assert 1 <= len(pids) <= 2
    assert do("much")["much"] == bytes(10_000_000)
    assert {*do(*"ab").values()} <= pids | {*do(*"cd").values()}


def test_a_process_that_is_killed_between_jobs_is_replaced(
    do: Callable[..., dict[str, Any]],
) -> None:
    for pid in {*do(*"abcd").values()}:
        os.kill(pid, signal.SIGKILL)
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)
    assert all(isinstance(pid, int) for pid in do(*"abcd").values())


def test_what_is_left_is_ended_when_nobody_waits_for_it() -> None:
    before = {*psutil.Process().children(recursive=True)}
    with closing(Processes(2)) as processes:
        for path, _ in processes.do(act, {Path("0"): "a", Path("1"): "sleep", Path("2"): "sleep"}):
            assert path == Path("0")
            break
    assert {*psutil.Process().children(recursive=True)} <= before


def test_nothing_is_left_of_a_process_that_is_killed() -> None:
    code = (
        "import time, os; from pathlib import Path; "
        "from pncs_flower.simulations.sweep.processes import Processes; "
        "jobs = {Path('0'): 1000.0, Path('1'): 1000.0, Path('2'): 1000.0}; "
        "processes = Processes(2); print('there', flush=True); [*processes.do(time.sleep, jobs)]"
    )
    with Popen([sys.executable, "-c", code], stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        parent = psutil.Process(process.pid)
        deadline = time.monotonic() + 60
        while len(children := parent.children(recursive=True)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        assert psutil.wait_procs(children, timeout=60)[1] == []


@pytest.mark.parametrize("job", ["a", "sleep"])
def test_what_to_do_is_told_when_the_process_that_starts_the_others_dies(job: str) -> None:
    before = {*psutil.Process().children()}
    with closing(Processes(1)) as processes:
        (starter,) = {*psutil.Process().children()} - before
        if job == "sleep":  # it dies in the middle
            threading.Timer(0.3, starter.kill).start()
        else:
            starter.kill()
        with pytest.raises(DeadWorkerError, match="the same command goes on from here"):
            list(processes.do(act, {Path("0"): job}))
