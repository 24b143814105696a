"""One bad client costs its own place in the round, with a reason in the record, and no more."""

import numpy as np
import pytest
from apps import numpy_app
from culprits import boom, culprit_sends, filled, run, with_summary, with_update
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    DeadWorkerError,
    DivFL,
    EmptyRoundsError,
    GradientMemory,
    GradientNorm,
    NoSummariesError,
    RoundRobin,
)
from pncs_flower.strategies.grids.polling import PollingGrid


def forged_header(summary):
    data = summary["head"].data.replace(b"(8,)", b"(9**9,)"[:4])
    summary["head"] = Array("float32", (8,), "numpy.ndarray", data)


def pickled(summary):
    import pickle

    summary["head"] = Array("float32", (8,), "numpy.ndarray", pickle.dumps([1.0] * 8))


SUMMARY_FAULTS = {
    "raises": (boom, "boom"),
    "NaN": (filled(np.nan), "head"),
    "infinite": (filled(-np.inf), "head"),
    "wrong length": (
        with_summary(lambda s: s.update(head=Array(np.zeros(7, np.float32)))),
        "head",
    ),
    "wrong dtype": (with_summary(lambda s: s.update(head=Array(np.zeros(8, "S4")))), "head"),
    "missing layer": (with_summary(lambda s: s.pop("head")), "body, head were asked for"),
    "extra layer": (
        with_summary(lambda s: s.update(neck=Array(np.zeros(8, np.float32)))),
        "neck",
    ),
    "100 MB": (
        with_summary(lambda s: s.update(head=Array(np.zeros(25_000_000, np.float32)))),
        "100000128 bytes, but at most",
    ),
    "forged header": (with_summary(forged_header), "head"),
    "pickle": (with_summary(pickled), "no NumPy array"),
    "no summary": (lambda m, r: Message(RecordDict(), reply_to=m), "holds no summary"),
}


@pytest.mark.parametrize(("answer", "reason"), SUMMARY_FAULTS.values(), ids=SUMMARY_FAULTS)
def test_bad_summary_is_left_out_with_a_reason(answer, reason):
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), queue_length=0, sketch="layers")
    result = run("summarize", answer, strategy)
    for record in strategy.history:
        assert sorted(record.answered) == ["0", "2", "3"]
        assert len(record.delivered) == 2
    first, second = strategy.history
    assert first.asked == ["0", "1", "2", "3"]
    assert first.rejected["1"].startswith("pre-round: ")
    assert reason in first.rejected["1"]
    assert "\x1b" not in first.rejected["1"]
    assert second.backing_off == ["1"]
    assert sorted(second.asked) == ["0", "2", "3"]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


UPDATE_FAULTS = {
    "raises": (boom, "boom"),
    "NaN": (
        with_update(
            lambda c: c["arrays"].update({"head.bias": Array(np.array([np.nan, 0], np.float32))})
        ),
        "not finite",
    ),
    "wrong shape": (
        with_update(lambda c: c["arrays"].update({"head.bias": Array(np.zeros(3, np.float32))})),
        "shape (3,), not (2,)",
    ),
    "infinite": (
        with_update(
            lambda c: c["arrays"].update({"head.bias": Array(np.array([0, np.inf], np.float32))})
        ),
        "not finite",
    ),
    "wrong dtype": (
        with_update(lambda c: c["arrays"].update({"head.bias": Array(np.zeros(2, np.int64))})),
        "has dtype int64, not float32",
    ),
    "extra array": (
        with_update(lambda c: c["arrays"].update({"neck": Array(np.zeros(2, np.float32))})),
        "in place of",
    ),
    "missing array": (with_update(lambda c: c["arrays"].pop("head.bias")), "in place of"),
    "too large for its dtype": (
        with_update(lambda c: c["arrays"].update({"head.bias": Array(np.full(2, 1e300))})),
        "but at most 4.6e+18 is allowed for float32",
    ),
    "so large that the next loss is infinite": (
        with_update(lambda c: c["arrays"].update({"head.bias": Array(np.full(2, -3e38, "f4"))})),
        "array 'head.bias' holds a value of size 3e+38, but at most 4.6e+18 is allowed",
    ),
    "two metric records": (
        with_update(lambda c: c.update(more=MetricRecord({"num-examples": 1}))),
        "2 metric records in place of one",
    ),
    "no arrays": (with_update(lambda c: c.pop("arrays")), "0 array records"),
    "infinite weight": (
        with_update(lambda c: c.update(metrics=MetricRecord({"num-examples": float("inf")}))),
        "num-examples",
    ),
}


