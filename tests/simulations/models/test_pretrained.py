"""Any of torchvision's classifiers with frozen layers: its halves make the whole."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_images
from PIL import Image
from torchvision import models

from pncs_flower.simulations.client_app import app as client_app
from pncs_flower.simulations.config import Config, default_run_config
from pncs_flower.simulations.models.pretrained import build_last_layers, cuts, frozen_part
from pncs_flower.simulations.models.weights import read_weights
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.simulations.run.training import train
from pncs_flower.simulations.task import initial_model, load_inputs

# Of each kind of end: one linear layer, several in a row, one inside a block.
NETWORKS = {
    "resnet18": ("fc",),
    "mobilenet_v3_small": ("classifier.0", "classifier.3"),
    "vit_b_32": ("heads.head",),
    "densenet121": ("classifier",),
    "regnet_y_400mf": ("fc",),
}


def whole_network(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.get_model(name, weights=None).eval()


@pytest.mark.minutes
@pytest.mark.parametrize("name", NETWORKS)
def test_both_parts_make_the_whole(name: str) -> None:
    network = whole_network(name)
    side = 224 if name.startswith("vit") else 64
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    layers, state = NETWORKS[name], network.state_dict()
    part, drawn = frozen_part(f"torchvision/{name}", state, layers, images)
    assert drawn == []
    tail = build_last_layers(f"torchvision/{name}", layers, 1000, state).eval()
    own = {key: value for key, value in state.items() if key in tail.state_dict()}
    tail.load_state_dict(own)
    with torch.no_grad():
        torch.testing.assert_close(tail(part(images)), network(images))


def test_the_last_layer_is_new_and_those_before_it_start_from_the_weights() -> None:
    state = whole_network("mobilenet_v3_small").state_dict()
    model, layers = "torchvision/mobilenet_v3_small", ("classifier.0", "classifier.3")
    tail = build_last_layers(model, layers, 10, state, seed=1)
    entries = tail.state_dict()
    assert list(entries) == [
        "classifier.0.weight",
        "classifier.0.bias",
        "classifier.3.weight",
        "classifier.3.bias",
    ]
    assert torch.equal(entries["classifier.0.weight"], state["classifier.0.weight"])
    assert entries["classifier.3.weight"].shape == (10, 1024)


def test_the_last_layer_depends_on_the_seed_alone() -> None:
    state = whole_network("resnet18").state_dict()

    def weights(seed: int) -> torch.Tensor:
        last = build_last_layers("torchvision/resnet18", ("fc",), 10, state, seed)
        return last.state_dict()["fc.weight"]

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        ("resnet81", ("fc",), r"'resnet81': did you mean 'resnet18'\?"),
        ("resnet18", ("layer4",), r"'layer4': for resnet18 it must be fc$"),
        ("resnet18", (), r"trainable-layers = ''"),
        ("resnet18", ("layer4.1.bn2", "fc"), r"must be fc$"),
        ("efficientnet_b0", ("fc",), r"must be classifier\.1$"),
        ("mobilenet_v3_small", ("fc",), r"classifier\.3 \| classifier\.0,classifier\.3$"),
        ("squeezenet1_0", ("classifier.1",), "is not linear"),
    ],
)
def test_layers_that_cannot_be_trained(name: str, layers: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cuts(f"torchvision/{name}", layers)


def test_weights_that_lack_frozen_layers_are_refused() -> None:
    images, last = torch.zeros(1, 3, 64, 64), {"fc.weight": torch.zeros(10, 512)}
    with pytest.raises(ValueError, match="lack 100 entries of resnet18 that are frozen"):
        frozen_part("torchvision/resnet18", last, ("fc",), images)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("bn1.bias", torch.full((64,), torch.nan), r"bn1\.bias is not finite"),
        (
            "conv1.weight",
            torch.zeros(2),
            r"conv1\.weight has shape \(2,\), but resnet18 has \(64, 3",
        ),
        (
            "features.0.weight",
            torch.zeros(2),
            r"holds no weights of resnet18, such as conv1\.weight",
        ),
    ],
)
def test_weights_of_another_network_are_refused(
    entry: str, value: torch.Tensor, message: str, tmp_path: Path
) -> None:
    torch.save({entry: value}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=message):
        read_weights(str(tmp_path / "weights.pth"), "torchvision/resnet18")


def test_images_of_another_size_than_the_network_wants() -> None:
    state = whole_network("vit_b_32").state_dict()
    with pytest.raises(ValueError, match=r"cannot take images of 32x32: set resize"):
        frozen_part("torchvision/vit_b_32", state, ("heads.head",), torch.zeros(1, 3, 32, 32))


def test_missing_file_says_how_to_have_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="get_model\\('resnet18', weights='DEFAULT'\\)"):
        read_weights(str(tmp_path / "none.pth"), "torchvision/resnet18")


def test_file_that_holds_no_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.pth").write_text("hello\n")
    with pytest.raises(ValueError, match=r"junk\.pth' is not a state dict of tensors"):
        read_weights(str(tmp_path / "junk.pth"), "torchvision/resnet18")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("resnet18")
    write_images(folder)
    torch.save(whole_network("resnet18").state_dict(), folder / "resnet18.pth")
    return Config.from_run_config(
        default_run_config()
        | {
            "dataset": "cifar10",
            "data-dir": str(folder),
            "model": "torchvision/resnet18",
            "weights": str(folder / "resnet18.pth"),
            "trainable-layers": "fc",
            "resize": 64,
            "cache-dir": str(folder / "cache"),
            "shards-per-client": 1,
            "num-rounds": 1,
            "device": "cpu",
        }
    )


def test_missing_weights_are_named_by_the_network(config: Config) -> None:
    with pytest.raises(FileNotFoundError, match="model resnet18 needs"):
        load_inputs(replace(config, weights=""))


def test_images_are_resized_and_their_features_kept(config: Config) -> None:
    inputs = load_inputs(config)
    assert inputs.train.shape == (10, 512)
    assert isinstance(inputs.train, np.memmap)
    image = Image.open(Path(config.data_dir) / "test" / "3" / "0.png")
    expected_input = models.ResNet18_Weights.IMAGENET1K_V1.transforms(crop_size=64, resize_size=64)(
        image
    )[None]
    network = whole_network("resnet18")
    network.fc = torch.nn.Identity()
    with torch.no_grad():
        expected = network(expected_input).numpy()[0]
    # Torchvision rounds resized pixels to whole numbers.
    np.testing.assert_allclose(inputs.test[3], expected, rtol=0.05, atol=0.01 * expected.max())


def test_a_run_trains_the_last_layer(config: Config, tmp_path: Path) -> None:
    grid = InProcessGrid(client_app, 10, config.to_run_config())
    train(grid, config, tmp_path, lambda row: None)
    before = initial_model(config, load_inputs(config)).state_dict()
    assert list(before) == ["fc.weight", "fc.bias"]
    assert (tmp_path / "summary.json").is_file()
