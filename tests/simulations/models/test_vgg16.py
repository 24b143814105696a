"""VGG16 with frozen layers: the two halves make the whole, and the cache gives what they gave."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_images
from PIL import Image
from torchvision.models import vgg16 as torchvision_vgg16

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.models.frozen import _cached, load_frozen
from pncs_flower.simulations.models.pretrained import build_last_layers, frozen_part, normalize
from pncs_flower.simulations.models.weights import read_weights
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train
from pncs_flower.simulations.task import _starts_at_random, initial_model, load_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images and the weights of two convolutions."""
    folder = tmp_path_factory.mktemp("vgg16")
    write_images(folder)
    state = {
        name: value
        for name, value in small_network().state_dict().items()
        if name.startswith("features")
    }
    torch.save(state, folder / "features.pth")
    return folder


def small_network() -> Any:
    """Torchvision's own convolutions; its large classifier is not built."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        with torch.device("meta"):
            network = torchvision_vgg16(weights=None, init_weights=False)
        network.features.to_empty(device="cpu")
        for parameter in network.features.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
    return network


Make = Callable[..., Config]


def settings(folder: Path, cache: Path, **more: Any) -> Config:
    """Return the settings of runs of this network on the data in a folder."""
    return Config.from_run_config(
        default_run_config()
        | {
            "dataset": "cifar10",
            "data-dir": str(folder),
            "model": "vgg16",
            "weights": str(folder / "features.pth"),
            "cache-dir": str(cache),
            "device": "cpu",
        }
        | {key.replace("_", "-"): value for key, value in more.items()}
    )


@pytest.fixture
def make(folder: Path, tmp_path: Path) -> Make:
    trained = {
        "trainable_layers": "classifier.0,classifier.3,classifier.6",
        "shards_per_client": 2,
    }
    return lambda **more: settings(folder, tmp_path / "cache", **(trained | more))


@pytest.fixture(scope="module")
def wide(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run that trains the last layer alone; its features take seconds to compute."""
    return settings(folder, tmp_path_factory.mktemp("cache"), shards_per_client=1, num_rounds=1)


def test_the_features_are_those_of_torchvisions_network(make: Make, folder: Path) -> None:
    inputs = load_inputs(make(features="raw"))
    network = small_network().features.eval()
    pixels = np.asarray(Image.open(folder / "test" / "3" / "0.png"), dtype=np.float64) / 255
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    image = torch.from_numpy(((pixels - mean) / deviation).transpose(2, 0, 1)[None])
    with torch.no_grad():
        expected = network.double()(image).numpy()[0]
    np.testing.assert_allclose(inputs.test[3], expected, rtol=1e-4, atol=1e-5 * expected.max())


def test_features_are_standardized_by_the_training_examples(make: Make) -> None:
    inputs, raw = load_inputs(make()), load_inputs(make(features="raw"))
    features = raw.train.astype(np.float64)
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation[deviation == 0] = 1
    for ready, given in (
        (inputs.train_tensors(np.arange(len(raw.train)))[0], features),
        (inputs.test_tensors()[0], raw.test.astype(np.float64)),
    ):
        np.testing.assert_allclose(ready.numpy(), (given - mean) / deviation, rtol=1e-3, atol=1e-3)
    assert "standardized" in inputs.notes[-1]


def test_pre_trained_layers_get_the_features_that_they_know(make: Make, tmp_path: Path) -> None:
    torch.save({"classifier.3.weight": torch.zeros(4096, 4096)}, tmp_path / "all.pth")
    both = "classifier.3,classifier.6"
    config = make(weights=str(tmp_path / "all.pth"), trainable_layers=both)
    assert not _starts_at_random(config)
    assert _starts_at_random(replace(config, trainable_layers="classifier.6"))
    assert _starts_at_random(make(trainable_layers=both))


def test_frozen_and_trained_layers_make_the_whole_network() -> None:
    # A narrow stand-in for the classifier would hide a wrong cut: the names decide it.
    two = ("classifier.3", "classifier.6")
    frozen, drawn = frozen_part("vgg16", {}, two, torch.zeros(2, 512, 7, 7))
    names = [name for name, _ in frozen.named_modules() if "." in name]
    assert names == ["classifier.0", "classifier.1", "classifier.2"]
    assert not frozen.training
    last = build_last_layers("vgg16", two, 10)
    assert [name for name, _ in last.named_modules() if "." in name] == [
        f"classifier.{place}" for place in (3, 4, 5, 6)
    ]
    assert drawn == ["classifier.0"]


@pytest.mark.minutes
def test_what_is_summed_in_advance_gives_the_same_features() -> None:
    pixels = torch.randn(2, 512, 1, 1, generator=torch.Generator().manual_seed(0))
    plain, summed = (
        frozen_part("vgg16", {}, ("classifier.3", "classifier.6"), sample)[0]
        for sample in (pixels.expand(-1, -1, 7, 7), pixels)
    )
    with torch.no_grad():
        torch.testing.assert_close(summed(pixels), plain(pixels), rtol=1e-4, atol=1e-5)