@pytest.mark.parametrize(("answer", "reason"), UPDATE_FAULTS.values(), ids=UPDATE_FAULTS)
def test_bad_update_is_not_aggregated_and_its_client_does_not_enter_the_queue(answer, reason):
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2, queue_length=2)
    result = run("train", answer, strategy, rounds=3)
    faulty = [record for record in strategy.history if "1" in record.chosen]
    assert faulty
    for record in faulty:
        assert record.rejected["1"].startswith("training: ")
        assert reason in record.rejected["1"]
        assert record.delivered == [client for client in record.chosen if client != "1"]
    assert all("1" not in record.cooling for record in strategy.history)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_an_update_of_another_precision_does_not_change_that_of_the_model(dtype):
    def convert(content):
        content["arrays"] = ArrayRecord(
            {n: Array(a.numpy().astype(dtype)) for n, a in content["arrays"].items()}
        )

    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    result = run("train", with_update(convert), strategy)
    assert strategy.history[-1].delivered == ["0", "1", "2", "3"]
    assert {array.numpy().dtype for array in result.arrays.values()} == {np.dtype("float32")}
    plain = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    expected = run("train", with_update(lambda content: None), plain).arrays
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), expected[name].numpy(), rtol=1e-2, atol=1e-3)


def test_round_without_any_update_keeps_the_model():
    app = numpy_app.make_app(
        lambda m, c, call_next: (
            boom(m, None)
            if m.content.config_records.get(MARKER, {}).get("phase") == "train"
            else call_next(m, c)
        ),
        summary_mod,
    )
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2)
    models = []
    strategy.start(
        InProcessGrid(app, 4),
        numpy_app.initial_arrays(),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(arrays),
    )
    assert models[0] == models[1] == models[2]
    assert "the last one is kept" in strategy.history[0].notes[0]
    assert strategy.history[0].delivered == []


def test_no_summary_at_all_stops_with_the_first_reason():
    app = numpy_app.make_app(
        lambda m, c, call_next: (
            boom(m, None)
            if m.content.config_records.get(MARKER, {}).get("phase") == "summarize"
            else call_next(m, c)
        ),
        summary_mod,
    )
    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    with pytest.raises(NoSummariesError, match=r"of 4 clients asked, 0 answered .*boom"):
        strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=1)


def test_fewer_answers_than_selected_chooses_those_that_answered():
    def only_two(message, context, call_next):
        phase = message.content.config_records.get(MARKER, {}).get("phase")
        if phase == "summarize" and context.node_config["partition-id"] > 1:
            boom(message, None)
        return call_next(message, context)

    strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=3)
    grid = InProcessGrid(numpy_app.make_app(only_two, summary_mod), 5)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    record = strategy.history[0]
    assert record.chosen == record.delivered == ["0", "1"]
    (note,) = record.notes
    told = "of 5 clients asked, 2 answered and may be chosen, so 2 in place of 3 can be chosen"
    assert note == told


def fails_in(phase: str, rounds: set[int], clients: set[int] | None = None):
    """Return a mod that makes clients fail in a phase of some rounds."""

    def mod(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        mine = clients is None or context.node_config["partition-id"] in clients
        if marker.get("phase") == phase and marker["round"] in rounds and mine:
            boom(message, None)
        return call_next(message, context)

    return mod


def start(strategy, *mods, clients: int = 5, rounds: int = 4):
    grid = InProcessGrid(numpy_app.make_app(*mods, summary_mod), clients)
    return strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)


def test_round_without_summaries_chooses_the_longest_waiting_and_says_so():
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), num_selected=2)
    start(strategy, fails_in("summarize", {2}), rounds=3)
    first, second, third = strategy.history
    waiting = [client for client in second.asked if client not in first.chosen]
    assert second.chosen == second.delivered == waiting[:2]
    assert "The longest waiting are chosen" in second.notes[0]
    assert third.answered


def test_round_without_summaries_stops_where_that_is_wanted():
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), on_too_few_summaries="stop")
    with pytest.raises(NoSummariesError, match=r"in round 2, .*boom"):
        start(strategy, fails_in("summarize", {2}))


def test_quorum_of_summaries():
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), min_summaries=4, queue_length=0)
    start(strategy, fails_in("summarize", {2}, {0, 1}), rounds=2)
    assert strategy.history[0].mean_similarity is not None
    record = strategy.history[1]
    assert record.mean_similarity is None
    assert "answered and may be chosen, fewer than min_summaries = 4" in record.notes[0]
    assert not set(record.chosen) & {"0", "1"}  # they have just failed


def test_fewer_updates_than_the_quorum_leave_the_model_as_it_is():
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2, min_updates=2, seed=1)
    models = []
    grid = InProcessGrid(numpy_app.make_app(fails_in("train", {2}, {0, 1, 2}), summary_mod), 4)
    strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=2,
        evaluate_fn=lambda _, arrays: models.append(arrays),
    )
    record = strategy.history[1]
    assert record.delivered == []
    assert models[1] == models[2]
    assert "fewer than min_updates = 2" in " ".join(record.notes)


