"""Which failures cost a job its node's end, and which its own: Ray's errors, without Ray."""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # noqa: F401 - is looked at where it has been imported
from ray import exceptions

from pncs_flower.simulations.run.cluster import Parcel, UnfitNodeError
from pncs_flower.simulations.sweep import pool

A, B, C = Path("a"), Path("b"), Path("c")
ON_CLUSTER = Parcel({}, {}, {})


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

    def wait(
        self, running: list[object], num_returns: int, timeout: float
    ) -> tuple[list[object], list[object]]:
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
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[str], dict[Path, Any]]:
    """Do two jobs, and return those that were submitted, and what became of them."""
    ray = cluster_of_two(monkeypatch, outcomes)
    monkeypatch.setattr(pool, "alive", lambda: next(alive) if alive else {"1", "2"})
    monkeypatch.setattr(pool, "LOOK_AT_NODES_AGAIN", 0.0)
    jobs = {A: "a", B: "b"}
    results = dict(pool._do_in_ray(lambda job, moved: job, jobs, parcel, None, say))
    return ray.submitted, results


def cluster_of_two(monkeypatch: pytest.MonkeyPatch, outcomes: list[object]) -> Ray:
    ray = Ray(outcomes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(pool, "machines", lambda: [SimpleNamespace(cpus=1)] * 2)
    monkeypatch.setattr(pool, "alive", lambda: {"1", "2"})
    return ray


@pytest.mark.parametrize(
    "error", [exceptions.NodeDiedError("dead"), exceptions.ObjectLostError("o", None, "c")]
)
def test_a_job_whose_node_dies_is_done_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    submitted, results = done(monkeypatch, [error, "b done", "a done"], say=said.append)
    assert submitted == ["a", "b", "a"]
    assert results == {A: "a done", B: "b done"}
    assert said == ["a: its node of the Ray cluster is gone, so it runs again."]


def test_a_node_that_comes_with_other_versions_ends_all_but_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unfit = exceptions.RayTaskError("do", "", UnfitNodeError("node X has torch 0.0.1"))
    ray, said = cluster_of_two(monkeypatch, [unfit, "b done"]), list[str]()
    jobs = {A: "a", B: "b", C: "c"}
    results = pool._do_in_ray(lambda job, moved: job, jobs, ON_CLUSTER, None, said.append)
    assert next(results) == (B, "b done")
    with pytest.raises(ValueError, match=r"node X has torch 0\.0\.1\. Stop that node or mend it: "):
        next(results)
    assert ray.submitted == ["a", "b"]
    assert len(said) == 1


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
