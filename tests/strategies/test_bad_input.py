"""What a user can get wrong is a clear error before anybody trains."""

import inspect
from typing import get_type_hints

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from pncs_flower import strategies
from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    DivFL,
    FedCor,
    GradientMemory,
    GradientNorm,
    Oort,
    PowerOfChoice,
    RoundRobin,
    SelectionError,
    SelectionStrategy,
    TooFewClientsError,
    UniformSelection,
    timeouts,
)
from pncs_flower.strategies.rules.uniform import UniformRule


def start(strategy, clients: int = 4):
    grid = InProcessGrid(numpy_app.make_app(summary_mod), clients)
    try:
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    finally:
        trained = [numpy_app.times_trained(c) for c in grid.contexts.values()]
        assert trained == [0] * clients


SELECTIONS = list(strategies.rules.STRATEGIES.values())
OPTIONS = [
    (kind, name)
    for kind in SELECTIONS
    for name in inspect.signature(kind).parameters
    if name not in ("base", "options")
] + [(PNCS, name) for name in get_type_hints(strategies.SelectionOptions)]


@pytest.mark.parametrize("wrong", [float("nan"), [1], {"a": 1}, b"", object()])
@pytest.mark.parametrize(
    ("kind", "option"), OPTIONS, ids=[f"{kind.__name__}-{name}" for kind, name in OPTIONS]
)
def test_an_option_of_another_type_is_named(kind, option, wrong):
    with pytest.raises((TypeError, ValueError), match=option):
        kind(FedAvg(), **{option: wrong})


def test_a_single_name_is_no_list_of_layers():
    with pytest.raises(TypeError, match=r"layers is 'fc2'.*use \['fc2'\]"):
        PNCS(FedAvg(), layers="fc2")


def test_no_layer_at_all_is_refused():
    with pytest.raises(ValueError, match="layers is empty"):
        PNCS(FedAvg(), layers=[])


@pytest.mark.parametrize("num_rounds", [-1, 2.5])
def test_a_number_of_rounds_that_is_none(num_rounds):
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    with pytest.raises((TypeError, ValueError), match=f"num_rounds is {num_rounds}"):
        PNCS(FedAvg()).start(grid, numpy_app.initial_arrays(), num_rounds=num_rounds)


def test_an_eligible_that_raises_is_named():
    with pytest.raises(SelectionError, match=r"eligible\('0'\) raised ZeroDivisionError"):
        start(PNCS(FedAvg(), eligible=lambda key: 1 / 0))


@pytest.mark.parametrize("kind", [PNCS, UniformSelection, RoundRobin])
@pytest.mark.parametrize("num_selected", [0, -1])
def test_num_selected_below_one(kind, num_selected):
    with pytest.raises(ValueError, match=f"num_selected is {num_selected}.*at least 1"):
        kind(FedAvg(), num_selected=num_selected)


def test_more_selected_than_clients_names_both():
    told = r"4 .* take part, but num_selected is 5; the simulation has 4 clients\. Have more cl"
    with pytest.raises(TooFewClientsError, match=told):
        start(PNCS(FedAvg(), num_selected=5, wait_timeout=0.1))


@pytest.mark.parametrize("option", ["min_train_nodes", "min_available_nodes"])
def test_base_that_would_wait_for_ever_on_the_chosen(option):
    with pytest.raises(ValueError, match=f"FedAvg would wait for ever: its {option} is 3"):
        PNCS(FedAvg(**{option: 3}), num_selected=2)


def test_base_that_would_wait_for_ever_inside_a_wrapper():
    base = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(min_available_nodes=8), 1.0, 1.0, num_sampled_clients=2
    )
    with pytest.raises(ValueError, match="min_available_nodes is 8"):
        PNCS(base, num_selected=2)


