"""What a run is said to need of a GPU's memory, and that it is refused if there is less."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.run.preflight import (
    Machine,
    Placement,
    check_gpu_memory,
    check_run,
    estimate_memory,
    free_gpu_memory,
)
from pncs_flower.simulations.task import load_inputs

CONFIG = replace(Config.from_run_config(default_run_config()), strategy="uniform")
INPUTS = load_inputs(CONFIG)


def examples(size: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(size, 8), torch.zeros(size, dtype=torch.int64)


@pytest.mark.parametrize(
    ("momentum", "trains", "copies"), [(False, True, 2), (True, True, 3), (False, False, 1)]
)
def test_the_parts_are_those_counted_by_hand(momentum: bool, trains: bool, copies: int) -> None:
    model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    need = estimate_memory(model, examples(), 100, 32, momentum=momentum, trains=trains)
    assert need["weights"] == copies * 4 * (8 * 5 + 5 + 5 * 3 + 3)
    assert need["examples"] == 100 * (8 * 4 + 8)
    assert need["activations"] == 32 * ((5 + 5 + 3) * 4 * (1 + trains) + 8 * 4)
    assert need["CUDA itself"] == 700 * 2**20


def test_frozen_weights_have_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    need = estimate_memory(model, examples(), 100, 32)
    assert need["weights"] == 4 * (8 * 5 + 5) + 2 * 4 * (5 * 3 + 3)


def test_a_batch_is_no_larger_than_the_examples() -> None:
    model = nn.Linear(8, 3)
    assert estimate_memory(model, examples(), 10, 1024) == estimate_memory(
        model, examples(), 10, 10
    )


def check(free: float, share: float = 0.25, config: Config = CONFIG, at_once: int = 10) -> None:
    machine = Machine(16, 4, gpu_memory=int(free))
    check_gpu_memory(config, INPUTS, 10, Placement(1, share, at_once, machine))


def test_too_many_clients_on_a_gpu_are_refused_with_a_share_that_suffices() -> None:
    with pytest.raises(ValueError, match=r"4 clients at once .* but 2.40 GB are free") as refused:
        check(2.4e9)
    share = re.search(r"gpus-per-client = ([\d.]+)", str(refused.value))
    assert share is not None
    check(2.4e9, float(share[1]))


def test_where_not_even_one_fits_the_remedy_is_another() -> None:
    with pytest.raises(ValueError, match="not even one fits: use a smaller batch-size or model"):
        check(1e9)


@pytest.mark.parametrize(
    ("free", "share", "config"),
    [
        (80e9, 0.25, CONFIG),
        (0, 0.25, CONFIG),  # nobody knows
        (1e9, 0.0, CONFIG),
        (1e9, 0.25, replace(CONFIG, device="cpu")),
    ],
)
def test_what_fits_or_is_not_on_a_gpu_passes(free: float, share: float, config: Config) -> None:
    check(free, share, config)


def test_no_more_clients_count_than_compute_at_once() -> None:
    check(2.4e9, at_once=2)


def test_a_run_is_checked_with_its_placement() -> None:
    placement = Placement(1, 0.1, 10, Machine(16, 1, gpu_memory=2 * 10**9))
    with pytest.raises(ValueError, match="10 clients at once on a GPU need about"):
        check_run(CONFIG, 10, placement)


def fake_driver(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_gpu_with_the_least_free_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(tmp_path, "printf '81000\\n500\\n'")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert free_gpu_memory() == 500 * 2**20


def test_only_visible_gpus_are_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(tmp_path, 'test "$4" = 1,2 && echo 700')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert free_gpu_memory() == 700 * 2**20


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A]'", None])
def test_a_driver_that_does_not_say_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    if script:
        fake_driver(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert free_gpu_memory() == 0
