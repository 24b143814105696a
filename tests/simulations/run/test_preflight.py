"""What is refused before anything starts, and what each client is said to get."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.preflight import (
    Machine,
    check_run,
    choose_workers,
    note_on_asking,
    place_clients,
)

CONFIG = Config.from_run_config(default_run_config())
ON_CPU = replace(CONFIG, device="cpu")


@pytest.mark.parametrize(
    ("machine", "cpus", "gpus", "at_once"),
    [
        (Machine(cpus=8, gpus=0), 1, 0.0, 8),
        (Machine(cpus=8, gpus=0), 3, 0.0, 2),
        (Machine(cpus=64, gpus=0), 1, 0.0, 10),  # there are ten clients
        (Machine(cpus=64, gpus=2), 1, 0.25, 8),
        (Machine(cpus=64, gpus=1), 1, 0.1, 10),  # although 1 // 0.1 is 9
        (Machine(cpus=64, gpus=2), 1, 0.6, 2),  # one each, although 2 / 0.6 is above 3
        (Machine(cpus=64, gpus=4), 1, 2.0, 2),
        (Machine(cpus=2, gpus=1), 1, 0.1, 2),
    ],
)
def test_how_many_clients_run_at_once(
    machine: Machine, cpus: int, gpus: float, at_once: int
) -> None:
    placement = place_clients(CONFIG, 10, machine, cpus_per_client=cpus, gpus_per_client=gpus)
    assert placement.at_once == at_once


def test_the_placement_is_said_in_words() -> None:
    placement = place_clients(CONFIG, 10, Machine(8, 1), cpus_per_client=2, gpus_per_client=0.5)
    assert placement.describe() == (
        "each client gets 2 CPUs and 0.5 GPU; 2 at once on 8 CPUs and 1 GPU"
    )


def test_a_gpu_where_there_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0.5, but PyTorch sees 0 GPUs .* logical-gpus = 1"):
        place_clients(CONFIG, 10, Machine(8, 0), gpus_per_client=0.5)


def test_a_gpu_can_be_pretended_for_clients_that_compute_on_the_cpu() -> None:
    placement = place_clients(ON_CPU, 10, Machine(8, 0), gpus_per_client=0.5, logical_gpus=1)
    assert (placement.at_once, placement.machine) == (2, Machine(8, 1))


def test_a_pretended_gpu_cannot_compute() -> None:
    with pytest.raises(ValueError, match="set device to cpu"):
        place_clients(CONFIG, 10, Machine(8, 0), gpus_per_client=0.5, logical_gpus=1)


def test_gpus_are_not_pretended_on_a_cluster() -> None:
    with pytest.raises(ValueError, match=r"logical-gpus = 1, .* RAY_ADDRESS names: leave it out"):
        place_clients(ON_CPU, 10, [Machine(8, 1)], gpus_per_client=0.5, logical_gpus=1)


@pytest.mark.parametrize(
    ("cpus", "gpus", "message"),
    [
        (0, 0.0, "cpus-per-client = 0 must be at least 1"),
        (9, 0.0, "cpus-per-client = 9, but this machine has 8 CPUs"),
        (1, -0.5, "gpus-per-client = -0.5 must be 0, a share"),
        (1, 1.5, "gpus-per-client = 1.5 must be 0, a share"),
        (1, float("nan"), "gpus-per-client = nan must be 0, a share"),
    ],
)
def test_an_impossible_share_is_refused(cpus: int, gpus: float, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        place_clients(CONFIG, 10, Machine(8, 2), cpus_per_client=cpus, gpus_per_client=gpus)


def test_workers_where_processes_cannot_be_forked_are_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ValueError, match="workers = 2 needs Linux: leave it at 1 on darwin"):
        choose_workers(ON_CPU, 10, 2)
    assert choose_workers(ON_CPU, 10).at_once == 1


def test_cuda_without_a_share_of_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="device = 'cuda' but gpus-per-client = 0"):
        place_clients(replace(CONFIG, device="cuda"), 10, Machine(8, 1))


def test_nodes_of_a_cluster_are_counted_each_for_itself() -> None:
    nodes = [Machine(3, 1), Machine(3, 0), Machine(64, 2)]
    on_cpus = place_clients(CONFIG, 100, nodes, cpus_per_client=2)
    assert on_cpus.describe() == "each client gets 2 CPUs; 34 at once on a Ray cluster of 3 nodes"
    assert (on_cpus.machine, place_clients(CONFIG, 10, nodes, gpus_per_client=0.5).at_once) == (
        None,
        6,
    )


def test_a_share_that_no_node_of_a_cluster_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no node .* \(4 CPUs and 0 GPUs; 4 CPUs and 1 GPU\)"):
        place_clients(CONFIG, 10, [Machine(4, 0), Machine(4, 1)], cpus_per_client=5)


@pytest.mark.parametrize(
    ("clients", "changes", "message"),
    [
        (
            10,
            {"num_selected": 11},
            "num-selected = 11, but there are only 10 clients: select fewer in a",
        ),
        (10, {"rule": "layers = 'fc3'"}, "unknown layer 'fc3': the model's layers are fc1, fc2"),
        (10, {"rule": "sketch = 'sum'"}, "unknown sketch 'sum'"),
        (7, {"shards_per_client": 3}, "7 clients x 3 shards-per-client = 21 shards"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    clients: int, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_run(replace(CONFIG, **changes), clients)


def test_the_command_says_what_is_wrong_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "new"
    result = CliRunner().invoke(
        app, ["run", "--set", "rule.layers=fc3", "--output", str(output), "--engine", "in-process"]
    )
    assert result.exit_code == 1
    assert "unknown layer 'fc3'" in result.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("strategy", "changes", "clients", "note"),
    [
        ("pncs", {}, 2000, "2,000 of 2,000 clients: 2,000 messages and trainings, and 208.0 kB"),
        ("pncs", {}, 2000, "with --set rule.candidates=10 it asks 10"),
        ("pncs", {"num-selected": 500}, 2000, "208.0 kB up; pncs rules lists others"),
        ("fedcor", {}, 2000, "2,000 messages and evaluations, and 32.0 kB up; pncs rules lists"),
        ("pncs", {}, 999, None),
        ("pncs", {"rule.candidates": 10}, 2000, None),
        ("uniform", {}, 2000, None),
    ],
)
def test_what_a_round_takes_that_asks_very_many_is_told(
    strategy: str, changes: dict[str, Any], clients: int, note: str | None
) -> None:
    own = {"strategy": strategy, "model": "linear", **changes}
    told = note_on_asking(Config.from_run_config(default_run_config() | own), clients)
    assert told == note if note is None else note in str(told)


def test_ten_thousand_clients_cannot_share_what_is_less() -> None:
    with pytest.raises(ValueError, match="10000 clients cannot share 1442 examples: have between"):
        check_run(ON_CPU, 10_000)


def test_a_file_that_lacks_a_clients_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    header = "client,seconds_per_example,download_kbit_s,upload_kbit_s"
    path.write_text("\n".join([header, *(f"{k},0.02,6000,2000" for k in range(9))]))
    config = replace(CONFIG, devices=str(path))
    check_run(replace(config, partition="iid"), 9)
    with pytest.raises(ValueError, match=r"client '9' is not among the devices of .*devices\.csv"):
        check_run(config, 10)
