"""The two-phase round: who trains, how often, and what the record says."""

import json
from itertools import pairwise

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower import least_aligned_subset, pairwise_cosine
from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.layers import choose_layers
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRobin, UniformSelection

ROUNDS, CLIENTS, SELECTED = 20, 10, 2


def train_only(**options) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **options)


def federation(mod=summary_mod, clients: int = CLIENTS) -> InProcessGrid:
    return InProcessGrid(numpy_app.make_app(mod), clients)


def trained(grid: InProcessGrid) -> list[int]:
    return [numpy_app.times_trained(context) for context in grid.contexts.values()]


def test_update_summary_trains_each_asked_client_once_and_no_chosen_one_again():
    grid = federation()
    strategy = PNCS(train_only(), num_selected=SELECTED)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=ROUNDS)
    asked = [client for record in strategy.history for client in record.asked]
    assert trained(grid) == [asked.count(str(client)) for client in range(CLIENTS)]
    assert [len(record.delivered) for record in strategy.history] == [SELECTED] * ROUNDS


def test_gradient_summary_trains_nobody_but_the_chosen():
    grid = federation(SummaryMod(gradient=numpy_app.gradient))
    strategy = PNCS(train_only(), num_selected=SELECTED, summary="gradient")
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=ROUNDS)
    chosen = [client for record in strategy.history for client in record.chosen]
    assert trained(grid) == [chosen.count(str(client)) for client in range(CLIENTS)]
    assert len(chosen) == SELECTED * ROUNDS


@pytest.mark.parametrize("kind", [UniformSelection, RoundRobin])
def test_rules_without_a_summary_train_the_chosen_only(kind):
    grid = federation()
    strategy = kind(train_only(), num_selected=SELECTED)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=ROUNDS)
    chosen = [client for record in strategy.history for client in record.chosen]
    assert trained(grid) == [chosen.count(str(client)) for client in range(CLIENTS)]
    assert len(chosen) == SELECTED * ROUNDS
    assert all(record.asked == [] for record in strategy.history)


def test_first_choice_is_the_least_aligned_subset_of_the_clients_gradients():
    strategy = PNCS(
        train_only(), num_selected=3, queue_length=0, layers=["head", "body"], sketch="layers"
    )
    strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=1)
    layers = choose_layers(numpy_app.initial_arrays(), ["head", "body"])
    # At weights of zero the update is -target/2, whose similarities are those of the targets.
    similarity = np.mean(
        [
            pairwise_cosine(
                np.stack(
                    [
                        np.concatenate([numpy_app.target(k, name).ravel() for name in names])
                        for k in range(CLIENTS)
                    ]
                ).astype(np.float64)
            )
            for names in layers.values()
        ],
        axis=0,
    )
    expected = least_aligned_subset(similarity, 3)
    record = strategy.history[0]
    assert record.chosen == [str(index) for index in expected.indices]
    assert record.mean_similarity == pytest.approx(expected.mean_similarity, abs=1e-6)
    assert record.optimal is True


def test_chosen_clients_cool_down_and_the_record_says_so():
    strategy = PNCS(train_only(), num_selected=2, queue_length=4)
    strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=6)
    history = strategy.history
    for earlier, later in pairwise(history):
        assert set(earlier.chosen) <= set(later.cooling)  # t' > t + 4/2
        assert not set(later.asked) & set(later.cooling)
    assert set(history[3].cooling) == set(history[2].chosen) | set(history[1].chosen)


def test_a_rest_is_said_in_rounds_too():
    def history(**rest):
        strategy = PNCS(train_only(), num_selected=2, seed=1, **rest)
        strategy.start(federation(clients=12), numpy_app.initial_arrays(), num_rounds=6)
        return [(record.chosen, record.cooling, record.asked) for record in strategy.history]

    resting = history(rest_rounds=3)
    assert resting == history(queue_length=6)
    assert len(resting[4][1]) == 6  # the chosen of three rounds
    assert history(rest_rounds=0) == history(queue_length=0)
    assert history() == history(rest_rounds=4, queue_length=None)  # of 12 clients


