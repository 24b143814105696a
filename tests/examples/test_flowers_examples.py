"""Apps of the shape of Flower's own examples need the two lines, and what docs/your-app.md says."""

import importlib
import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from apps.flower_examples import NEEDS, Config, Select
from flwr.serverapp.strategy import Result, Strategy
from ray_process import TESTS, run_script

from pncs_flower import strategies
from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRobin, SelectionError, UniformSelection
from pncs_flower.strategies.rules import STRATEGIES

CLIENTS, SELECTED = 8, 2
CHANGED: dict[str, Config] = {
    "quickstart_jax": {"fraction-train": 1.0},
    "quickstart_xgboost": {"fraction-train": 1.0},
    "advanced_pytorch": {"fraction-train": 1.0},
}
"""Settings of the examples that have to be others with the two lines; docs/your-app.md says so."""
TREES = "quickstart_xgboost"  # no gradient to compare
RANDOM = {"quickstart_numpy", "opacus_dp"}  # drawn anew in each run


def load(name: str) -> ModuleType:
    for package in NEEDS[name]:
        pytest.importorskip(package, reason="needs pncs-flower[simulation,dev]")
    return importlib.import_module(f"apps.flower_examples.{name}")


@pytest.fixture(params=[name for name in NEEDS if name != TREES])
def example(request: pytest.FixtureRequest) -> str:
    load(request.param)
    return str(request.param)


def alone(base: Strategy) -> Strategy:
    return base


class Selecting:
    """The line on the server: keeps the strategy that it makes."""

    def __init__(self, kind: type[Any] = PNCS, **options: Any) -> None:
        self.kind = kind
        self.options = {"num_selected": SELECTED, **options}

    def __call__(self, base: Strategy) -> Strategy:
        self.strategy = self.kind(base, **self.options)
        return self.strategy


def run(name: str, select: Select, *mods: Any, **changed: Any) -> Result:
    module = load(name)
    config = module.RUN_CONFIG | changed
    grid = InProcessGrid(module.make_client_app(*mods), CLIENTS, config)
    main = module.main if select is alone else getattr(module, "main_with_selection", module.main)
    return main(grid, config, select)


def folders(name: str, folder: Path) -> Config:
    """Return the setting that says where files go, if the example has it."""
    return {"output": str(folder)} if "output" in load(name).RUN_CONFIG else {}


def metric_names(result: Result) -> dict[str, dict[int, set[str]]]:
    return {
        kind: {number: set(record) for number, record in by_round.items()}
        for kind, by_round in vars(result).items()
        if kind != "arrays"
    }


def test_the_two_lines_are_enough(example: str, tmp_path: Path) -> None:
    """The same metrics in the same rounds as alone, a model that moves, and nobody left out."""
    output = folders(example, tmp_path)
    before = run(example, alone, **output)
    for file in tmp_path.iterdir():
        file.unlink()
    selecting = Selecting()
    changed = {**output, **CHANGED.get(example, {})}
    after = run(example, selecting, summary_mod, **changed)
    rounds = load(example).RUN_CONFIG["num-server-rounds"]
    history = selecting.strategy.history
    assert [record.rejected for record in history] == [{}] * rounds
    assert [len(record.delivered) for record in history] == [SELECTED] * rounds
    assert [record.notes for record in history] == [[]] * rounds
    assert metric_names(after) == metric_names(before)
    assert list(after.arrays) == list(before.arrays)
    for array_name, array in after.arrays.items():
        was = before.arrays[array_name]
        if array.dtype != "int64":  # of which Flower's mean makes floats
            assert array.dtype == was.dtype
        assert array.shape == was.shape
        assert np.isfinite(array.numpy()).all()


def test_a_rate_that_the_base_lowers_reaches_the_clients_in_each_round() -> None:
    """Also where summaries were asked ahead with the rate of the round before."""
    selecting = Selecting()
    result = run("resnet", selecting, summary_mod)
    sent = {n: float(metrics["lr"]) for n, metrics in result.train_metrics_clientapp.items()}
    assert sent == pytest.approx({n: 0.05 * 0.8**n for n in range(1, 5)})
    assert selecting.strategy.base.rates == pytest.approx(list(sent.values()))


def test_batch_normalisation_keeps_its_averages_and_counts() -> None:
    resnet = load("resnet")
    result = run("resnet", Selecting(), summary_mod)
    rounds, batches = resnet.RUN_CONFIG["num-server-rounds"], 6
    counts = [a.numpy() for name, a in result.arrays.items() if name.endswith("batches_tracked")]
    assert {int(count) for count in counts} == {rounds * batches}
    means = [a.numpy() for name, a in result.arrays.items() if name.endswith("running_mean")]
    assert all(np.abs(mean).min() > 0 for mean in means)
    central = [float(m["accuracy"]) for m in result.evaluate_metrics_serverapp.values()]
    assert central[-1] > central[0]


