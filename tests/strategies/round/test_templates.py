"""What Flower's templates and guides have apps do, with the two lines added and nothing changed."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAvg,
    Result,
    Strategy,
)

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, PowerOfChoice

ONLY_TRAIN = {"fraction_evaluate": 0.0}


def run(app: ClientApp, strategy: Strategy, rounds: int = 3) -> Result:
    return strategy.start(InProcessGrid(app, 6), numpy_app.initial_arrays(), num_rounds=rounds)


@pytest.mark.parametrize("selection", [PNCS, PowerOfChoice])
def test_a_pytorch_app_with_server_and_configs(selection):
    pytest.importorskip("torch", reason="needs pncs-flower[simulation]")
    from apps import pytorch_app

    strategy = selection(FedAvg(), num_selected=3)
    results: list[Result] = []
    server = pytorch_app.make_server(strategy, results)
    run_config = {"lr": 0.1, "num-server-rounds": 3}
    server(
        InProcessGrid(pytorch_app.make_app(summary_mod), 6),
        Context(1, 1, {}, RecordDict(), run_config),
    )
    assert [record.delivered for record in strategy.history] == [
        record.chosen for record in strategy.history
    ]
    assert [len(record.chosen) for record in strategy.history] == [3, 3, 3]
    assert set(results[0].train_metrics_clientapp) == {1, 2, 3}
    assert set(results[0].evaluate_metrics_clientapp[3]) == {"eval_loss", "eval_acc"}
    counter = results[0].arrays["norm.num_batches_tracked"]
    assert (counter.numpy(), counter.dtype) == (3, "int64")


# --- mods of the app ------------------------------------------------------------------------------


class Recorder:
    """A mod that notes which messages reach the app, and adds a metric."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, frozenset[str]]] = []

    def __call__(
        self, message: Message, context: Context, call_next: Callable[..., Message]
    ) -> Message:
        self.seen.append((message.metadata.message_type, frozenset(message.content)))
        reply = call_next(message, context)
        reply.content["metrics"]["answer"] = 42
        return reply


def test_mods_behind_ours_see_the_messages_of_the_base_strategy_alone():
    recorder = Recorder()
    strategy = PNCS(FedAvg(), num_selected=2)
    result = run(numpy_app.make_app(summary_mod, recorder), strategy)
    plain = frozenset({"arrays", "config"})
    assert set(recorder.seen) == {("train", plain), ("evaluate", plain)}
    assert result.train_metrics_clientapp[1]["answer"] == 42
    assert result.evaluate_metrics_clientapp[1]["answer"] == 42


def test_mods_of_one_function_run_around_it():
    recorder = Recorder()
    app = ClientApp(mods=[summary_mod])
    app.train(mods=[recorder])(numpy_app.train)
    result = run(app, PNCS(FedAvg(**ONLY_TRAIN), num_selected=2), rounds=1)
    assert len(recorder.seen) == 6  # in the pre-round, and not again
    assert result.train_metrics_clientapp[1]["answer"] == 42


def test_a_mod_before_ours_sees_every_message():
    types: list[str] = []

    def note(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        types.append(message.metadata.message_type)
        return call_next(message, context)

    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=2)
    run(numpy_app.make_app(note, summary_mod), strategy, rounds=1)
    assert types == ["train"] * (6 + 6 + 2)  # introductions, summaries, updates


def test_flowers_mod_that_logs_sizes_may_stand_anywhere():
    strategy = PNCS(FedAvg(), num_selected=2)
    run(numpy_app.make_app(arrays_size_mod, summary_mod, arrays_size_mod), strategy)
    assert [len(record.delivered) for record in strategy.history] == [2, 2, 2]


# --- differential privacy -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mods"),
    [
        (DifferentialPrivacyServerSideAdaptiveClipping, []),
        (DifferentialPrivacyClientSideAdaptiveClipping, [adaptiveclipping_mod]),
    ],
    ids=["on the server", "on the clients"],
)
def test_adaptive_clipping(kind, mods):
    base = kind(
        FedAvg(**ONLY_TRAIN),
        noise_multiplier=0.01,
        num_sampled_clients=3,
        initial_clipping_norm=5.0,
        clipped_count_stddev=1.0,
    )
    strategy = PNCS(base, num_selected=3)
    result = run(numpy_app.make_app(summary_mod, *mods), strategy)
    assert [len(record.delivered) for record in strategy.history] == [3, 3, 3]
    assert base.clipping_norm != 5.0  # it learns from the updates, or from the clients' answers
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_local_privacy_noises_what_is_summarised_and_sent():
    mod = LocalDpMod(clipping_norm=0.1, sensitivity=1.0, epsilon=1e9, delta=1e-5)
    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=2, sketch="layers", verify_sketches=True)
    result = run(numpy_app.make_app(summary_mod, mod), strategy, rounds=1)
    assert strategy.history[0].rejected == {}  # summary and update have the same noise
    norm = np.sqrt(sum(float((a.numpy() ** 2).sum()) for a in result.arrays.values()))
    assert 0 < norm < 0.11


# --- lifespan -------------------------------------------------------------------------------------


def test_lifespan_surrounds_every_message_and_always_ends():
    events: list[str] = []
    app = ClientApp(mods=[summary_mod])

    @app.lifespan()
    def lifespan(context: Context) -> Iterator[None]:
        events.append("begin")
        yield
        events.append("end")

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert events[-1] == "begin"
        if context.node_config["partition-id"] == 0:
            raise RuntimeError("no data")
        return numpy_app.train(message, context)

    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=2)
    run(app, strategy, rounds=1)
    assert events == ["begin", "end"] * (6 + 6 + 2)
    assert "no data" in strategy.history[0].rejected["0"]
    assert len(strategy.history[0].delivered) == 2


def test_an_app_that_only_trains_and_answers_nothing_else_is_enough():
    app = ClientApp(mods=[summary_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = numpy_app.train(message, context)
        reply.content["metrics"] = MetricRecord({"num-examples": 1})
        return reply

    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=2)
    run(app, strategy)
    assert [len(record.delivered) for record in strategy.history] == [2, 2, 2]