def test_when_too_few_are_free_the_longest_waiting_leave_the_queue_and_the_record_says_so():
    strategy = RoundRobin(train_only(), num_selected=2, queue_length=8)
    strategy.start(federation(clients=3), numpy_app.initial_arrays(), num_rounds=3)
    first, second, third = (set(record.chosen) for record in strategy.history)
    released = strategy.history[1].released
    assert len(released) == 1
    assert set(released) <= first
    assert second == {*released, *({"0", "1", "2"} - first)}
    assert "left the queue early" in strategy.history[1].notes[0]
    assert third != second


def test_aggregation_is_the_weighted_mean_of_the_chosen_updates():
    strategy = UniformSelection(train_only(), num_selected=2)
    result = strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=1)
    chosen = [int(client) for client in strategy.history[0].chosen]
    weights = np.array([1 + client for client in chosen], dtype=np.float64)
    for name, array in result.arrays.items():
        updates = np.stack([numpy_app.target(client, name) / 2 for client in chosen])
        expected = np.tensordot(weights / weights.sum(), updates.astype(np.float64), 1)
        np.testing.assert_allclose(array.numpy(), expected, rtol=1e-6)


def test_bytes_of_each_phase_are_those_of_the_records_exchanged():
    arrays = numpy_app.initial_arrays()
    strategy = PNCS(train_only(), num_selected=2, queue_length=0, sketch="coordinates:2")
    strategy.start(federation(), arrays, num_rounds=2)
    record = strategy.history[1]
    model = arrays.count_bytes()
    marker = 200  # at least one and at most this many bytes of names and settings a message
    assert 10 * model < record.bytes_down["pre-round"] < 10 * (model + marker)
    assert 0 < record.bytes_down["training"] < 2 * marker  # the chosen kept their update
    assert record.bytes_up["pre-round"] < 10 * model
    assert 2 * model < record.bytes_up["training"] < 2 * (model + marker)
    assert record.bytes_down["introduction"] == record.bytes_up["introduction"] == 0
    assert strategy.history[0].bytes_up["introduction"] > 0


def test_a_round_costs_less_than_half_of_one_with_all_clients():
    """A model of 41k weights, a sketch of 1 kB, 10 clients, 2 selected, a queue of 4."""
    model = ArrayRecord({"fc": Array(np.zeros((10, 4097), np.float32))})

    def train(message, context):
        shift = np.float32(context.node_config["partition-id"])
        arrays = ArrayRecord({"fc": Array(message.content["arrays"]["fc"].numpy() + shift)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def bytes_per_round(strategy):
        app = ClientApp(mods=[summary_mod])
        app.train()(train)
        strategy.start(InProcessGrid(app, 10), model, num_rounds=6)
        last = strategy.history[-1]
        return sum(last.bytes_down.values()) + sum(last.bytes_up.values())

    some = PNCS(train_only(), num_selected=2, queue_length=4, sketch="coordinates:250")
    everybody = UniformSelection(train_only(), num_selected=10)
    assert bytes_per_round(some) <= 0.45 * bytes_per_round(everybody)


def test_client_that_lost_its_update_gets_the_weights_and_trains_again():
    def forgets(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] % 2:
            for name in [n for n in context.state if n.startswith("pncs-kept")]:
                del context.state[name]
        return reply

    def run(*mods):
        grid = InProcessGrid(numpy_app.make_app(*mods), CLIENTS)
        strategy = PNCS(train_only(), num_selected=4, queue_length=0)
        result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
        assert all(len(record.delivered) == 4 for record in strategy.history)
        return strategy, result.arrays

    (whole, arrays), (lossy, lossy_arrays) = run(summary_mod), run(forgets, summary_mod)
    assert [r.chosen for r in lossy.history] == [r.chosen for r in whole.history]
    assert lossy_arrays == arrays
    notes = [note for record in lossy.history for note in record.notes]
    assert any("had lost the update and trained again" in note for note in notes)


def test_history_goes_to_disk_as_the_run_goes_on(tmp_path):
    path = tmp_path / "history.jsonl"
    lines_before_round = []

    def count_lines(server_round, arrays):
        lines_before_round.append(len(path.read_text().splitlines()) if path.exists() else 0)

    strategy = PNCS(train_only(), history_path=path)
    strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=3, evaluate_fn=count_lines)
    assert lines_before_round == [0, 1, 2, 3]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == [record.to_dict() for record in strategy.history]


def test_base_strategy_configures_training_once_a_round():
    class Counting(FedAvg):
        rounds: list[int]

        def configure_train(self, server_round, arrays, config, grid):
            self.rounds.append(server_round)
            config["lr"] = 0.5 / server_round
            return super().configure_train(server_round, arrays, config, grid)

    base = Counting(fraction_evaluate=0.0)
    base.rounds = []
    strategy = PNCS(base)
    strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=4)
    assert base.rounds == [1, 2, 3, 4]


