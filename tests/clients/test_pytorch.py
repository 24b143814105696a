"""The reference PyTorch client: right gradients, seeded training, and a device of its own."""

import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs pncs-flower[simulation]")

from flwr.app import Array, ArrayRecord  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from torch import nn  # noqa: E402

from pncs_flower.clients.device import (  # noqa: E402
    choose_device,
    compute_in,
    granted_gpus,
)
from pncs_flower.clients.pytorch import _LastParsed, as_array, pytorch_client  # noqa: E402
from pncs_flower.clients.training import (  # noqa: E402
    LocalTraining,
    full_batch_gradient,
    local_sgd,
    mean_loss,
)
from pncs_flower.simulations.run.in_process import InProcessGrid  # noqa: E402
from pncs_flower.simulations.run.training import evaluate  # noqa: E402
from pncs_flower.strategies import PNCS  # noqa: E402


def make_model(context=None) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def load_examples(context) -> tuple:
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    inputs = torch.randn(24, 5, generator=generator)
    return inputs, torch.randint(0, 3, (24,), generator=generator)


def examples(size: int = 40) -> tuple:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 5, generator=generator)
    return inputs, torch.randint(0, 3, (size,), generator=generator)


def seeded_model() -> nn.Module:
    torch.manual_seed(11)
    return make_model()


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


