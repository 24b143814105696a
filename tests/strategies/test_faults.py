"""One bad client costs its own place in the round, with a reason in the record, and no more."""

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER, SUMMARY
from pncs_flower.simulations.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, NoSummariesError, RoundRobin

CULPRIT = 1


def culprit_sends(phase, answer):
    """Return a mod that lets one client answer a phase in its own way."""

    def mod(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("phase") == phase and context.node_config["partition-id"] == CULPRIT:
            return answer(message, call_next(message, context))
        return call_next(message, context)

    return mod


def run(phase, answer, strategy, rounds: int = 2):
    app = numpy_app.make_app(culprit_sends(phase, answer), summary_mod)
    return strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=rounds)


def boom(message, reply):
    raise RuntimeError("\x1b[31mboom\x1b[0m")


def with_summary(change):
    def answer(message, reply):
        summary = ArrayRecord(dict(reply.content[SUMMARY].items()))
        change(summary)
        return Message(RecordDict({SUMMARY: summary}), reply_to=message)

    return answer


def filled(value):
    return with_summary(lambda s: s.update(head=Array(np.full(8, value, np.float32))))


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
    "far too long": (
        with_summary(lambda s: s.update(head=Array(np.zeros(1_000_000, np.float32)))),
        "head",
    ),
    "forged header": (with_summary(forged_header), "head"),
    "pickle": (with_summary(pickled), "no NumPy array"),
    "no summary": (lambda m, r: Message(RecordDict(), reply_to=m), "holds no summary"),
}


@pytest.mark.parametrize(("answer", "reason"), SUMMARY_FAULTS.values(), ids=SUMMARY_FAULTS)
def test_bad_summary_is_left_out_with_a_reason(answer, reason):
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), queue_length=0)
    result = run("summarize", answer, strategy)
    for record in strategy.history:
        assert record.asked == ["0", "1", "2", "3"]
        assert sorted(record.answered) == ["0", "2", "3"]
        assert record.rejected["1"].startswith("pre-round: ")
        assert reason in record.rejected["1"]
        assert "\x1b" not in record.rejected["1"]
        assert len(record.delivered) == 2
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def with_update(change):
    def answer(message, reply):
        content = RecordDict({name: record.copy() for name, record in reply.content.items()})
        change(content)
        return Message(content, reply_to=message)

    return answer


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
    "missing array": (with_update(lambda c: c["arrays"].pop("head.bias")), "in place of"),
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
    with pytest.raises(NoSummariesError, match=r"none of the 4 clients .*boom"):
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
    assert "2 clients answered" in record.notes[0]
