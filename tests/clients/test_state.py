"""Apps that keep something in their state, where more clients train than are chosen."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.protocol import MARKER, SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientMemory

ROUNDS, CLIENTS = 6, 6


class Halving(FedAvg):
    """Its message cannot be guessed, so that some are asked twice in a round."""

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.5 / server_round
        return super().configure_train(server_round, arrays, config, grid)


def make_app(mod: SummaryMod, seen: list | None = None) -> ClientApp:
    """A client with momentum, a list of losses, a note that it uses up, and a count."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context) -> Message:
        state = context.state
        if "losses" not in state:
            state["losses"] = MetricRecord({"all": [0.0]})
            state["note"] = ConfigRecord({"text": "first"})
        elif "note" in state:
            del state["note"]
        state["losses"]["all"].append(float(len(state["losses"]["all"])))  # in place
        old = state.get("velocity")
        slope = numpy_app.gradient(message, context)
        velocity = {
            name: np.float32(0.9) * (0 if old is None else old[name].numpy()) + value.numpy()
            for name, value in slope.items()
        }
        state["velocity"] = ArrayRecord({n: Array(np.float32(v)) for n, v in velocity.items()})
        lr = np.float32(message.content["config"].get("lr", 0.25))
        arrays = {
            n: Array(np.float32(a.numpy() - lr * velocity[n]))
            for n, a in message.content["arrays"].items()
        }
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context) -> Message:
        if seen is not None:
            seen.append((context.node_config["partition-id"], times_trained(context)))
        context.state["evaluated"] = ConfigRecord({"yes": True})
        return numpy_app.evaluate(message, context)

    return app


def times_trained(context) -> int:
    return len(context.state["losses"]["all"]) - 1 if "losses" in context.state else 0


def run(restore_state, kind=PNCS, base=None, seen=None, **options):
    grid = InProcessGrid(make_app(SummaryMod(restore_state=restore_state), seen), CLIENTS)
    strategy = kind(base or FedAvg(), num_selected=2, seed=2, **options)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=ROUNDS)
    times = [times_trained(context) for context in grid.contexts.values()]
    return strategy, result, grid, times


def counts(clients) -> list[int]:
    clients = list(clients)
    return [clients.count(str(client)) for client in range(CLIENTS)]


@pytest.mark.parametrize("ride_along", [True, False])
@pytest.mark.parametrize("base", [FedAvg, Halving])
@pytest.mark.parametrize("kind", [PNCS, GradientMemory])
def test_with_restore_state_only_the_chosen_count_as_having_trained(kind, base, ride_along):
    strategy, _, grid, times = run(True, kind, base(), ride_along=ride_along)
    assert times == counts(c for record in strategy.history for c in record.chosen)
    for context in grid.contexts.values():
        assert ("note" in context.state) == (times_trained(context) == 1)
        assert ("velocity" in context.state) == (times_trained(context) > 0)
        assert "evaluated" in context.state


def test_without_it_all_that_were_asked_count_as_having_trained():
    strategy, _, _, times = run(False)
    assert times == counts(c for record in strategy.history for c in record.asked)


@pytest.mark.parametrize("kind", [PNCS, GradientMemory])
def test_with_restore_state_an_app_with_a_memory_learns_the_same_whatever_is_asked_ahead(kind):
    ahead, result, _, _ = run(True, kind, Halving())
    own, own_result, _, _ = run(True, kind, Halving(), ride_along=False)
    assert [r.chosen for r in ahead.history] == [r.chosen for r in own.history]
    assert result.arrays == own_result.arrays
    assert any(record.pre_round.startswith("own: ") for record in ahead.history)


def test_with_restore_state_an_evaluation_sees_what_the_chosen_trainings_left():
    seen: list = []
    strategy, _, _, _ = run(True, seen=seen, ride_along=False)
    expected = []
    for number in range(1, ROUNDS + 1):
        done = counts(c for record in strategy.history[:number] for c in record.chosen)
        expected.append(dict(enumerate(done)))
    assert [dict(seen[n : n + CLIENTS]) for n in range(0, len(seen), CLIENTS)] == expected


def test_a_gradient_or_loss_that_is_asked_for_leaves_no_trace_either():
    def gradient(message, context):
        context.state["gradients"] = ConfigRecord({"asked": True})
        return numpy_app.gradient(message, context)

    mod = SummaryMod(gradient=gradient, restore_state=True)
    grid = InProcessGrid(make_app(mod), CLIENTS)
    PNCS(FedAvg(), summary="gradient").start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert not any("gradients" in context.state for context in grid.contexts.values())


def test_a_training_that_is_refused_leaves_no_trace_in_the_state_that_the_caller_holds():
    """Flower drops a state whose app raises; the bridge to older servers holds on to it."""

    def broadcasts(message, context, call_next):
        reply = call_next(message, context)
        reply.content["arrays"]["head.bias"] = Array(np.ones((3, 1), np.float32))
        return reply

    app = make_app(SummaryMod(restore_state=True))
    mod = SummaryMod(restore_state=True)
    context = next(iter(InProcessGrid(app, 1).contexts.values()))
    marker = {"phase": "summarize", "round": 1, "seed": 5, "ticket": "a"}
    content = RecordDict({"arrays": numpy_app.initial_arrays(), "config": ConfigRecord()})
    content[MARKER] = ConfigRecord({**marker, **SummaryRequest().to_config()})

    def call(message, context):
        return broadcasts(message, context, app)

    with pytest.raises(ValueError, match="other arrays than the model"):
        mod(Message(content, context.node_id, MessageType.TRAIN), context, call)
    assert not context.state


def test_nothing_of_the_librarys_stays_in_the_state_of_who_was_chosen_last():
    strategy, _, grid, _ = run(True)
    for client in strategy.history[-1].chosen:
        context = list(grid.contexts.values())[int(client)]
        assert not [name for name in context.state if name.startswith("pncs-")]