def test_slow_clients_do_a_part_of_the_work() -> None:
    """By a mod of the app, which works once for each client that is asked, and not again."""
    selecting = Selecting()
    result = run("fedprox", selecting, summary_mod)
    for record in selecting.strategy.history:
        weights = {int(client): 1 + int(client) for client in record.delivered}
        mean = sum(w * (1 + client % 3) for client, w in weights.items()) / sum(weights.values())
        assert result.train_metrics_clientapp[record.round]["steps"] == pytest.approx(mean)


def test_mods_that_log_see_each_training_once(tmp_path: Path) -> None:
    """Also those of clients that are not chosen: they train to be asked for their sketch."""
    selecting = Selecting()
    run("custom_mods", selecting, summary_mod, output=str(tmp_path))
    logged = {
        (file.stem, json.loads(line)["round"])
        for file in tmp_path.iterdir()
        for line in file.read_text().splitlines()
    }
    lines = sum(len(file.read_text().splitlines()) for file in tmp_path.iterdir())
    asked = {(client, r.round) for r in selecting.strategy.history for client in r.asked}
    assert logged == asked
    assert lines == len(asked)


def test_a_mod_that_reads_the_round_must_come_after_ours_and_the_error_says_so(
    tmp_path: Path,
) -> None:
    """Before it, it would meet messages that are ours, and have no round."""
    module = load("custom_mods")
    app = module.quickstart_pytorch.make_client_app(module.logging_mod, summary_mod)
    config = {**module.RUN_CONFIG, "output": str(tmp_path)}
    start = time.monotonic()
    with pytest.raises(SelectionError, match=r"put summary_mod first.*ClientApp\(mods="):
        module.main(InProcessGrid(app, CLIENTS, config), config, Selecting())
    assert time.monotonic() - start < 20


def test_a_setter_of_the_base_is_told_where_it_is(tmp_path: Path) -> None:
    module = load("advanced_pytorch")
    config = {**module.RUN_CONFIG, **CHANGED["advanced_pytorch"], "output": str(tmp_path)}
    grid = InProcessGrid(module.make_client_app(summary_mod), CLIENTS, config)
    with pytest.raises(AttributeError, match=r"use strategy\.base\.set_save_path"):
        module.main(grid, config, Selecting())


