"""Memory and CPUs are what a container may use, not what its machine has."""

import os
from pathlib import Path

import pytest

from pncs_flower.simulations import client_app
from pncs_flower.simulations.machine.limits import usable_cpus, usable_memory
from pncs_flower.simulations.run.preflight import detect_machine

V1_UNLIMITED = "9223372036854771712"


def tree(root: Path, groups: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/job/step\n", {"job/step/memory.max": "1000000"}, 1000000),
        (
            "0::/job/step\n",
            {"job/step/memory.max": "max", "job/memory.max": "70000", "memory.max": "90000"},
            70000,
        ),
        ("0::/\n", {"memory.max": "50000"}, 50000),
        ("0::/not/there\n", {"memory.max": "50000"}, 50000),
        (
            "5:cpu,cpuacct:/a\n4:memory:/docker/x\n0::/\n",
            {"memory/docker/x/memory.limit_in_bytes": "60000"},
            60000,
        ),
        (
            "4:memory:/docker/x\n",
            {
                "memory/docker/x/memory.limit_in_bytes": V1_UNLIMITED,
                "memory/memory.limit_in_bytes": "40000",
            },
            40000,
        ),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": V1_UNLIMITED}, None),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("0::/a\n", {"a/memory.max": "nonsense"}, None),
        ("what\n\n::\n", {}, None),
    ],
)
def test_least_limit_of_the_control_groups_counts(
    groups: str, limits: dict[str, str], wanted: int | None, tmp_path: Path
) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert usable_memory(tree(tmp_path, groups, limits)) == (wanted or machine)


def test_without_control_groups_it_is_that_of_the_machine(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_clients_keep_copies_in_a_quarter_of_what_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_app, "usable_memory", lambda: 8000)
    monkeypatch.setattr(client_app, "usable_cpus", lambda: 2)
    assert client_app._share_of_memory() == 1000


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/job\n", {"job/cpu.max": "200000 100000"}, 2),
        ("0::/job\n", {"job/cpu.max": "150000 100000"}, 2),
        ("0::/job\n", {"job/cpu.max": "1000 100000"}, 1),
        ("0::/job\n", {"job/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3),
        ("0::/job\n", {"job/cpu.max": "6400000 100000"}, 8),
        ("0::/not/there\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/job\n", {"job/cpu.max": "200000"}, 8),
        ("0::/job\n", {"job/cpu.max": "200000 0"}, 8),
        (
            "3:cpu,cpuacct:/docker/x\n0::/\n",
            {
                "cpu/docker/x/cpu.cfs_quota_us": "400000",
                "cpu/docker/x/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            "3:cpu:/x\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            8,
        ),
        ("4:cpuset:/x\n", {"cpuset/cpu.cfs_quota_us": "1"}, 8),
    ],
)
def test_least_limit_on_the_time_of_cpus_counts(
    groups: str,
    limits: dict[str, str],
    wanted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cpus(tree(tmp_path, groups, limits)) == wanted


def test_cores_that_a_process_may_not_run_on_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cpus(tmp_path) == detect_machine().cpus == 1
