"""Examples are shared by all runs of a process, so nobody may work in place on them."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_images
from torchvision import models

from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.data.datasets import load_dataset
from pncs_flower.simulations.study.observe import Observations, observe_pairs
from pncs_flower.simulations.sweep.run import run_sweep
from pncs_flower.simulations.sweep.sweep import Sweep
from pncs_flower.simulations.task import Inputs, inputs_fingerprint, load_inputs

NETWORK = "torchvision/mobilenet_v3_small"
KINDS: dict[str, dict[str, Any]] = {
    "images": {"model": "linear"},
    "colour images": {"model": "linear", "dataset": "cifar10"},
    "features": {"features": "raw"},
    "standardized": {},
    "resized": {"resize": 40},
    "two layers": {"trainable-layers": "classifier.0,classifier.3"},
    "two layers at random": {
        "trainable-layers": "classifier.0,classifier.3",
        "weights": "head.pth",
    },
}

EACH = list(product(KINDS, ["test", "validation"]))


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a run on what a small network's frozen layers make of a few images."""
    folder = tmp_path_factory.mktemp("network")
    write_images(folder, of_each=10)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = models.mobilenet_v3_small(weights=None).state_dict()
    torch.save(state, folder / "weights.pth")
    # What is trained above these starts at random.
    torch.save({k: v for k, v in state.items() if "classifier" not in k}, folder / "head.pth")
    return {
        "dataset": "cifar10",
        "data-dir": str(folder),
        "model": NETWORK,
        "weights": str(folder / "weights.pth"),
        "trainable-layers": "classifier.3",
        "cache-dir": str(folder / "cache"),
        "shards-per-client": 2,
        "device": "cpu",
    }


def config(frozen: dict[str, Any], **settings: Any) -> Config:
    own = {key.replace("_", "-"): value for key, value in settings.items()}
    return Config.from_run_config(default_run_config() | frozen | own)


def of_kind(kind: str, frozen: dict[str, Any], evaluate_on: str) -> Config:
    own = dict(KINDS[kind])
    if kind == "images":
        frozen = {}
    if "weights" in own:
        own["weights"] = str(Path(frozen["data-dir"]) / own["weights"])
    return config(frozen, evaluate_on=evaluate_on, **own)


def tensors(inputs: Inputs) -> Iterator[torch.Tensor]:
    yield from inputs.test_tensors()
    yield from inputs.train_tensors(np.arange(7))


@pytest.mark.parametrize(("kind", "on"), EACH)
def test_examples_are_the_same_whenever_they_are_asked_for(
    kind: str, on: str, frozen: dict[str, Any]
) -> None:
    settings = of_kind(kind, frozen, on)
    first = [tensor.clone() for tensor in tensors(load_inputs(settings))]
    for _ in range(3):
        for tensor, wanted in zip(tensors(load_inputs(settings)), first, strict=True):
            assert torch.equal(tensor, wanted)
            tensor.zero_()  # whoever has them may do as they like with them


@pytest.mark.parametrize(("kind", "on"), EACH)
def test_nothing_that_is_shared_can_be_written_to(
    kind: str, on: str, frozen: dict[str, Any]
) -> None:
    settings = of_kind(kind, frozen, on)
    inputs, data = load_inputs(settings), load_dataset(settings.dataset, settings.data_dir)
    shared = (inputs.train, inputs.train_labels, inputs.test, inputs.test_labels)
    images = (data.train, data.train_labels, data.test, data.test_labels)
    for values in (*shared, *images):
        with pytest.raises(ValueError, match="read-only"):
            values[:] = 0


@pytest.mark.parametrize("on", ["test", "validation"])
def test_features_are_standardized_exactly_once(on: str, frozen: dict[str, Any]) -> None:
    raw = load_inputs(config(frozen, evaluate_on=on, features="raw")).test_tensors()[0]
    inputs = load_inputs(config(frozen, evaluate_on=on))
    assert inputs.moments is not None
    mean, deviation = (torch.from_numpy(moment) for moment in inputs.moments)
    for _ in range(2):
        torch.testing.assert_close(inputs.test_tensors()[0], (raw - mean) / deviation)


def bits(seen: Observations) -> list[bytes]:
    return [values.tobytes() for values in seen.values()]


def test_a_study_repeated_in_one_process_has_the_same_bits(
    frozen: dict[str, Any], tmp_path: Path
) -> None:
    own = {"cache_dir": str(tmp_path), "evaluate_on": "validation"}  # nobody used these examples
    settings = config(frozen, num_rounds=2, lr=0.01, **own)
    first = bits(observe_pairs(settings, 5))
    assert [bits(observe_pairs(settings, 5)) for _ in range(3)] == [first] * 3


@pytest.mark.minutes
def test_a_tuning_repeated_in_one_process_has_the_same_results(
    frozen: dict[str, Any], tmp_path: Path
) -> None:
    settings = {key: value for key, value in frozen.items() if key != "shards-per-client"}
    sweep = Sweep(
        "a sweep",
        ("uniform", "round-robin"),
        clients=5,
        seeds=1,
        shards=(2,),
        model="scratch",
        settings={**settings, "cache-dir": str(tmp_path / "cache"), "num-rounds": 2},
        tune={"lr": [0.01, 0.1], "seeds": 2},
    )
    found = []
    for name in ("first", "second"):
        assert run_sweep(sweep, tmp_path / name, 0, lambda *_: None) == {}
        tuned = sorted((tmp_path / name / "tuning").iterdir())
        found.append([(path.name, scores(path)) for path in tuned])
        assert len(tuned) == 8
    assert found[0] == found[1]


def scores(path: Path) -> list[tuple[float, float]]:
    _, *rounds, _, _ = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    return [(row["accuracy"], row["loss"]) for row in rounds]


def test_results_on_validation_examples_that_were_wrong_are_not_taken_for_new_ones(
    frozen: dict[str, Any],
) -> None:
    usual, held = config(frozen), config(frozen, evaluate_on="validation")
    assert inputs_fingerprint(usual) != inputs_fingerprint(held)
    images = config({}, evaluate_on="validation")
    assert inputs_fingerprint(images) == inputs_fingerprint(config({}))