def test_base_that_waits_without_saying_so_is_stopped(monkeypatch):
    monkeypatch.setattr(timeouts, "BASE_LOOKS", 1)  # Flower looks once in a second
    monkeypatch.setattr(timeouts, "BASE_PATIENCE", 0.5)

    class Patient(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            self.min_available_nodes = 9
            return super().configure_train(server_round, arrays, config, grid)

    with pytest.raises(TooFewClientsError, match="is given 2 clients, but waits for more"):
        start(PNCS(Patient(fraction_evaluate=0.0)))


def test_base_that_would_leave_out_chosen_clients():
    with pytest.raises(ValueError, match=r"fraction_train of FedAvg is 0\.5"):
        PNCS(FedAvg(fraction_train=0.5))


def test_privacy_wrapper_for_another_number_of_clients():
    base = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, num_sampled_clients=5)
    with pytest.raises(ValueError, match=r"num_sampled_clients of .* is 5, but num_selected is 2"):
        PNCS(base, num_selected=2)


def test_base_that_is_no_message_based_strategy():
    from flwr.server.strategy import FedAvg as OldFedAvg

    with pytest.raises(TypeError, match=r"flwr\.serverapp\.strategy"):
        PNCS(OldFedAvg())


def test_unknown_layer_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"unknown layer 'neck'.*body, head"):
        start(PNCS(FedAvg(), layers=["head", "neck"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": 0.5}, "0.5"),
        ({"form": "cubed"}, "squared"),
        ({"sketch": "fourier:3"}, "coordinates"),
        ({"sketch": "coordinates:0"}, "0"),
        ({"sketch": "count:64"}, "p"),
        ({"summary": "weights"}, "'update' or 'gradient'"),
        ({"queue_length": -1}, "queue_length is -1"),
        ({"rest_rounds": -1}, "rest_rounds is -1"),
        ({"queue_length": 4, "rest_rounds": 2}, "both say how long a client rests"),
        ({"min_clients": 1}, "min_clients is 1"),
        ({"wait_timeout": 0}, "wait_timeout is 0"),
        ({"summary_timeout": float("nan")}, "summary_timeout is nan"),
    ],
)
def test_option_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        PNCS(FedAvg(), **options)


def test_gradient_wanted_from_an_app_that_cannot_give_it_says_how():
    with pytest.raises(RuntimeError, match=r"SummaryMod\(gradient=\.\.\.\)"):
        start(PNCS(FedAvg(), summary="gradient"))


def test_client_without_the_mod_says_which_line_is_missing():
    grid = InProcessGrid(numpy_app.make_app(), 3)
    with pytest.raises(RuntimeError, match=r"ClientApp\(mods=\[summary_mod, \.\.\.\]\)"):
        PNCS(FedAvg(), wait_timeout=0.5).start(grid, numpy_app.initial_arrays(), num_rounds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_select": 3}, "PNCS has no option 'num_select': did you mean 'num_selected'"),
        ({"num_selected": 2.0}, r"num_selected is 2\.0, but must be a whole number"),
        ({"num_selected": True}, "num_selected is True"),
        ({"queue_length": "4"}, "queue_length is '4'"),
        ({"rest_rounds": 2.0}, r"rest_rounds is 2\.0, but must be a whole number"),
        ({"rest_rounds": True}, "rest_rounds is True"),
        ({"seed": None}, "seed is None"),
        ({"wait_timeout": "1"}, "wait_timeout is '1', but must be a number"),
        ({"ride_along": "no"}, "ride_along is 'no', but must be True or False"),
        ({"history_path": 5}, "history_path is 5, but must be a path"),
        ({"eligible": 5}, "eligible is 5, but must be callable"),
    ],
)
def test_option_of_another_type_or_name(options, message):
    with pytest.raises(TypeError, match=message):
        PNCS(FedAvg(), **options)


