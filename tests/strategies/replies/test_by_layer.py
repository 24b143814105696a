"""PNCS with a choice for each layer: whose values count, and through which base strategies."""

from functools import partial
from itertools import chain

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    Strategy,
)

from pncs_flower import least_aligned_subset, pairwise_cosine
from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, Choice, SelectionRule, SelectionStrategy

CLIENTS, SELECTED, LR = 8, 2, np.float32(0.5)
NAMES = {"body": ("body.weight", "body.bias"), "head": ("head.weight", "head.bias")}


def run(base: Strategy, rounds: int = 1, **options) -> tuple[PNCS, dict[str, np.ndarray]]:
    grid = InProcessGrid(numpy_app.make_app(summary_mod), CLIENTS)
    strategy = PNCS(base, num_selected=SELECTED, per_layer=True, **options)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy, {name: array.numpy() for name, array in result.arrays.items()}


def update(client: int, name: str) -> np.ndarray:
    """What a client sends in the first round: the model starts at zero."""
    return LR * numpy_app.target(client, name)


def weighted_mean(clients: list[str], name: str) -> np.ndarray:
    numbers = [int(client) for client in clients]
    return np.average([update(k, name) for k in numbers], axis=0, weights=[1 + k for k in numbers])


def without_evaluation(kind: type[Strategy] = FedAvg, **options) -> Strategy:
    return kind(fraction_evaluate=0.0, **options)


def test_each_layer_has_the_least_aligned_subset_of_its_own():
    strategy, _ = run(without_evaluation())
    (record,) = strategy.history
    for layer, names in NAMES.items():
        flat = [
            np.concatenate([-update(k, name).ravel() for name in names]) for k in range(CLIENTS)
        ]
        best = least_aligned_subset(pairwise_cosine(np.stack(flat), 4, "squared"), SELECTED)
        assert record.chosen_by_layer[layer] == [str(k) for k in best.indices]
    both = set(chain.from_iterable(record.chosen_by_layer.values()))
    assert len(both) > SELECTED  # else this run would say nothing of the rest
    assert set(record.chosen) == set(record.delivered) == both


def test_each_layer_becomes_the_weighted_mean_over_its_own_clients():
    strategy, arrays = run(without_evaluation())
    for layer, names in NAMES.items():
        clients = strategy.history[0].chosen_by_layer[layer]
        for name in names:
            np.testing.assert_allclose(arrays[name], weighted_mean(clients, name), rtol=1e-6)


def test_layers_that_are_not_compared_are_averaged_over_all_that_were_chosen():
    strategy, arrays = run(without_evaluation(), layers=["head"])
    (record,) = strategy.history
    assert list(record.chosen_by_layer) == ["head"]
    for name in NAMES["body"]:
        np.testing.assert_allclose(arrays[name], weighted_mean(record.chosen, name), rtol=1e-6)


@pytest.mark.parametrize(
    "base",
    [
        partial(without_evaluation, FedAvgM, server_momentum=0.9),
        partial(without_evaluation, FedAdam, eta=0.1),
    ],
    ids=["FedAvgM", "FedAdam"],
)
def test_a_servers_optimizer_steps_from_the_mean_of_each_layer(base):
    strategy, arrays = run(base())
    clients = strategy.history[0].chosen_by_layer
    # The same step of an optimizer that is handed the right mean by one client.
    alone = base(min_train_nodes=1, min_available_nodes=1)
    means = {name: weighted_mean(clients[layer], name) for layer in NAMES for name in NAMES[layer]}
    expected = step(alone, means)
    for name, value in expected.items():
        np.testing.assert_allclose(arrays[name], value, rtol=1e-5, atol=1e-7)


def step(base: Strategy, means: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({name: Array(np.float32(value)) for name, value in means.items()})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    result = base.start(InProcessGrid(app, 1), numpy_app.initial_arrays(), num_rounds=1)
    return {name: array.numpy() for name, array in result.arrays.items()}


def test_the_clients_of_all_layers_cool_down():
    strategy, _ = run(without_evaluation(), rounds=2, queue_length=2)
    first, second = strategy.history
    assert set(second.cooling) == set(first.chosen)


def test_choice_for_a_single_layer_is_the_choice_for_it_alone():
    grid = InProcessGrid(numpy_app.make_app(summary_mod), CLIENTS)
    plain = PNCS(without_evaluation(), num_selected=SELECTED, layers=["body"])
    plain.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    by_layer, _ = run(without_evaluation(), rounds=3, layers=["body"])
    assert [r.chosen for r in by_layer.history] == [r.chosen for r in plain.history]


def test_base_that_counts_on_a_number_of_clients_is_refused():
    base = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 1.0, SELECTED)
    with pytest.raises(ValueError, match=r"num_sampled_clients updates.*per_layer=False"):
        PNCS(base, num_selected=SELECTED, per_layer=True)


def test_base_that_takes_no_mean_is_refused():
    with pytest.raises(ValueError, match=r"FedMedian takes no weighted mean.*per_layer=False"):
        PNCS(FedMedian(), per_layer=True)


def test_layer_weights_do_not_go_with_it():
    with pytest.raises(ValueError, match="per_layer is True"):
        PNCS(FedAvg(), per_layer=True, layers=["head"], layer_weights={"head": 1.0})


class ByLayer(SelectionRule):
    """A rule of one's own that chooses for each layer."""

    num_selected = 2

    def select(self, state, now, summaries):
        chosen = now.available[: now.num_selected]
        return Choice(chosen, by_layer={"": chosen})


def test_a_choice_by_layer_of_an_own_rule_needs_a_base_that_takes_a_mean():
    strategy = SelectionStrategy(FedMedian(), ByLayer())
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    with pytest.raises(ValueError, match="FedMedian takes no weighted mean"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