def test_what_the_base_strategy_sends_reaches_the_chosen_and_the_app_sees_no_marker():
    seen: list[tuple[int, list[str]]] = []

    def spy(message, context, call_next):
        config = message.content["config"]
        seen.append((config["tempo"], sorted(message.content)))
        return call_next(message, context)

    grid = InProcessGrid(numpy_app.make_app(summary_mod, spy), CLIENTS)
    strategy = PNCS(train_only(), num_selected=2, queue_length=0)
    strategy.start(
        grid, numpy_app.initial_arrays(), num_rounds=1, train_config=ConfigRecord({"tempo": 7})
    )
    assert seen == [(7, ["arrays", "config"])] * CLIENTS


def test_evaluation_is_the_base_strategys_on_all_clients():
    strategy = PNCS(FedAvg())
    result = strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=2)
    losses = [result.evaluate_metrics_clientapp[r]["loss"] for r in (1, 2)]
    final = {name: array.numpy() for name, array in result.arrays.items()}
    expected = np.mean(
        [
            sum(float(((final[n] - numpy_app.target(k, n)) ** 2).sum()) for n in final) / 2
            for k in range(CLIENTS)
        ]
    )
    assert losses[1] == pytest.approx(expected, rel=1e-5)


def test_a_message_of_its_own_for_each_client_is_refused_only_with_a_pre_round():
    class Personal(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for index, message in enumerate(messages):
                own = ConfigRecord({**message.content["config"], "index": index})
                message.content = message.content.copy()
                message.content["config"] = own
            return messages

    arrays = numpy_app.initial_arrays()
    UniformSelection(Personal(fraction_evaluate=0.0)).start(federation(), arrays, num_rounds=1)
    with pytest.raises(RuntimeError, match="a message of its own for each client"):
        PNCS(Personal(fraction_evaluate=0.0)).start(federation(), arrays, num_rounds=1)


def test_summary_prints_what_the_strategy_does(caplog):
    PNCS(FedAvg(), layers=["head"], sketch="coordinates:5", seed=9).summary()
    text = caplog.text
    for part in ("coordinates:5", "head", "form='squared'", "queue: as long", "Seed: 9", "FedAvg"):
        assert part in text
    assert "whole" not in text
    PNCS(FedAvg(), combine="sketched-mean:sketch=count:64").summary()
    assert "coordinates:5%@int8, layers all; sketch count:64 of the whole update" in caplog.text


def test_same_seed_same_bits_and_other_seed_other_choices():
    def run(seed: int) -> tuple[list[list[str]], ArrayRecord]:
        strategy = UniformSelection(train_only(), seed=seed)
        result = strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=8)
        return [record.chosen for record in strategy.history], result.arrays

    (first, arrays), (again, arrays_again), (other, _) = run(1), run(1), run(2)
    assert first == again
    assert arrays == arrays_again
    assert first != other


@pytest.mark.parametrize("summary", ["update", "gradient"])
@pytest.mark.parametrize("sketch", ["layers", "coordinates:8"])
def test_an_array_without_values_is_no_layer_and_stays_in_the_model(summary, sketch, monkeypatch):
    def run() -> tuple[list[list[str]], ArrayRecord]:
        strategy = PNCS(
            train_only(), num_selected=3, summary=summary, sketch=sketch, verify_sketches=True
        )
        grid = federation(SummaryMod(gradient=numpy_app.gradient))
        result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
        assert [record.rejected for record in strategy.history] == [{}] * 3
        return [record.chosen for record in strategy.history], result.arrays

    chosen, arrays = run()
    monkeypatch.setitem(numpy_app.LAYERS, "empty.weight", (0, 3))
    chosen_with, arrays_with = run()
    assert chosen_with == chosen
    assert arrays_with["empty.weight"].shape == (0, 3)
    assert all(np.array_equal(arrays[name].numpy(), arrays_with[name].numpy()) for name in arrays)
