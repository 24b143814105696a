"""Models: layer names, shapes, and weights from the seed alone."""

import pytest
import torch

from pncs_flower.layers import group_layers
from pncs_flower.simulations.models.small import TORCHVISION, build_model

LAYERS = {
    "linear": ["fc"],
    "mlp": ["fc1", "fc2"],
    "cnn": ["conv1", "conv2", "fc1", "fc2"],
    "resnet8": [
        *("conv", "norm"),
        *("block1.conv1", "block1.norm1", "block1.conv2", "block1.norm2"),
        *("block2.conv1", "block2.norm1", "block2.conv2", "block2.norm2", "block2.shortcut"),
        *("block3.conv1", "block3.norm1", "block3.conv2", "block3.norm2", "block3.shortcut"),
        "fc",
    ],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_the_documented_names(name: str) -> None:
    assert list(group_layers(build_model(name, (1, 8, 8), 10).state_dict())) == LAYERS[name]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", LAYERS)
def test_images_become_logits(name: str, shape: tuple[int, int, int]) -> None:
    assert build_model(name, shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", LAYERS)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    def weights(seed: int) -> bytes:
        torch.manual_seed(id(object()) % 1000)
        model = build_model(name, (1, 8, 8), 10, seed)
        return b"".join(array.numpy().tobytes() for array in model.state_dict().values())

    assert weights(3) == weights(3)
    assert weights(3) != weights(4)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvisions_models_take_one_small_grey_image_in_training(name: str) -> None:
    model = build_model(name, (1, 8, 8), 7)
    logits = model.train()(torch.zeros(1, 1, 8, 8))
    logits.sum().backward()
    assert logits.shape == (1, 7)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(layer.startswith("network.") for layer in group_layers(model.state_dict()))


def test_pytorchs_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    build_model("mlp", (1, 8, 8), 10)
    assert torch.equal(torch.get_rng_state(), before)
