"""Batch normalization, which cannot train on one example, and a last batch of one."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pncs_flower.clients import training
from pncs_flower.clients.training import (
    LocalTraining,
    Pieces,
    full_batch_gradient,
    local_sgd,
    mean_loss,
)


def flat() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3))


def pooled() -> nn.Module:
    """One pixel is left for the batch normalization."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))


def wide() -> nn.Module:
    """Several pixels are left: one example is enough."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 3)
    )


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3))


class Frozen(nn.Sequential):
    """Its batch normalization stays in evaluation mode."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.training = False
        return self


def made(make: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = make()
    return model


def examples(model: nn.Module, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shape = (1, 3, 3) if isinstance(model[0], nn.Conv2d) else (6,)  # type: ignore[index]
    inputs = torch.randn(count, *shape, generator=random)
    return inputs, torch.randint(0, 3, (count,), generator=random)


@pytest.mark.parametrize("make", [flat, pooled])
@pytest.mark.parametrize(("count", "batch"), [(17, 8), (9, 8), (3, 2), (33, 16)])
def test_last_batch_of_one_is_joined_to_the_one_before(make: Any, count: int, batch: int) -> None:
    model = made(make)
    seen: list[int] = []
    model[0].register_forward_pre_hook(  # type: ignore[index,operator]
        lambda module, inputs: seen.append(len(inputs[0])) if model.training else None
    )
    loss = local_sgd(model, examples(model, count), LocalTraining(batch_size=batch), seed=3)
    assert seen == [batch] * (count // batch - 1) + [batch + 1]
    assert 0 < loss < 100
    assert int(model[1].num_batches_tracked) == len(seen)  # type: ignore[index,union-attr]
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


@pytest.mark.parametrize("make", [flat, pooled])
def test_last_piece_of_one_of_a_large_pass_is_joined(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CHUNK", 8)
    model = made(make)
    gradient = full_batch_gradient(model, examples(model, 17), seed=3)
    assert all(torch.isfinite(value).all() for value in gradient.values())
    local_sgd(model, examples(model, 17), LocalTraining(batch_size=0), seed=3)


@pytest.mark.parametrize(
    "make",
    [plain, wide, lambda: Frozen(*flat()), lambda: nn.Sequential(*plain(), nn.LayerNorm(3))],  # type: ignore[misc]
)
@pytest.mark.parametrize("count", [16, 17])
def test_other_models_see_the_batches_that_they_always_saw(make: Any, count: int) -> None:
    model = made(make)
    expected = copy.deepcopy(model)
    data = examples(model, count)
    local_sgd(model, data, LocalTraining(lr=0.1, batch_size=8, local_epochs=2), seed=3)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    order = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    expected.train()
    for _ in range(2):
        for chosen in torch.randperm(count, generator=order).split(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(expected(data[0][chosen]), data[1][chosen]).backward()
            optimizer.step()
    for (name, value), other in zip(
        model.state_dict().items(), expected.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name


def test_looking_at_a_model_leaves_no_trace() -> None:
    model = made(flat)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert Pieces(model, examples(model, 9)).sizes(9, 8) == [9]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[n], value) for n, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    Pieces(model.eval(), examples(model, 9)).sizes(9, 8)
    assert not any(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("make", [flat, pooled])
@pytest.mark.parametrize(
    ("count", "batch", "problem", "remedy"),
    [
        (1, 0, "there is one example", "leave this client out"),
        (1, 8, "there is one example", "leave this client out"),
        (4, 1, "batch-size is 1", "set it to 2 or more"),
    ],
)
def test_one_example_or_one_at_a_time_is_told_with_the_remedy(
    make: Any, count: int, batch: int, problem: str, remedy: str
) -> None:
    model = made(make)
    told = f"{problem}, but the model's batch normalization needs two values .*: {remedy}"
    with pytest.raises(ValueError, match=told):
        local_sgd(model, examples(model, count), LocalTraining(batch_size=batch), seed=3)
    if count == 1:
        with pytest.raises(ValueError, match=told):
            full_batch_gradient(model, examples(model, count), seed=3)
        mean_loss(model, examples(model, count))  # by its running statistics


def without_statistics() -> nn.Module:
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    return nn.Sequential(nn.Linear(6, 5), norm, nn.Linear(5, 3))


def test_a_loss_by_the_statistics_of_a_last_piece_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "CHUNK", 8)
    model = made(without_statistics)
    assert 0 < mean_loss(model, examples(model, 17)) < 100
    with pytest.raises(ValueError, match="there is one example"):
        mean_loss(model, examples(model, 1))


@pytest.mark.parametrize("make", [plain, wide, lambda: Frozen(*flat())])  # type: ignore[misc]
@pytest.mark.parametrize(("count", "batch"), [(1, 0), (4, 1)])
def test_other_models_train_on_one_example(make: Any, count: int, batch: int) -> None:
    model = made(make)
    loss = local_sgd(model, examples(model, count), LocalTraining(batch_size=batch), seed=3)
    assert 0 < loss < 100