def test_rounds_that_are_empty_for_want_of_a_quorum_are_not_said_to_have_asked_nobody():
    def alone(message, context, call_next):
        if context.node_config["partition-id"] and "summarize" in str(message.content.get(MARKER)):
            raise RuntimeError("boom")
        return call_next(message, context)

    strategy = PNCS(FedAvg(fraction_evaluate=0.0), min_updates=2, max_empty_rounds=1)
    with pytest.raises(EmptyRoundsError, match="1 update is fewer than min_updates = 2"):
        start(strategy, alone)


def test_too_many_empty_rounds_in_a_row_stop_the_run_with_the_reason():
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), max_empty_rounds=2)
    with pytest.raises(EmptyRoundsError, match=r"in 2 rounds in a row\. In round 4: .*boom"):
        start(strategy, fails_in("train", {1, 3, 4}), rounds=9)
    assert len(strategy.history) == 4


ASKING = {
    "PNCS": lambda base, **o: PNCS(base, queue_length=0, **o),
    "PNCS on the gradient": lambda base, **o: PNCS(base, summary="gradient", **o),
    "PNCS, count": lambda base, **o: PNCS(base, sketch="count:8@int8", p=2, **o),
    "PNCS, power moments": lambda base, **o: PNCS(base, sketch="power-moments:4@float16", **o),
    "PNCS, coordinates": lambda base, **o: PNCS(base, sketch="coordinates:2", **o),
    "GradientMemory": GradientMemory,
    "DivFL": DivFL,
    "GradientNorm": GradientNorm,
}


@pytest.mark.parametrize("ride_along", [True, False])
@pytest.mark.parametrize("kind", ASKING.values(), ids=ASKING)
def test_summary_of_zeros_is_no_fault_and_leaves_a_note_under_every_rule(kind, ride_along):
    """As where tied weights have another name: nothing else would tell that a choice is blind."""
    base = FedAvg(fraction_evaluate=1.0 if ride_along else 0.0)
    strategy = kind(base, num_selected=2, ride_along=ride_along)
    zeros = with_summary(
        lambda s: s.update({n: Array(np.zeros_like(a.numpy())) for n, a in s.items()})
    )
    app = numpy_app.make_app(
        culprit_sends("summarize", zeros), SummaryMod(gradient=numpy_app.gradient)
    )
    result = strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=3)
    for record in strategy.history:
        assert not record.rejected
        assert len(record.delivered) == 2
        told = [note for note in record.notes if "all zeros" in note]
        assert len(told) == ("1" in record.asked)
        assert all("summary of 1 is" in note for note in told)
    assert "1" in strategy.history[0].asked
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_update_of_zeros_has_the_say_of_its_examples_and_no_more():
    """Nothing tells it from an honest one; it pulls the mean towards zero by its weight."""
    zeros = with_update(
        lambda c: c["arrays"].update(
            {n: Array(np.zeros_like(a.numpy())) for n, a in c["arrays"].items()}
        )
    )
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    result = run("train", zeros, strategy, rounds=1)
    assert strategy.history[0].delivered == ["0", "1", "2", "3"]
    others = {0: 1, 2: 3, 3: 4}  # number of examples; client 1 has 2
    for name, array in result.arrays.items():
        mean = sum(n * numpy_app.target(k, name) * 0.5 for k, n in others.items()) / 10
        np.testing.assert_allclose(array.numpy(), mean, atol=1e-6)


def test_round_in_which_all_weights_are_zero_keeps_the_model():
    def no_examples(message, context, call_next):
        reply = call_next(message, context)
        for metrics in reply.content.metric_records.values():
            metrics["num-examples"] = 0
        return reply

    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2)
    result = start(strategy, no_examples, rounds=1)
    record = strategy.history[0]
    assert record.delivered == []
    assert all("num-examples is 0" in record.rejected[client] for client in record.chosen)
    assert "the last one is kept" in " ".join(record.notes)
    assert result.arrays == numpy_app.initial_arrays()


@pytest.mark.parametrize("weight", [0, -3, 10**15])
def test_implausible_number_of_examples_is_not_aggregated(weight):
    change = with_update(lambda c: c.update(metrics=MetricRecord({"num-examples": weight})))
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    run("train", change, strategy, rounds=1)
    record = strategy.history[0]
    assert record.delivered == ["0", "2", "3"]
    assert "num-examples is" in record.rejected["1"]


def test_update_without_its_weight_is_not_aggregated():
    change = with_update(lambda c: c.update(metrics=MetricRecord({"loss": 1.0})))
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    run("train", change, strategy, rounds=1)
    assert "lack 'num-examples'" in strategy.history[0].rejected["1"]


