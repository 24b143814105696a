"""Memory is what a container may use, not what its machine has."""

import os
from pathlib import Path

import pytest

from pncs_flower.simulations import client_app
from pncs_flower.simulations.machine.memory import usable_memory

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
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert client_app._share_of_memory() == 1000
