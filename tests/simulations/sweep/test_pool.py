"""Which failures cost a job its node's end, and which its own: Ray's errors, without Ray."""

import sys
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # noqa: F401 - is looked at where it has been imported
from ray import exceptions

from pncs_flower.simulations.run.cluster import Parcel
from pncs_flower.simulations.sweep import pool

A, B = Path("a"), Path("b")
ON_CLUSTER = Parcel({}, {})


class Ray:
    """Does one job after the other, with the outcomes that it is given in turn."""

    exceptions = exceptions

    def __init__(self, outcomes: list[object]) -> None:
        self._outcomes = outcomes
        self.submitted: list[str] = []

    def remote(self, **options: object) -> Any:
        assert options["max_retries"] == 0

        def submit(do: object, job: str, parcel: object) -> object:
            self.submitted.append(job)
            return object()

        return lambda task: SimpleNamespace(remote=submit)

    def put(self, value: object) -> object:
        return value

    def wait(self, running: list[object], num_returns: int) -> tuple[list[object], list[object]]:
        return running[:1], running[1:]

    def get(self, reference: object) -> object:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def done(
    monkeypatch: pytest.MonkeyPatch,
    outcomes: list[object],
    alive: Iterator[set[str]] | None = None,
    parcel: Parcel | None = ON_CLUSTER,
) -> tuple[list[str], dict[Path, Any]]:
    """Do two jobs, and return those that were submitted, and what became of them."""
    ray = Ray(outcomes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(pool, "machines", lambda: [SimpleNamespace(cpus=2)])
    monkeypatch.setattr(pool, "alive", lambda: next(alive) if alive else {"1", "2"})
    monkeypatch.setattr(pool, "LOOK_AT_NODES_AGAIN", 0.0)
    jobs = {A: "a", B: "b"}
    results = dict(pool._do_in_ray(lambda job, moved: job, jobs, parcel, None))
    return ray.submitted, results


@pytest.mark.parametrize(
    "error", [exceptions.NodeDiedError("dead"), exceptions.ObjectLostError("o", None, "c")]
)
def test_a_job_whose_node_dies_is_done_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, results = done(monkeypatch, [error, "b done", "a done"])
    assert submitted == ["a", "b", "a"]
    assert results == {A: "a done", B: "b done"}


def test_a_job_that_loses_three_nodes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    died = exceptions.NodeDiedError("dead")
    submitted, results = done(monkeypatch, ["a done", died, died, died])
    assert submitted == ["a", "b", "b", "b"]
    assert results[B].error is died


@pytest.mark.parametrize(("parcel", "patience"), [(None, 1e9), (ON_CLUSTER, 0.05)])
def test_a_job_that_kills_its_worker_fails(
    parcel: Parcel | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "NODE_ENDS", patience)
    outcomes = [exceptions.WorkerCrashedError(), "b done"]
    submitted, results = done(monkeypatch, outcomes, parcel=parcel)
    assert submitted == ["a", "b"]
    assert isinstance(results[A].error, exceptions.WorkerCrashedError)


def test_a_worker_that_ends_before_its_node_is_no_fault_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"1", "2"}
    alive = iter([both, both, both, both, {"1"}, {"1"}])  # gone after a while
    submitted, results = done(
        monkeypatch, [exceptions.WorkerCrashedError(), "b done", "a done"], alive
    )
    assert submitted == ["a", "b", "a"]
    assert results == {A: "a done", B: "b done"}


def test_a_cluster_is_joined_once_with_the_rules_of_all_jobs_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Collection[str]] = []

    def join(address: str, strategies: Collection[str]) -> Any:
        sent.append(strategies)
        return nullcontext()

    monkeypatch.setattr(pool, "cluster_address", lambda: "a:1")
    monkeypatch.setattr(pool, "joined", join)
    monkeypatch.setattr(pool, "prepare", lambda configs: None)
    monkeypatch.setattr(pool, "_do_in_ray", lambda do, jobs, *_: iter(jobs.items()))
    with pool.pool(None, ["pncs", "mine:Rule"]) as run_jobs:
        for job in (A, B):
            assert list(run_jobs(lambda *_: None, {job: "a"}, [])) == [(job, "a")]
    assert sent == [["pncs", "mine:Rule"]]


def test_a_process_that_has_used_a_gpu_forks_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def start(count: int) -> Any:
        counts.append(count)
        return nullcontext()

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr(pool, "cluster_address", lambda: None)
    monkeypatch.setattr(pool, "_ray_here", start)
    monkeypatch.setattr(pool, "_do_in_ray", lambda do, jobs, *_: iter(jobs.items()))
    with pool.pool(3) as run_jobs:
        assert list(run_jobs(lambda *_: None, {A: "a"}, [])) == [(A, "a")]
    assert counts == [3]
