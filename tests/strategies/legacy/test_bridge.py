"""Selection on an older server: the same choices, and an app that stays as it is."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import client_fn_app, legacy_app
from flwr.app import Context, RecordDict
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    FitRes,
    GetPropertiesIns,
    Parameters,
    Status,
    parameters_to_ndarrays,
)
from flwr.server import Server, SimpleClientManager
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.clients.legacy import SummaryClient
from pncs_flower.protocol import MARKER, SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    EmptyRoundsError,
    GradientMemory,
    GradientNorm,
    NoSummariesError,
    PowerOfChoice,
    RoundRobin,
    SelectionError,
    SelectionStrategy,
    SketchedMean,
    TooFewClientsError,
    UniformSelection,
)
from pncs_flower.strategies.legacy import LegacySelection
from pncs_flower.strategies.rules.round_robin import RoundRobinRule

TESTS = Path(__file__).parents[2]
CLIENTS = 6
SELECTIONS: dict[str, Callable[..., SelectionStrategy]] = {
    "PNCS": lambda base, **o: PNCS(base, **{**o, "queue_length": None}),  # its own
    "PNCS, sketched": partial(PNCS, sketch="coordinates:5@float16"),
    "GradientMemory": GradientMemory,
    "GradientNorm": GradientNorm,
    "PowerOfChoice": partial(PowerOfChoice, candidates=4),
    "UniformSelection": UniformSelection,
    "RoundRobin": RoundRobin,
}


def context(number: int) -> Context:
    return Context(1, number, {"partition-id": number}, RecordDict(), {})


class CountingClient(client_fn_app.TargetClient):
    """Counts how often it trains, and remembers the configs that it was given."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.configs: list[dict[str, Any]] = []

    def fit(self, parameters, config):
        self.configs.append(config)
        return super().fit(parameters, config)


def wrapped(number: int, client: NumPyClient | None = None, **options: Any) -> SummaryClient:
    client = client or client_fn_app.TargetClient(number)
    return SummaryClient(client.to_client(), context(number), **options)


def make_server(strategy: LegacySelection, clients: list[Client] | None = None) -> Server:
    manager = SimpleClientManager()
    for number, client in enumerate(clients or [wrapped(k) for k in range(CLIENTS)]):
        manager.register(legacy_app.DirectProxy(number, client))
    return Server(client_manager=manager, strategy=strategy)


def serve(
    strategy: LegacySelection, clients: list[Client] | None = None, rounds: int = 4
) -> Server:
    server = make_server(strategy, clients)
    server.fit(num_rounds=rounds, timeout=None)
    return server


