"""Situations that people bring: other tasks, any script, threads, notebooks, many clients."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    PowerOfChoice,
    RoundRobin,
    SelectionStrategy,
)

ONLY_TRAIN = {"fraction_evaluate": 0.0}


def run(strategy: SelectionStrategy, grid: InProcessGrid | None = None, rounds: int = 3):
    """Return who was chosen, and the bits of the model."""
    grid = grid or InProcessGrid(numpy_app.make_app(summary_mod), 6)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    chosen = [record.chosen for record in strategy.history]
    return chosen, [array.numpy().tobytes() for array in result.arrays.values()]


def moving_app(step) -> ClientApp:
    """Make an app whose clients add ``step(context, name, values)`` to the weights."""
    app = ClientApp(mods=[summary_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {
            name: Array(np.asarray(array.numpy() + step(context, name, array.numpy()), array.dtype))
            for name, array in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


# --- other tasks ----------------------------------------------------------------------------------


@pytest.mark.minutes
@pytest.mark.parametrize("selection", [PNCS, GradientMemory, PowerOfChoice])
@pytest.mark.parametrize("name", ["text", "table", "regression"])
def test_tasks_other_than_images(name, selection):
    pytest.importorskip("torch", reason="needs pncs-flower[simulation]")
    from apps import torch_tasks

    task = torch_tasks.TASKS[name]
    strategy = selection(FedAvg(), num_selected=2)
    grid = InProcessGrid(torch_tasks.make_app(task, summary_mod), 6)
    result = strategy.start(grid, torch_tasks.initial_arrays(task), num_rounds=4)
    assert [len(record.delivered) for record in strategy.history] == [2] * 4
    assert all(record.rejected == {} for record in strategy.history)
    losses = [metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()]
    assert losses[-1] < losses[0]


@pytest.mark.minutes
def test_a_servers_adam_with_batch_normalisation_keeps_averages_and_counts():
    pytest.importorskip("torch", reason="needs pncs-flower[simulation]")
    from apps.flower_examples import resnet, torch_task

    strategy = PNCS(FedAdam(eta=0.01, tau=0.01), num_selected=2)
    result = strategy.start(
        InProcessGrid(resnet.make_client_app(summary_mod), 6, {"local-epochs": 1}),
        torch_task.initial(torch_task.ResNet),
        num_rounds=3,
        train_config=ConfigRecord({"lr": 0.05}),
    )
    assert [len(record.delivered) for record in strategy.history] == [2, 2, 2]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    counts = [a for name, a in result.arrays.items() if name.endswith("num_batches_tracked")]
    assert {array.dtype for array in counts} == {"int64"}
    torch_task.loaded(torch_task.ResNet, result.arrays)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1e3])
def test_the_choice_in_half_precision_does_not_depend_on_the_scale(scale):
    def first_choice(scale: float) -> list[str]:
        def step(context: Context, name: str, values: np.ndarray) -> np.ndarray:
            return scale * numpy_app.target(int(context.node_config["partition-id"]), name)

        strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=3)
        initial = numpy_app.initial_arrays("float16")
        result = strategy.start(InProcessGrid(moving_app(step), 6), initial, num_rounds=2)
        assert all(record.rejected == {} for record in strategy.history)
        assert {array.dtype for array in result.arrays.values()} == {"float16"}
        assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
        return strategy.history[0].chosen

    assert first_choice(scale) == first_choice(1.0)


# --- mods -----------------------------------------------------------------------------------------


def test_the_mod_twice_is_the_mod_once():
    """In the app's list, and in that of one function."""
    once = run(PNCS(FedAvg()))
    in_one_list = numpy_app.make_app(summary_mod, summary_mod)
    assert run(PNCS(FedAvg()), InProcessGrid(in_one_list, 6)) == once
    in_two = ClientApp(mods=[summary_mod])
    in_two.train(mods=[summary_mod])(numpy_app.train)
    in_two.evaluate(mods=[summary_mod])(numpy_app.evaluate)
    assert run(PNCS(FedAvg()), InProcessGrid(in_two, 6)) == once


# --- names and paths ------------------------------------------------------------------------------

NAMES = ["клиент 1", "病院", "hôpital", "مستشفى", "a/b\\c", "İzmir ß", "🌼", '"quoted", {1}', "0"]