def test_small_grey_images_get_a_black_frame_and_three_channels() -> None:
    image = np.full((1, 1, 28, 28), 255, dtype=np.uint8)
    ready = normalize(image, 255, "imagenet1k-features")
    assert ready.shape == (1, 3, 32, 32)
    assert float(ready[0, 0, 1, 16]) == pytest.approx(-0.48235 * 255, rel=1e-5)
    assert float(ready[0, 2, 16, 16]) == pytest.approx((1 - 0.40784) * 255, rel=1e-5)


def test_only_what_is_trained_travels(wide: Config) -> None:
    model = initial_model(wide, load_inputs(wide))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == {"classifier.6.weight": (10, 4096), "classifier.6.bias": (10,)}


def test_a_run_says_which_frozen_weights_were_drawn(wide: Config, tmp_path: Path) -> None:
    grid = InProcessGrid(client_app, 10, wide.to_run_config())
    rows: list[Any] = []
    train(grid, wide, tmp_path, rows.append)
    assert len(rows) == 1
    assert "drawn at random: classifier.0, classifier.3" in (tmp_path / "summary.json").read_text()


def test_the_last_layer_depends_on_the_seed(make: Make) -> None:
    def weights(seed: int) -> torch.Tensor:
        return build_last_layers("vgg16", ("classifier.6",), 10, {}, seed).state_dict()[
            "classifier.6.weight"
        ]

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert float(weights(1).std()) == pytest.approx(0.01, rel=0.05)


def test_features_are_computed_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from pncs_flower.simulations.models import frozen

    first = load_frozen(make())
    frozen._opened.cache_clear()  # as a new process would

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(frozen, "frozen_part", refuse)
    again = load_frozen(make())
    assert isinstance(again.features[0], np.memmap)
    assert again.features[0].tobytes() == first.features[0].tobytes()


def test_other_weights_have_a_place_of_their_own(make: Make, tmp_path: Path) -> None:
    load_frozen(make())
    load_frozen(make(normalization="imagenet1k-features"))
    assert len(list((tmp_path / "cache").glob("vgg16-*"))) == 2


def test_a_damaged_cache_is_refused(make: Make, tmp_path: Path) -> None:
    from pncs_flower.simulations.models import frozen

    load_frozen(make())
    frozen._opened.cache_clear()
    path = next((tmp_path / "cache").glob("*/train.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged \(train.npy has changed\): delete that folder"):
        load_frozen(make())


KEY = {"model": "vgg16", "cut": "classifier.0"}


def whole(path: Path) -> dict[str, Any]:
    for part in ("train", "test"):
        np.save(path / f"{part}.npy", np.zeros((2, 3), np.float32))
        np.save(path / f"{part}-labels.npy", np.zeros(2, np.int64))
    return {"title": "two"}


@pytest.mark.skipif(sys.platform == "win32", reason="nobody can tell there who is still at work")
def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    def killed(path: Path) -> dict[str, Any]:
        (path / "train.npy").write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    child = os.fork()
    if not child:
        try:
            _cached(tmp_path, KEY, killed)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(list(tmp_path.rglob("train.npy"))) == 1
    assert _cached(tmp_path, KEY, whole).features[0].shape == (2, 3)
    assert [path.name.startswith("vgg16-") for path in folders(tmp_path)] == [True]


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_what_another_is_making_is_waited_for(tmp_path: Path) -> None:
    begun, made = threading.Event(), []

    def slowly(path: Path) -> dict[str, Any]:
        made.append(path)
        begun.set()
        time.sleep(0.3)
        return whole(path)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(_cached, tmp_path, KEY, slowly)
        begun.wait(10)
        assert _cached(tmp_path, KEY, slowly).about["title"] == "two"
        assert first.result().features[0].shape == (2, 3)
    assert len(made) == len(folders(tmp_path)) == 1


def test_what_fails_half_way_leaves_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        load_frozen(make())
    assert folders(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fc.weight": torch.zeros(2)}, "holds no weights of vgg16"),
        ({"features.0.weight": torch.zeros(2)}, r"features.0.weight has shape \(2,\)"),
        ([1, 2], "is not a state dict of tensors"),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=message):
        read_weights(str(tmp_path / "weights.pth"), "vgg16")


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"features.0.weight": Path.cwd}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="is not a state dict of tensors"):
        read_weights(str(tmp_path / "weights.pth"), "vgg16")


def test_weights_that_are_not_finite_count_as_missing(tmp_path: Path) -> None:
    torch.save({"classifier.3.bias": torch.full((4096,), torch.nan)}, tmp_path / "weights.pth")
    assert read_weights(str(tmp_path / "weights.pth"), "vgg16") == {}


def test_missing_weights_say_how_to_have_them(make: Make) -> None:
    with pytest.raises(FileNotFoundError, match=r"weights = '': .*get_model\('vgg16'"):
        load_inputs(make(weights=""))


def test_layers_in_the_middle_cannot_be_trained_alone(make: Make) -> None:
    with pytest.raises(ValueError, match=r"'classifier.3': for vgg16 it must be classifier.6 \|"):
        load_inputs(make(trainable_layers="classifier.3"))