def new_style(selection: Callable[..., SelectionStrategy], clients: int, rounds: int = 4):
    strategy = selection(FedAvg(), **legacy_app.OPTIONS)
    grid = InProcessGrid(client_fn_app.make_app(summary_mod), clients)
    result = strategy.start(grid, client_fn_app.initial_arrays(), num_rounds=rounds)
    return strategy, result.arrays.to_numpy_ndarrays()


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_the_choices_and_the_model_are_those_of_a_message_strategy(selection):
    strategy = legacy_app.make_strategy(selection)
    server = serve(strategy)
    other, arrays = new_style(selection, CLIENTS)
    assert [r.chosen for r in strategy.history] == [r.chosen for r in other.history]
    assert [r.delivered for r in strategy.history] == [r.delivered for r in other.history]
    for ours, theirs in zip(parameters_to_ndarrays(server.parameters), arrays, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@dataclass(frozen=True, repr=False)
class BesidesRule(RoundRobinRule):
    """Asks for a sketch of the whole update beside that of one array."""

    request = SummaryRequest(sketch="count:4", layers=("0",), besides="count:8")


def asking_both(base, num_selected, **options) -> SelectionStrategy:
    return SelectionStrategy(base, BesidesRule(num_selected), verify_sketches=True, **options)


def test_a_sketch_of_the_whole_update_comes_beside_the_summary():
    strategy = legacy_app.make_strategy(asking_both)
    server = serve(strategy)
    other, arrays = new_style(asking_both, CLIENTS)
    for ours, theirs in zip(strategy.history, other.history, strict=True):
        assert ours.answered == ours.asked == theirs.asked
        assert ours.delivered == ours.chosen == theirs.chosen
        assert not ours.rejected
    for ours, theirs in zip(parameters_to_ndarrays(server.parameters), arrays, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_client_can_be_forgotten():
    strategy = legacy_app.make_strategy(SketchedMean)
    serve(strategy)
    memory = strategy._selection.state()["combination"]["memory"]
    assert "1" in memory["last"]
    strategy.forget("1", "2")
    memory = strategy._selection.state()["combination"]["memory"]
    assert set(memory["last"]) == {str(k) for k in range(CLIENTS)} - {"1", "2"}


class Outdated(SummaryClient):
    """Knows nothing of a second sketch."""

    def get_properties(self, ins):
        marker = json.loads(ins.config[MARKER])
        marker.pop("besides", None)
        return super().get_properties(GetPropertiesIns({**ins.config, MARKER: json.dumps(marker)}))


def test_a_client_of_an_older_release_is_told_apart():
    outdated = Outdated(client_fn_app.TargetClient(1).to_client(), context(1))
    strategy = legacy_app.make_strategy(asking_both, queue_length=0)
    serve(strategy, [wrapped(0), outdated, wrapped(2)], rounds=1)
    assert list(strategy.history[0].rejected) == ["1"]
    assert "need the same release" in strategy.history[0].rejected["1"]


def test_a_chosen_client_sends_what_it_kept():
    clients = [CountingClient(number) for number in range(CLIENTS)]
    strategy = legacy_app.make_strategy()
    serve(strategy, [wrapped(number, client) for number, client in enumerate(clients)])
    asked = [client for record in strategy.history for client in record.asked]
    assert [len(client.configs) for client in clients] == [
        asked.count(str(number)) for number in range(CLIENTS)
    ]


class Forgetful(SummaryClient):
    """Has lost the update that it kept."""

    def fit(self, ins):
        self._context.state.clear()
        return super().fit(ins)


class Swapping(SummaryClient):
    """Has kept an update for another pre-round than this one."""

    def fit(self, ins):
        self._context.state["pncs-kept"]["ticket"] = "of another one"
        return super().fit(ins)


@pytest.mark.parametrize("kind", [Forgetful, Swapping])
def test_a_client_that_has_not_kept_the_update_of_this_pre_round_trains_again(kind):
    clients = [CountingClient(number) for number in range(3)]
    strategy = legacy_app.make_strategy()
    serve(
        strategy,
        [kind(client.to_client(), context(k)) for k, client in enumerate(clients)],
        rounds=1,
    )
    assert len(strategy.history[0].delivered) == 2
    assert sum(len(client.configs) for client in clients) == 3 + 2


@pytest.mark.parametrize("selection", [PNCS, RoundRobin])
def test_fit_sees_the_config_of_its_strategy_alone(selection):
    client = CountingClient(0)
    strategy = legacy_app.make_strategy(selection)
    serve(strategy, [wrapped(0, client), *(wrapped(k) for k in range(1, 3))], rounds=3)
    assert client.configs
    assert all(set(config) == {"server-round"} for config in client.configs)


def test_metrics_of_any_type_reach_the_base_strategy():
    seen: list[Any] = []

    def aggregate(metrics):
        seen.extend(metrics)
        return {"clients": len(metrics)}

    base = legacy_app.base(fit_metrics_aggregation_fn=aggregate)
    serve(LegacySelection(base, PNCS, num_selected=2), rounds=1)
    assert [metrics for _, metrics in seen] == [{"round": 1, "kind": "old"}] * 2


def test_the_base_strategy_sees_clients_in_the_order_of_their_keys():
    orders: list[list[int]] = []

    def aggregate(metrics):
        orders.append([num_examples for num_examples, _ in metrics])
        return {}

    base = legacy_app.base(
        fit_metrics_aggregation_fn=aggregate, evaluate_metrics_aggregation_fn=aggregate
    )
    serve(LegacySelection(base, RoundRobin, num_selected=4), rounds=3)
    assert [len(order) for order in orders] == [4, 6] * 3
    assert all(order == sorted(order) for order in orders)  # client k has k + 1 examples


def test_arrays_that_share_a_name_are_one_layer():
    strategy = legacy_app.make_strategy(
        array_names=["fc.weight", "fc.bias"], layers=["fc"], sketch="coordinates:5"
    )
    serve(strategy, rounds=1)
    assert strategy.history[0].bytes_up["pre-round"] < 2 * 5 * 4 * CLIENTS + 200 * CLIENTS
    assert strategy.history[0].answered == [str(number) for number in range(CLIENTS)]


def test_names_of_another_model_are_an_error():
    strategy = legacy_app.make_strategy(array_names=["weight"])
    with pytest.raises(ValueError, match=r"array_names are 1, but the model has 2"):
        serve(strategy)


def test_a_gradient_of_the_apps_own_is_compared():
    def gradient(message, context):
        return message.content["arrays"]  # which all clients share, so that all are alike

    mod = SummaryMod(gradient=gradient)
    strategy = legacy_app.make_strategy(summary="gradient")
    clients = [CountingClient(number) for number in range(3)]
    serve(strategy, [wrapped(k, client, mod=mod) for k, client in enumerate(clients)], rounds=2)
    assert strategy.history[1].mean_similarity == pytest.approx(1)
    assert sum(len(client.configs) for client in clients) == 2 * 2


# --- what goes wrong ------------------------------------------------------------------------------


class Broken(client_fn_app.TargetClient):
    def fit(self, parameters, config):
        raise RuntimeError("out of patience")


def test_a_client_that_fails_is_left_out_with_the_reason():
    strategy = legacy_app.make_strategy(queue_length=0)
    serve(strategy, [wrapped(0), wrapped(1, Broken(1)), wrapped(2)], rounds=2)
    assert [record.chosen for record in strategy.history] == [["0", "2"]] * 2
    assert "RuntimeError: out of patience" in strategy.history[0].rejected["1"]


def test_a_chosen_client_that_fails_is_named_with_what_the_server_saw():
    strategy = legacy_app.make_strategy(RoundRobin)
    serve(strategy, [wrapped(0), wrapped(1, Broken(1))], rounds=1)
    assert strategy.history[0].delivered == ["0"]
    assert strategy.history[0].rejected == {"1": "training: RuntimeError: out of patience"}


def test_rounds_without_any_update_end_the_run():
    strategy = legacy_app.make_strategy(RoundRobin)
    with pytest.raises(EmptyRoundsError, match="out of patience"):
        serve(strategy, [wrapped(number, Broken(number)) for number in range(3)])


def test_a_client_that_hangs_costs_the_timeout():
    ended = threading.Event()

    class Hanging(client_fn_app.TargetClient):
        def fit(self, parameters, config):
            ended.wait(60)
            return super().fit(parameters, config)

    strategy = legacy_app.make_strategy(summary_timeout=0.5)
    try:
        serve(strategy, [wrapped(0), wrapped(1, Hanging(1)), wrapped(2)], rounds=1)
    finally:
        ended.set()
    assert strategy.history[0].chosen == ["0", "2"]
    assert strategy.history[0].rejected == {"1": "pre-round: no reply within 0.5 s"}


def test_a_client_that_is_not_wrapped_is_told_how():
    client = client_fn_app.TargetClient(0).to_client()
    with pytest.raises(SelectionError, match=r"does not implement .*SummaryClient\("):
        serve(legacy_app.make_strategy(wait_timeout=1.0), [client, client])


def test_an_update_that_is_not_finite_is_left_out():
    class Diverged(client_fn_app.TargetClient):
        def fit(self, parameters, config):
            arrays, number, metrics = super().fit(parameters, config)
            return [array * np.float32(np.nan) for array in arrays], number, metrics

    strategy = legacy_app.make_strategy(RoundRobin, queue_length=0)
    server = serve(strategy, [wrapped(0), wrapped(1, Diverged(1))], rounds=1)
    assert "not finite" in strategy.history[0].rejected["1"]
    assert all(np.isfinite(a).all() for a in parameters_to_ndarrays(server.parameters))


def test_bytes_that_are_no_array_are_left_out():
    class Forged(SummaryClient):
        def fit(self, ins):
            return FitRes(Status(Code.OK, ""), Parameters([b"x", b"y"], "numpy.ndarray"), 1, {})

    forged = Forged(client_fn_app.TargetClient(1).to_client(), context(1))
    strategy = legacy_app.make_strategy(RoundRobin, queue_length=0)
    serve(strategy, [wrapped(0), forged], rounds=1)
    assert strategy.history[0].delivered == ["0"]
    assert "no NumPy array" in strategy.history[0].rejected["1"]


def test_an_update_is_clipped():
    strategy = legacy_app.make_strategy(clip_norm=0.1)
    server = serve(strategy, rounds=1)
    norm = np.sqrt(sum((array**2).sum() for array in parameters_to_ndarrays(server.parameters)))
    assert 0 < norm <= 0.1 + 1e-6


def test_a_layer_that_does_not_exist_is_an_error_before_anybody_trains():
    client = CountingClient(0)
    with pytest.raises(ValueError, match="unknown layer 'fc': the model's layers are 0, 1"):
        serve(legacy_app.make_strategy(layers=["fc"]), [wrapped(0, client), wrapped(1)])
    assert client.configs == []


def test_answers_that_can_never_come_end_the_run():
    strategy = legacy_app.make_strategy(summary="gradient")  # which the app does not give
    with pytest.raises(NoSummariesError, match="SummaryMod"):
        serve(strategy)


def test_a_base_strategy_that_waits_for_more_clients_is_refused():
    with pytest.raises(ValueError, match=r"min_available_clients is 4.*FedAvg\(min_available_c"):
        LegacySelection(legacy_app.base(min_available_clients=4), PNCS, num_selected=2)


def test_a_base_strategy_that_leaves_out_chosen_clients_is_refused():
    with pytest.raises(ValueError, match=r"fraction_fit of FedAvg is 0.5"):
        LegacySelection(legacy_app.base(fraction_fit=0.5), PNCS, num_selected=2)


def test_an_evaluation_that_would_wait_for_ever_is_an_error():
    base = legacy_app.base(min_evaluate_clients=9)
    with pytest.raises(TooFewClientsError, match="waits for 9 clients, but is given 6"):
        serve(LegacySelection(base, PNCS, num_selected=2))


def test_where_no_evaluation_can_be_used_there_is_no_loss():
    class Unweighed(client_fn_app.TargetClient):
        def evaluate(self, parameters, config):
            loss, _, metrics = super().evaluate(parameters, config)
            return loss, 0, metrics

    strategy = LegacySelection(legacy_app.base(), RoundRobin, num_selected=2)
    server = make_server(strategy, [wrapped(k, Unweighed(k)) for k in range(3)])
    history, _ = server.fit(num_rounds=1, timeout=None)
    assert history.losses_distributed == []
    assert strategy.history[0].delivered == ["0", "1"]
    assert "there is none" in strategy.history[0].notes[-1]


@pytest.mark.parametrize("option", ["checkpoint", "ride_along", "devices", "deadline", "extra"])
def test_options_without_a_place_are_refused(option):
    with pytest.raises(TypeError, match=f"{option} is not for an older server"):
        LegacySelection(legacy_app.base(), PNCS, **{option: True})


def test_a_message_strategy_needs_no_bridge():
    with pytest.raises(TypeError, match="need no bridge"):
        LegacySelection(FedAvg(), PNCS)


def test_an_older_privacy_wrapper_may_be_inside():
    base = DifferentialPrivacyServerSideFixedClipping(
        legacy_app.base(), noise_multiplier=0.0, clipping_norm=0.1, num_sampled_clients=2
    )
    server = serve(LegacySelection(base, PNCS, num_selected=2), rounds=1)
    norm = np.sqrt(sum((array**2).sum() for array in parameters_to_ndarrays(server.parameters)))
    assert 0 < norm <= 0.1 + 1e-6


# --- the client's side ----------------------------------------------------------------------------


def test_a_client_needs_a_context_or_a_name():
    with pytest.raises(TypeError, match="name='hospital-a'"):
        SummaryClient(client_fn_app.TargetClient(0).to_client())


def test_a_client_must_be_converted():
    with pytest.raises(TypeError, match=r"call its to_client\(\)"):
        SummaryClient(client_fn_app.TargetClient(0), context(0))


def test_questions_of_the_apps_own_are_answered_by_the_app():
    class Talkative(client_fn_app.TargetClient):
        def get_properties(self, config):
            return {"answer": config["question"]}

    answer = wrapped(0, Talkative(0)).get_properties(GetPropertiesIns({"question": 7}))
    assert answer.properties == {"answer": 7}
    assert MARKER not in answer.properties


# --- real processes -------------------------------------------------------------------------------


def script(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(TESTS / "apps" / "legacy_app.py"), *arguments],
        cwd=TESTS,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def choices_of(process: subprocess.Popen[str]) -> list[list[str]]:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    choices: list[list[str]] = json.loads(output.strip().splitlines()[-1])
    return choices


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.superlink
@pytest.mark.minutes
def test_start_server_with_three_clients_chooses_as_a_message_strategy():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    processes = [script("server", port)]
    try:
        _wait_for(int(port))  # a client that comes too early ends
        processes += [script("client", port, str(k)) for k in range(3)]
        choices = choices_of(processes[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    strategy, _ = new_style(PNCS, 3, legacy_app.ROUNDS)
    assert choices == [record.chosen for record in strategy.history]


@pytest.mark.ray
@pytest.mark.minutes
def test_a_server_fn_app_on_ray_chooses_as_a_message_strategy():
    process = script("ray", "5")
    try:
        choices = choices_of(process)
    finally:
        process.kill()
        process.wait()
    strategy, _ = new_style(PNCS, 5, legacy_app.ROUNDS)
    assert choices == [record.chosen for record in strategy.history]