@pytest.mark.parametrize("name", CHANGED)
def test_a_base_that_samples_is_told_what_to_write(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fraction_train of \w+ is 0\.5.*use fraction_train=1\.0"):
        run(name, Selecting(RoundRobin), summary_mod, **folders(name, tmp_path))


def test_what_a_loop_of_the_bases_own_writes_is_written_with_selection_too(tmp_path: Path) -> None:
    """By what the log says to do with it."""
    settings = CHANGED["advanced_pytorch"]

    def written(folder: Path, select: Select, *mods: Any) -> tuple[Any, ...]:
        folder.mkdir()
        run("advanced_pytorch", select, *mods, **settings, output=str(folder))
        results = json.loads((folder / "results.json").read_text())
        rounds = [(row["round"], set(row["train"]), set(row["evaluate"])) for row in results]
        lines = (folder / "board.jsonl").read_text().splitlines()
        board = [(row.pop("step"), set(row)) for row in map(json.loads, lines)]
        return rounds, board, bool(list(folder.glob("best_*.npz")))

    before = written(tmp_path / "alone", alone)
    after = written(tmp_path / "with selection", Selecting(), summary_mod)
    assert after == before
    assert len(before[0]) == 4


@pytest.mark.parametrize("restored", [False, True])
def test_heads_that_clients_keep_are_of_the_trainings_that_count(
    restored: bool, tmp_path: Path
) -> None:
    """All that are asked train; with the option, only the chosen keep what comes of it."""
    module = load("advanced_pytorch")
    config = {**module.RUN_CONFIG, **CHANGED["advanced_pytorch"], "output": str(tmp_path)}
    app = module.make_client_app(SummaryMod(restore_state=True) if restored else summary_mod)
    grid = InProcessGrid(app, CLIENTS, config)
    selecting = Selecting()
    module.main_with_selection(grid, config, selecting)
    keeping = {
        str(context.node_config["partition-id"])
        for context in grid.contexts.values()
        if module.HEAD in context.state.array_records
    }
    history = selecting.strategy.history
    chosen = {client for record in history for client in record.delivered}
    asked = {client for record in history for client in record.asked}
    assert keeping == (chosen if restored else asked)
    assert chosen < asked


@pytest.mark.parametrize("kind", [UniformSelection, RoundRobin])
def test_trees_are_chosen_by_rules_that_ask_for_no_sketch(kind: type[Any]) -> None:
    selecting = Selecting(kind)
    result = run(TREES, selecting, summary_mod, **CHANGED[TREES])
    history = selecting.strategy.history
    assert [len(record.delivered) for record in history] == [SELECTED] * 3
    trees = load(TREES).trees_of(result.arrays)
    assert [str(tree["client"]) for tree in trees] == [c for r in history for c in r.delivered]
    assert metric_names(result) == metric_names(run(TREES, alone))


def test_trees_have_no_gradient_to_compare() -> None:
    with pytest.raises(ValueError, match=r"no floating-point array.*UniformSelection, RoundRobin"):
        run(TREES, Selecting(), summary_mod, **CHANGED[TREES])


@pytest.mark.parametrize("rule", STRATEGIES)
def test_every_rule_understands_what_the_examples_report(rule: str) -> None:
    """Flower's examples say train_loss and eval_loss; what a rule needs is found in them."""
    selecting = Selecting(STRATEGIES[rule])
    run("quickstart_pytorch", selecting, summary_mod)
    assert [len(record.delivered) for record in selecting.strategy.history] == [SELECTED] * 3
    assert all(record.rejected == {} for record in selecting.strategy.history)


@pytest.mark.parametrize("rule", [strategies.Oort, strategies.ActiveFL])
def test_a_loss_under_another_name_is_told_by_an_option(rule: type[Any]) -> None:
    with pytest.raises(SelectionError, match=r"train_logloss.*loss_key"):
        run("quickstart_sklearn", Selecting(rule), summary_mod)
    selecting = Selecting(rule, loss_key="train_logloss")
    run("quickstart_sklearn", selecting, summary_mod)
    assert [len(record.delivered) for record in selecting.strategy.history] == [SELECTED] * 3


FORGETFUL = [
    "quickstart_sklearn",
    pytest.param("quickstart_pytorch", marks=pytest.mark.minutes),
    "quickstart_jax",
    "resnet",
    pytest.param("fedprox", marks=pytest.mark.minutes),
    TREES,
]
"""Examples that draw nothing anew, and whose clients remember nothing."""


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_run_that_is_made_longer_is_the_longer_run(name: str, tmp_path: Path) -> None:
    kind = RoundRobin if name == TREES else PNCS
    settings = CHANGED.get(name, {})

    def outcome(folder: Path | None, rounds: int) -> tuple[list[list[str]], dict[str, bytes], Any]:
        selecting = Selecting(kind, checkpoint=folder)
        result = run(name, selecting, summary_mod, **settings, **{"num-server-rounds": rounds})
        chosen = [record.chosen for record in selecting.strategy.history]
        model = {name: array.numpy().tobytes() for name, array in result.arrays.items()}
        return chosen, model, metric_names(result)

    outcome(tmp_path, 2)
    assert outcome(tmp_path, 4) == outcome(None, 4)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in a worker of Ray: sums over several threads have other last bits."""
    torch = pytest.importorskip("torch", reason="needs pncs-flower[simulation]")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.importorskip("threadpoolctl").threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


@pytest.mark.ray
@pytest.mark.minutes
@pytest.mark.usefixtures("one_thread")
def test_all_of_them_on_ray(tmp_path: Path) -> None:
    """With the choices and the model that the same app has in process, if it is not random."""
    pytest.importorskip("ray", reason="needs pncs-flower[simulation]")
    names = [name for name in NEEDS if all(map(importlib.util.find_spec, NEEDS[name]))]
    changed = {name: {**folders(name, tmp_path), **CHANGED.get(name, {})} for name in names}
    entries = [f"{name}={json.dumps(settings)}" for name, settings in changed.items()]
    script = TESTS / "apps" / "flower_examples" / "on_ray.py"
    done = run_script(script, CLIENTS, tmp_path, *entries, home=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    told = {row.pop("example"): row for row in map(json.loads, lines)}
    assert list(told) == names, done.stdout + done.stderr
    for name, row in told.items():
        rounds = load(name).RUN_CONFIG["num-server-rounds"]
        assert row["rejected"] == [{}] * rounds, name
        assert [len(clients) for clients in row["delivered"]] == [SELECTED] * rounds, name
        if name in RANDOM:
            continue
        selecting = Selecting(RoundRobin if name == TREES else PNCS)
        result = run(name, selecting, summary_mod, **changed[name])
        assert [r.chosen for r in selecting.strategy.history] == row["chosen"], name
        with np.load(tmp_path / f"{name}.npz") as arrays:
            for array_name, array in result.arrays.items():
                np.testing.assert_array_equal(arrays[array_name], array.numpy(), name)