OWN_OPTIONS = {
    PNCS: ("layer_weight", "layer_weights"),
    GradientMemory: ("forgeting", "forgetting"),
    DivFL: ("stales", "stale"),
    GradientNorm: ("sumary", "summary"),
    PowerOfChoice: ("variants", "variant"),
    FedCor: ("shedule", "schedule"),
    ActiveFL: ("sharpnes", "sharpness"),
    Oort: ("pacer_steps", "pacer_step"),
    UniformSelection: ("num_selectd", "num_selected"),
    RoundRobin: ("queue_lenght", "queue_length"),
}


@pytest.mark.parametrize("kind", OWN_OPTIONS, ids=lambda kind: kind.__name__)
def test_an_unknown_option_is_told_the_rules_own_options_too(kind):
    wrong, meant = OWN_OPTIONS[kind]
    hint = f"{kind.__name__} has no option '{wrong}': did you mean '{meant}'"
    with pytest.raises(TypeError, match=hint):
        kind(FedAvg(), **{wrong: 1})
    with pytest.raises(TypeError, match=rf"has no option 'zzz': there are .*{meant}.*"):
        kind(FedAvg(), zzz=1)


def test_an_option_of_a_rule_is_none_of_a_strategy_with_any_rule():
    with pytest.raises(TypeError, match="'layers': there are queue_length"):
        SelectionStrategy(FedAvg(), UniformRule(), layers=["head"])


@pytest.mark.parametrize("option", [{"p": "4"}, {"sketch": None}])
def test_parameter_of_the_rule_of_another_type(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} is "):
        PNCS(FedAvg(), **option)


def test_limits_of_the_base_are_all_named_at_once():
    with pytest.raises(ValueError, match=r"min_train_nodes=1, min_available_nodes=1"):
        PNCS(FedAvg(), num_selected=1)


def test_base_that_would_wait_for_clients_to_evaluate_is_refused_before_training():
    with pytest.raises(TooFewClientsError, match="min_evaluate_nodes = 5 clients, but 4 take part"):
        start(PNCS(FedAvg(min_evaluate_nodes=5)))


def test_selection_strategies_are_not_wrapped_twice():
    with pytest.raises(ValueError, match="do not wrap it twice"):
        PNCS(PNCS(FedAvg()))


def test_strategy_that_has_run_is_not_started_again():
    strategy = UniformSelection(FedAvg(fraction_evaluate=0.0))
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    with pytest.raises(SelectionError, match="make a new one"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)


def test_history_that_cannot_be_written_is_an_error_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"history_path is .*cannot be written"):
        start(PNCS(FedAvg(), history_path=tmp_path))


def test_history_makes_its_folder(tmp_path):
    strategy = PNCS(FedAvg(), history_path=tmp_path / "new" / "history.jsonl")
    strategy.start(InProcessGrid(numpy_app.make_app(summary_mod), 4), numpy_app.initial_arrays(), 1)
    assert (tmp_path / "new" / "history.jsonl").is_file()


def test_nothing_is_written_before_a_run_starts(tmp_path):
    PNCS(FedAvg(), history_path=tmp_path / "a" / "file.jsonl", checkpoint=tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_cannot_be_written_is_an_error_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"checkpoint is .*nothing can be written"):
        start(PNCS(FedAvg(), checkpoint=tmp_path / "file"))


def test_class_of_the_mod_in_place_of_the_mod_says_so():
    grid = InProcessGrid(numpy_app.make_app(SummaryMod), 3)
    with pytest.raises(SelectionError, match=r"summary_mod, or SummaryMod\(\.\.\.\)"):
        PNCS(FedAvg(), wait_timeout=0.5).start(grid, numpy_app.initial_arrays(), num_rounds=1)


def test_summary_above_its_budget_is_refused_before_anybody_is_asked():
    with pytest.raises(ValueError, match="takes 92 bytes, but max_summary_bytes is 91"):
        start(PNCS(FedAvg(), sketch="layers", max_summary_bytes=91))


def test_summary_within_its_budget_is_taken():
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), sketch="layers", max_summary_bytes=92)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    assert len(strategy.history[0].answered) == 4