class Tied(nn.Module):
    """Scores words by the embedding that they are read with, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.lm_head = nn.Linear(4, 6, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, words):
        return self.lm_head(self.embedding(words))


def word_pairs(context=None) -> tuple:
    offset = 0 if context is None else int(context.node_config["partition-id"])
    words = torch.arange(12) % 6
    return words, (words + 1 + offset) % 6


def test_a_tensor_that_has_two_names_has_its_gradient_under_both():
    gradient = full_batch_gradient(Tied(), word_pairs(), seed=0)
    assert gradient["lm_head.weight"].abs().sum() > 0
    assert torch.equal(gradient["lm_head.weight"], gradient["embedding.weight"])


@pytest.mark.parametrize("summary", ["gradient", "update"])
def test_clients_with_tied_weights_are_told_apart_by_either_name(summary):
    def similarity(layer):
        strategy = PNCS(
            FedAvg(fraction_evaluate=0.0), num_selected=2, layers=[layer], summary=summary
        )
        torch.manual_seed(3)
        strategy.start(
            InProcessGrid(pytorch_client(lambda context: Tied(), word_pairs), 4),
            ArrayRecord(Tied().state_dict()),
            num_rounds=1,
        )
        return strategy.history[0].mean_similarity

    assert similarity("lm_head") == similarity("embedding") != 0


def test_gradient_of_softmax_regression_equals_the_formula():
    inputs, targets = examples()
    model = nn.Linear(5, 3)
    gradient = full_batch_gradient(model, (inputs, targets), seed=0)
    x, w, b = (t.detach().double().numpy() for t in (inputs, model.weight, model.bias))
    scores = np.exp(x @ w.T + b)
    errors = scores / scores.sum(1, keepdims=True) - np.eye(3)[targets.numpy()]
    np.testing.assert_allclose(gradient["weight"].numpy(), errors.T @ x / 40, atol=1e-6)
    np.testing.assert_allclose(gradient["bias"].numpy(), errors.mean(0), atol=1e-6)


def test_gradient_over_more_than_one_chunk_is_the_mean_over_all_examples():
    big = examples(2500)
    model = seeded_model()
    loss = nn.functional.cross_entropy(model(big[0]), big[1])
    expected = torch.autograd.grad(loss, list(model.parameters()))
    gradient = full_batch_gradient(model, big, seed=0)
    for value, reference in zip(gradient.values(), expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-6)


def test_gradient_leaves_weights_alone_and_is_zero_for_what_is_not_trained():
    model = seeded_model()
    model[0].weight.requires_grad_(False)
    before = weights(model)
    gradient = full_batch_gradient(model, examples(), seed=0)
    assert all((before[name] == value).all() for name, value in weights(model).items())
    assert gradient["0.weight"].abs().max() == 0
    assert gradient["0.bias"].abs().max() > 0


def test_one_full_batch_step_moves_by_learning_rate_times_gradient():
    model = seeded_model()
    before = weights(model)
    gradient = full_batch_gradient(model, examples(), seed=0)
    local_sgd(model, examples(), LocalTraining(lr=0.1, batch_size=0), seed=0)
    for name, after in weights(model).items():
        np.testing.assert_allclose(before[name] - after, 0.1 * gradient[name].numpy(), atol=1e-6)


def test_a_step_on_many_examples_is_their_gradient_to_the_bit():
    random = torch.Generator().manual_seed(1)
    many = torch.randn(2500, 6, generator=random), torch.randint(0, 3, (2500,), generator=random)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(), torch.nn.Linear(5, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = full_batch_gradient(model, many, seed=3)
    local_sgd(model, many, LocalTraining(lr=0.1, batch_size=0), seed=3)
    for name, after in model.state_dict().items():
        assert torch.equal(after, before[name].add(gradient[name], alpha=-0.1)), name


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torchs_sgd_to_the_bit(momentum: float):
    model, reference = seeded_model(), seeded_model()
    local_sgd(model, examples(), LocalTraining(0.1, momentum, 3, 0), seed=0)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum)
    for _ in range(3):
        optimizer.zero_grad()
        inputs, targets = examples()
        torch.nn.functional.cross_entropy(reference(inputs), targets).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, reference.state_dict()[name]), name


def test_training_depends_on_the_seed_alone():
    def train(seed: int) -> dict[str, np.ndarray]:
        model = seeded_model()
        local_sgd(model, examples(), LocalTraining(batch_size=8, local_epochs=2), seed)
        return weights(model)

    first, again, other = train(1), train(1), train(2)
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_epochs_and_momentum_count():
    def distance(**options) -> float:
        model = seeded_model()
        before = weights(model)
        local_sgd(model, examples(), LocalTraining(lr=0.01, batch_size=0, **options), seed=0)
        return sum(float(((before[n] - w) ** 2).sum()) for n, w in weights(model).items()) ** 0.5

    one = distance()
    assert distance(local_epochs=3) == pytest.approx(3 * one, rel=0.1)
    # Momentum .5 over three equal steps: 1 + 1.5 + 1.75.
    assert distance(local_epochs=3, momentum=0.5) == pytest.approx(4.25 * one, rel=0.1)


def test_loss_falls():
    model = seeded_model()
    training = LocalTraining(lr=0.5, batch_size=8, local_epochs=1)
    losses = [local_sgd(model, examples(), training, seed) for seed in range(10)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr is 0"),
        ({"lr": float("inf")}, "lr is inf"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"momentum": float("nan")}, "momentum is nan"),
        ({"momentum": float("inf")}, "momentum is inf"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"local_epochs": 0}, "local-epochs is 0"),
        ({"batch_size": -1}, "batch-size is -1"),
    ],
)
def test_setting_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**options)


@pytest.mark.parametrize("name", ["batch-size", "local-epochs"])
def test_part_of_an_epoch_or_of_an_example_is_refused_and_not_rounded(name):
    context = SimpleNamespace(run_config={name: 1.5})
    with pytest.raises(ValueError, match=f"{name} is 1.5, but must be a whole number"):
        LocalTraining.from_context(context)


PASSES = {
    "steps on all": lambda model, some: local_sgd(model, some, LocalTraining(0.1, 0, 2, 0), seed=1),
    "steps on batches": lambda model, some: local_sgd(model, some, LocalTraining(0.1), seed=1),
    "gradient": lambda model, some: full_batch_gradient(model, some, seed=1),
    "loss": mean_loss,
    "evaluation": lambda model, some: evaluate(model, *some),
}


def cross_entropy_in_place(outputs, targets):
    loss = nn.functional.cross_entropy(outputs, targets.clone())
    targets.zero_()
    return loss


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("count", [40, 2500])
def test_a_model_that_works_in_place_on_its_inputs_leaves_the_examples_as_they_were(name, count):
    """A client keeps its examples, and the server those of its evaluation, for the next round."""
    torch.manual_seed(11)
    in_place = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))
    beside = nn.Sequential(nn.ReLU(), nn.Linear(5, 3))
    beside.load_state_dict(in_place.state_dict())
    some, (inputs, targets) = examples(count), examples(count)
    first, expected = PASSES[name](in_place, some), PASSES[name](beside, (inputs, targets))
    assert torch.equal(some[0], inputs)
    assert torch.equal(some[1], targets)
    if isinstance(first, dict):
        assert all(torch.equal(value, expected[key]) for key, value in first.items())
    else:
        assert first == expected


class Shifting(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.last = nn.Parameter(torch.ones(5)), nn.Linear(5, 3)

    def forward(self, inputs):
        inputs += self.shift
        return self.last(inputs)


@pytest.mark.parametrize(("count", "batch_size"), [(40, 0), (40, 16), (2500, 0), (2500, 1500)])
def test_a_model_may_add_what_it_learns_to_its_inputs_in_place(count, batch_size):
    model, some = Shifting(), examples(count)
    for _ in range(2):
        local_sgd(model, some, LocalTraining(batch_size=batch_size), seed=1)
    assert torch.equal(some[0], examples(count)[0])
    assert not torch.equal(model.shift, torch.ones(5))


def test_a_loss_function_that_works_in_place_on_the_targets_leaves_them_as_they_were():
    model, some = seeded_model(), examples()
    full_batch_gradient(model, some, 1, cross_entropy_in_place)
    local_sgd(model, some, LocalTraining(batch_size=0), 1, cross_entropy_in_place)
    mean_loss(model, some, cross_entropy_in_place)
    assert torch.equal(some[1], examples()[1])


def run(summary: str, threads_before: int = 2) -> tuple[list[list[str]], ArrayRecord]:
    torch.set_num_threads(threads_before)
    app = pytorch_client(make_model, load_examples)
    config = {"lr": 0.2, "batch-size": 0, "seed": 3, "device": "cpu"}
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), summary=summary, seed=3)
    initial = ArrayRecord(seeded_model().state_dict())
    result = strategy.start(InProcessGrid(app, 6, config), initial, num_rounds=4)
    assert all(not record.rejected for record in strategy.history)
    return [record.chosen for record in strategy.history], result.arrays


def test_gradient_and_update_of_one_full_batch_step_choose_the_same_clients():
    assert run("gradient")[0] == run("update")[0]


def test_bits_do_not_depend_on_the_threads_of_the_process_and_they_stay_as_they_were():
    assert run("update", threads_before=1) == run("update", threads_before=2)
    assert torch.get_num_threads() == 2


def test_no_algorithm_is_chosen_by_its_speed_and_the_process_stays_as_it_was(monkeypatch):
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)
    seen = []

    def loss(outputs, targets):
        seen.append((cudnn.deterministic, cudnn.benchmark))
        return nn.functional.cross_entropy(outputs, targets)

    grid = InProcessGrid(pytorch_client(make_model, load_examples, loss), 2, {"device": "cpu"})
    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    strategy.start(grid, ArrayRecord(seeded_model().state_dict()), num_rounds=1)
    assert set(seen) == {(True, False)}
    assert (cudnn.deterministic, cudnn.benchmark) == (False, True)


def test_loss_asked_for_is_the_mean_over_the_local_examples():
    from pncs_flower.protocol import SummaryRequest
    from pncs_flower.strategies import Choice, SelectionRule, SelectionStrategy

    losses, sizes = {}, {}

    class HighestLoss(SelectionRule):
        num_selected = 2
        request = SummaryRequest("loss")

        def select(self, state, now, summaries):
            losses.update({c: float(s["loss"][0]) for c, s in summaries.items()})
            sizes.update(now.num_examples)
            return Choice(tuple(sorted(summaries, key=lambda c: -losses[c])[:2]))

    model = seeded_model()
    app = pytorch_client(make_model, load_examples)
    grid = InProcessGrid(app, 3, {"device": "cpu"})
    strategy = SelectionStrategy(FedAvg(fraction_evaluate=0.0), HighestLoss())
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=1)
    for context in grid.contexts.values():
        inputs, targets = load_examples(context)
        expected = nn.functional.cross_entropy(model(inputs), targets).item()
        assert losses[str(context.node_config["partition-id"])] == pytest.approx(expected)
    assert sizes == {"0": 24, "1": 24, "2": 24}


def test_client_without_examples_is_an_error_that_names_it():
    app = pytorch_client(make_model, lambda context: (torch.empty(0, 5), torch.empty(0)))
    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    with pytest.raises(RuntimeError, match="client 0 has no training examples"):
        strategy.start(
            InProcessGrid(app, 3), ArrayRecord(seeded_model().state_dict()), num_rounds=1
        )


def test_device_is_the_cpu_where_no_gpu_is_given(monkeypatch):
    monkeypatch.setattr("pncs_flower.clients.device.granted_gpus", lambda: [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cpu"


def test_device_is_the_gpu_that_was_given(monkeypatch):
    monkeypatch.setattr("pncs_flower.clients.device.granted_gpus", lambda: [0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"


@pytest.mark.parametrize("gpu", [0, "1", "GPU-3f2a8c11-77d2-42fd", "MIG-c6d4f1ef-42e4-5de3"])
def test_a_gpu_is_named_as_ray_names_it_by_number_or_by_text(monkeypatch, gpu):
    runtime = SimpleNamespace(worker=SimpleNamespace(mode="worker"))
    ray = SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: runtime,
        WORKER_MODE="worker",
        get_gpu_ids=lambda: [gpu],
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert granted_gpus() == [str(gpu)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=f"Ray gave it GPU {gpu}"):
        choose_device("auto")


def test_ray_that_another_thread_is_importing_has_given_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert granted_gpus() is None


@pytest.mark.parametrize(("wanted", "granted"), [("cuda", None), ("cuda", []), ("auto", [0])])
def test_gpu_that_is_wanted_but_absent_is_an_error_with_the_remedy(monkeypatch, wanted, granted):
    monkeypatch.setattr("pncs_flower.clients.device.granted_gpus", lambda: granted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="Set device='cpu'"):
        choose_device(wanted)


def test_explicit_cpu_ignores_a_gpu_that_was_given(monkeypatch):
    monkeypatch.setattr("pncs_flower.clients.device.granted_gpus", lambda: [0])
    assert choose_device("cpu").type == "cpu"


def test_unknown_device_lists_the_choices():
    with pytest.raises(ValueError, match="'auto', 'cpu' or 'cuda'"):
        choose_device("tpu")


# --- precision and memory -------------------------------------------------------------------------


def test_forward_passes_in_bfloat16_leave_weights_and_gradients_in_float32():
    model, seen = seeded_model(), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    gradient = full_batch_gradient(model, examples(), seed=0, precision="bfloat16")
    local_sgd(model, examples(), LocalTraining(), seed=0, precision="bfloat16")
    mean_loss(model, examples(), precision="bfloat16")
    assert set(seen) == {torch.bfloat16}
    assert {value.dtype for value in [*gradient.values(), *model.state_dict().values()]} == {
        torch.float32
    }


def test_the_gradient_in_bfloat16_is_that_of_float32_but_for_rounding():
    model = seeded_model()
    exact, rounded = (
        torch.cat([value.flatten() for value in gradient.values()])
        for gradient in (
            full_batch_gradient(model, examples(), seed=0, precision=precision)
            for precision in ("float32", "bfloat16")
        )
    )
    assert not torch.equal(exact, rounded)
    assert torch.linalg.norm(exact - rounded) < 0.02 * torch.linalg.norm(exact)


def test_unknown_precision_lists_the_choices():
    with pytest.raises(ValueError, match="'half', but must be 'float32' or 'bfloat16'"):
        compute_in("half", torch.device("cpu"))


@pytest.mark.parametrize("fails", [False, True])
def test_a_client_leaves_nothing_on_the_gpu(monkeypatch, fails):
    """The memory can be given back once nothing uses the model any more, also after an error."""
    models, used_at_release = [], []

    def make_tracked_model(context) -> nn.Module:
        models.append(weakref.ref(model := make_model()))
        return model

    def loss(outputs, targets):
        if fails:
            raise RuntimeError("out of memory")
        return nn.functional.cross_entropy(outputs, targets)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: used_at_release.append([m() for m in models])
    )
    app = pytorch_client(make_tracked_model, load_examples, loss)
    grid = InProcessGrid(app, 2, {"device": "cpu"})
    strategy = PNCS(FedAvg(fraction_evaluate=float(not fails)), queue_length=0)
    with pytest.raises(RuntimeError, match="out of memory") if fails else nullcontext():
        strategy.start(grid, ArrayRecord(seeded_model().state_dict()), num_rounds=1)
    assert len(used_at_release) == (2 if fails else 4)  # two trained, two evaluated
    if not fails:  # an error holds on to what it came from until it has been told
        assert all(model is None for models in used_at_release for model in models)


def test_weights_that_are_sent_again_are_not_parsed_again_and_others_are():
    parsed = _LastParsed()
    first = ArrayRecord({"w": torch.tensor([1.0, 2.0])})
    state = parsed.state(first)
    assert parsed.state(first.copy()) is state
    other = parsed.state(ArrayRecord({"w": torch.tensor([3.0, 4.0])}))
    assert other["w"].tolist() == [3.0, 4.0]
    assert parsed.state(first)["w"].tolist() == [1.0, 2.0]
    renamed = parsed.state(ArrayRecord({"v": first["w"]}))
    assert list(renamed) == ["v"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 2), (2, 3, 4)])
def test_arrays_are_written_as_numpy_writes_them(dtype: str, shape: tuple[int, ...]) -> None:
    values = torch.randn(shape).to(getattr(torch, dtype))
    for tensor in (values, values.mT if len(shape) > 1 else values):
        assert as_array(tensor) == Array(tensor.numpy())
    parameter = torch.nn.Parameter(torch.ones(shape))
    assert as_array(parameter) == Array(parameter)