class Dying(InProcessGrid):
    """Answers some round's messages as Ray does for a worker that has died."""

    phases = ("summarize", "train")
    error = "ActorDiedError"

    def _handle(self, message):
        reply = super()._handle(message)
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("round") == 2 and marker["phase"] in self.phases:
            reason = f"\x1b[36mray::ClientAppActor\x1b[39m\n{self.error}: The actor died"
            return Message(Error(0, reason), reply_to=message)
        return reply


@pytest.mark.parametrize("error", ["ActorDiedError", "ActorUnavailableError"])
def test_dead_worker_of_the_simulation_stops_the_run(error):
    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    dying = Dying(numpy_app.make_app(summary_mod), 4)
    dying.error = error
    grid = PollingGrid(dying, simulated=True)
    with pytest.raises(DeadWorkerError, match=error):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)


def test_dead_worker_is_also_seen_in_the_loop_of_a_wrapper():
    class Training(Dying):
        phases = ("train",)

    class Unpolled(PollingGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return self._grid.send_and_receive(messages, timeout=timeout)

    class Wrapper(Strategy):
        inner = PNCS(FedAvg(fraction_evaluate=0.0))
        summary = inner.summary
        configure_train, aggregate_train = inner.configure_train, inner.aggregate_train
        configure_evaluate = inner.configure_evaluate
        aggregate_evaluate = inner.aggregate_evaluate

    outer = Wrapper()
    grid = Unpolled(Training(numpy_app.make_app(summary_mod), 4), simulated=True)
    with pytest.raises(DeadWorkerError, match="ActorDiedError"):
        outer.start(grid, numpy_app.initial_arrays(), num_rounds=3)


@pytest.mark.parametrize("wrap", [lambda grid: grid, PollingGrid], ids=["own grid", "SuperLink"])
def test_where_nodes_are_no_workers_an_error_costs_its_node_and_no_more(wrap):
    """What an error says comes from the node: nobody may stop the run of others by it."""
    strategy = PNCS(FedAvg(fraction_evaluate=0.0))
    grid = wrap(Dying(numpy_app.make_app(summary_mod), 4))
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert [len(record.delivered) for record in strategy.history] == [2, 0, 2]
    assert "ActorDiedError" in strategy.history[1].rejected["0"]


def test_a_client_that_claims_a_loss_it_cannot_have_is_not_asked_again():
    """It was sent the whole model, and a message that was sent once cannot be sent again."""
    asked = []

    def lost(message, reply):
        asked.append(message)
        return Message(RecordDict({MARKER: ConfigRecord({"lost": True})}), reply_to=message)

    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=4)
    run("train", lost, strategy, rounds=1)
    assert len(asked) == 1
    assert strategy.history[0].rejected == {"1": "training: 0 array records in place of one"}


def test_clipping_bounds_each_update_and_the_record_says_so():
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2, clip_norm=0.1)
    result = start(strategy, rounds=1)
    norm = np.sqrt(sum(float((a.numpy() ** 2).sum()) for a in result.arrays.values()))
    assert 0.02 < norm <= 0.1 * (1 + 1e-6)
    assert len([note for note in strategy.history[0].notes if "clipped" in note]) == 2


@pytest.mark.parametrize(
    ("strategy", "phase", "error"),
    [
        (PNCS, "summarize", NoSummariesError),
        (lambda *a, **o: RoundRobin(*a, max_empty_rounds=1, **o), "train", EmptyRoundsError),
    ],
    ids=["pre-round", "training"],
)
def test_an_error_that_ends_a_run_gives_the_reasons_of_its_own_phase(strategy, phase, error):
    """Not those of clients that could not introduce themselves, which come first in the record."""

    def fails(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        stranger = context.node_config["partition-id"] > 3
        if marker.get("phase") == ("introduce" if stranger else phase):
            raise RuntimeError("a stranger" if stranger else "boom")
        return call_next(message, context)

    grid = InProcessGrid(numpy_app.make_app(fails, summary_mod), 8)
    strategy = strategy(FedAvg(fraction_evaluate=0.0), num_selected=2, wait_timeout=5)
    with pytest.raises(error, match="boom") as told:
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert "a stranger" not in str(told.value)
    assert len([r for r in strategy.history[0].rejected.values() if "a stranger" in r]) == 4


@pytest.mark.parametrize(
    "metrics",
    [{}, {"num-examples": -5}, {"num-examples": [1, 2]}, {"num-examples": float("nan"), "x": 1.0}],
    ids=str,
)
def test_an_unsound_reply_has_no_say_in_what_a_reply_looks_like(metrics):
    """Of two replies, the sound one is aggregated, though the other's client comes first."""
    change = with_update(lambda c: c.update(metrics=MetricRecord(metrics)))
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), num_selected=2)
    run("train", change, strategy, rounds=4)
    for record in strategy.history:
        assert record.delivered == [client for client in record.chosen if client != "1"]