def named_grid() -> InProcessGrid:
    """A grid whose clients have names, and no numbers."""

    def step(context: Context, name: str, values: np.ndarray) -> np.ndarray:
        return numpy_app.target(NAMES.index(str(context.node_config["name"])), name)

    grid = InProcessGrid(moving_app(step), len(NAMES))
    for name, context in zip(NAMES, grid.contexts.values(), strict=True):
        context.node_config = {"name": name}
    return grid


@pytest.mark.parametrize("kind", [PNCS, GradientMemory, RoundRobin])
def test_names_in_any_script_are_chosen_recorded_and_resumed_also_in_such_folders(tmp_path, kind):
    folder = tmp_path / "Ergebnisse für 病院 №1"
    history = folder / "Verlauf äöü.jsonl"

    def strategy(**options) -> SelectionStrategy:
        return kind(FedAvg(**ONLY_TRAIN), num_selected=3, min_clients=len(NAMES), **options)

    run(strategy(checkpoint=folder, history_path=history), named_grid(), rounds=2)
    resumed = strategy(checkpoint=folder, history_path=history)
    chosen, model = run(resumed, named_grid(), rounds=5)
    assert (chosen, model) == run(strategy(), named_grid(), rounds=5)
    assert set(resumed.history[0].clients) == set(NAMES)
    lines = history.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["chosen"] for line in lines] == chosen


def test_clients_without_a_name_go_by_their_node_ids():
    grid = InProcessGrid(moving_app(lambda context, name, values: context.node_id), 4)
    for context in grid.contexts.values():
        context.node_config = {}
    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=2, min_clients=4)
    run(strategy, grid)
    assert set(strategy.history[0].clients) == {str(node_id) for node_id in grid.contexts}
    assert [len(record.delivered) for record in strategy.history] == [2, 2, 2]


@pytest.mark.parametrize("kind", [PNCS, GradientMemory])
def test_layers_with_names_in_any_script(kind):
    shapes = {"слой.weight": (3, 2), "слой.bias": (3,), "层 1.gewicht": (2, 2), "🌼": ()}

    def step(context: Context, name: str, values: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng([context.node_id, len(name)])
        return np.asarray(rng.normal(size=values.shape))

    strategy = kind(FedAvg(**ONLY_TRAIN), num_selected=2)
    initial = ArrayRecord({name: Array(np.zeros(shape)) for name, shape in shapes.items()})
    result = strategy.start(InProcessGrid(moving_app(step), 5), initial, num_rounds=2)
    assert [len(record.delivered) for record in strategy.history] == [2, 2]
    assert {name: array.shape for name, array in result.arrays.items()} == shapes


# --- where it is called from ----------------------------------------------------------------------


def test_runs_in_threads_at_once_are_those_of_one_after_the_other():
    kinds = [PNCS, GradientMemory, RoundRobin, PowerOfChoice] * 2
    after_another = [run(kind(FedAvg(), num_selected=2, seed=4)) for kind in kinds]
    together = threading.Barrier(len(kinds))

    def start(kind):
        together.wait(timeout=30)
        return run(kind(FedAvg(), num_selected=2, seed=4))

    with ThreadPoolExecutor(len(kinds)) as pool:
        assert list(pool.map(start, kinds)) == after_another


def test_a_run_in_a_notebook_whose_loop_of_events_is_running():
    """With the app written in the notebook: its functions belong to no file."""
    cell = """
app = ClientApp(mods=[summary_mod])
app.train()(numpy_app.train)
app.evaluate()(numpy_app.evaluate)
outcome = run(PNCS(FedAvg()), InProcessGrid(app, 6))
"""
    names = {**globals(), "__name__": "__main__"}

    async def notebook() -> None:
        exec(compile(cell, "<ipython-input-1>", "exec"), names)

    asyncio.run(notebook())
    assert names["outcome"] == run(PNCS(FedAvg()))


# --- many -----------------------------------------------------------------------------------------


def test_ten_thousand_clients_of_which_few_are_asked():
    def step(context: Context, name: str, values: np.ndarray) -> np.ndarray:
        return np.full_like(values, context.node_id)

    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=10, candidates=30, queue_length=100)
    run(strategy, InProcessGrid(moving_app(step), 10_000), rounds=2)
    assert [len(record.asked) for record in strategy.history] == [30, 30]
    assert [len(record.delivered) for record in strategy.history] == [10, 10]
