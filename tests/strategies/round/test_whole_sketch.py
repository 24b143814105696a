"""A sketch of the whole update, alone or beside the summary that a rule compares."""

import json
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from apps import kinds_app, numpy_app
from culprits import CULPRIT, culprit_sends
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import SUMMARY, WHOLE, SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.strategies import Choice, SelectionRule, SelectionStrategy
from pncs_flower.strategies.options import SelectionOptions
from pncs_flower.strategies.round.pre_round import PreRound

SEED, ROUND = 7, 3
# By hand: neither buffers of normalisation, nor what is not floating point, nor the empty array.
COVERED = ("conv.weight", "norm.weight", "temperature", "half.weight", "double.weight")
COVERED += ("swapped.weight",)


def held(request: SummaryRequest, *mods, model=kinds_app, clients: int = 3, **options) -> PreRound:
    arrays = model.initial_arrays()
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    pre_round = PreRound.for_model(ROUND, request, arrays, SelectionOptions(seed=SEED, **options))
    grid = InProcessGrid(model.make_app(*mods, summary_mod), clients)
    template = Message(content, 0, MessageType.TRAIN)
    pre_round.hold(grid, template, {str(k): 1000 + k for k in range(clients)})
    return pre_round


def update(client: int, names=COVERED) -> np.ndarray:
    """What the app of all kinds of arrays makes of its model, in the model's order."""
    pieces = []
    for name in names:
        before = kinds_app.ARRAYS[name]
        after = before + before.dtype.type(0.5) * (before.dtype.type(client + 1) - before)
        pieces.append((before.astype("f8") - after.astype("f8")).ravel())
    return np.concatenate(pieces)


@pytest.mark.parametrize(
    "request_",
    [
        SummaryRequest(sketch="layers", whole=True),
        SummaryRequest(sketch="count:2", besides="layers"),
        SummaryRequest(sketch="norm", layers=("half",), besides="layers"),
        SummaryRequest(sketch="count:3", layers=("half",), whole=True, besides="layers"),
    ],
    ids=str,
)
def test_the_whole_update_has_all_floating_point_arrays_in_the_models_order(request_):
    pre_round = held(request_)
    assert not pre_round.rejected
    for client in range(3):
        whole = pre_round.sketches[str(client)]
        assert whole.dtype == np.float32
        np.testing.assert_array_equal(whole, update(client).astype(np.float32))


def test_layers_chosen_as_one_vector_are_those_alone_whatever_their_order():
    layers = ("swapped", "conv")
    pre_round = held(SummaryRequest(sketch="layers", layers=layers, whole=True))
    for client in range(3):
        expected = update(client, ("conv.weight", "swapped.weight"))
        assert list(pre_round.summaries[str(client)]) == ["*"]
        np.testing.assert_array_equal(pre_round.summaries[str(client)]["*"], expected)
        np.testing.assert_array_equal(pre_round.sketches[str(client)], expected)


@pytest.mark.parametrize("sketch", ["count:4", "count:1000", "count:4@int8", "coordinates:5"])
def test_the_second_sketch_is_of_its_own_kind_and_leaves_the_summary_as_it_was(sketch):
    request = SummaryRequest(sketch="count:3@float16")
    alone, both = held(request), held(replace(request, besides=sketch))
    assert alone.sketches == {}
    for client, summary in alone.summaries.items():
        for layer, values in summary.items():
            np.testing.assert_array_equal(both.summaries[client][layer], values)
        assert both.summaries[client].keys() == summary.keys()
        kind, flat = parse_sketch(sketch), update(int(client))
        expected = kind.of(flat, seed=SEED, round=ROUND, layer="*")
        np.testing.assert_allclose(both.sketches[client], expected, rtol=1e-6)
        assert not both.sketches[client].flags.writeable


def test_a_part_of_an_update_is_fitted_to_each_sketch():
    pre_round = held(SummaryRequest(besides="coordinates:10%"), model=numpy_app)
    assert pre_round.request.besides == "coordinates:100"  # the least share, of 23 values
    assert [len(sketch) for sketch in pre_round.sketches.values()] == [23] * 3


def test_bytes_and_their_limit_count_both():
    request = SummaryRequest(sketch="count:2")
    both = replace(request, besides="count:5")
    more = held(both, model=numpy_app).bytes_up - held(request, model=numpy_app).bytes_up
    header = len(Array(np.zeros(5, np.float32)).data) - 5 * 4
    assert more == 3 * (5 * 4 + header + len("*"))
    held(both, model=numpy_app, max_summary_bytes=2 * 8 + 20)
    with pytest.raises(ValueError, match=r"'count:5' of the whole update takes 36 bytes, but"):
        held(both, model=numpy_app, max_summary_bytes=2 * 8 + 19)


def test_each_array_of_an_update_is_read_once_for_both_sketches(monkeypatch):
    from pncs_flower.clients import summary

    calls = []

    def counted(before, after):
        calls.append(before.shape)
        return before - after

    monkeypatch.setattr(summary, "local_change", counted)
    held(SummaryRequest(besides="count:5"), model=numpy_app, clients=1)
    assert calls == list(numpy_app.LAYERS.values())


# --- hostile and outdated clients -----------------------------------------------------------------


def second(change):
    """Let one client bend the second record of its answer."""

    def answer(message, reply):
        record = ArrayRecord(dict(reply.content[WHOLE].items()))
        change(record)
        content = RecordDict({SUMMARY: reply.content[SUMMARY], WHOLE: record})
        return Message(content, reply_to=message)

    return culprit_sends("summarize", answer)


def put(values: np.ndarray):
    return second(lambda record: record.update({"*": Array(values)}))


def forged(dtype: str, data: bytes):
    array = Array(dtype, (8,), "numpy.ndarray", data)
    return second(lambda record: record.update({"*": array}))


def without_second(message, reply):
    return Message(RecordDict({SUMMARY: reply.content[SUMMARY]}), reply_to=message)


def as_numbers(message, reply):
    content = RecordDict({SUMMARY: reply.content[SUMMARY], WHOLE: ConfigRecord({"*": [1.0] * 8})})
    return Message(content, reply_to=message)


HOSTILE = {
    "shape": (put(np.zeros(7, np.float32)), r"layer '\*': sketch of shape \(7,\)"),
    "dimensions": (put(np.zeros((8, 1), np.float32)), r"sketch of shape \(8, 1\)"),
    "scalar": (put(np.array(1, np.float32)), r"sketch of shape \(\)"),
    "dtype": (put(np.zeros(8, np.float16)), "dtype float16"),
    "not a number": (put(np.full(8, np.nan, np.float32)), "sketch with nan at position 0"),
    "infinite": (put(np.array([0] * 7 + [np.inf], np.float32)), "with inf at position 7"),
    "too many bytes": (put(np.zeros(1000, np.float32)), "bytes, but at most"),
    "object": (forged("object", np.lib.format.magic(1, 0) + b"v\0{'descr'"), "no NumPy array"),
    "no bytes": (forged("float32", b""), "no NumPy array"),
    "missing name": (second(lambda record: record.pop("*")), r"layers \(none\), but \*"),
    "extra name": (
        second(lambda record: record.update(head=record["*"])),
        r"summary of the layers \*, head, but \* were asked for .*same release",
    ),
    "no record": (culprit_sends("summarize", without_second), "whole update: .*same release"),
    "another record": (culprit_sends("summarize", as_numbers), "whole update: .*same release"),
}


@pytest.mark.parametrize(("mod", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_an_answer_whose_second_record_is_not_as_asked_for_is_rejected_as_a_whole(mod, reason):
    request = SummaryRequest(sketch="count:2", besides="count:8")
    pre_round = held(request, mod, model=numpy_app)
    assert list(pre_round.rejected) == [str(CULPRIT)]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(pre_round.rejected[str(CULPRIT)])
    assert list(pre_round.summaries) == list(pre_round.sketches) == ["0", "2"]


def test_an_object_array_is_not_unpickled():
    with np.errstate(all="ignore"):
        data = Array(np.zeros(8, np.float32)).data.replace(b"'<f4'", b"'|O' ", 1)
    request = SummaryRequest(sketch="count:2", besides="count:8")
    pre_round = held(request, forged("object", data), model=numpy_app)
    assert "dtype object is not that of a number" in pre_round.rejected[str(CULPRIT)]


def of_an_older_release(message, context, call_next):
    """Leave out what a client of an older release does not read."""
    known = {"whole", "besides"}
    marker = {k: v for k, v in message.content["pncs"].items() if k not in known}
    message.content["pncs"] = ConfigRecord(marker)
    return call_next(message, context)


@pytest.mark.parametrize("more", [{"whole": True}, {"besides": "count:8"}])
def test_clients_of_an_older_release_are_told_apart(more):
    pre_round = held(SummaryRequest(**more), of_an_older_release, model=numpy_app)
    assert list(pre_round.rejected) == ["0", "1", "2"]
    assert all("need the same release" in reason for reason in pre_round.rejected.values())


def test_what_was_not_asked_for_is_not_read():
    def more(message, reply):
        junk = ArrayRecord({"*": Array("object", (8,), "numpy.ndarray", b"junk")})
        return Message(RecordDict({**reply.content, WHOLE: junk}), reply_to=message)

    mod = culprit_sends("summarize", more)
    pre_round = held(SummaryRequest(sketch="count:2"), mod, model=numpy_app)
    assert not pre_round.rejected
    assert pre_round.sketches == {}


# --- whole runs -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class AskingRule(SelectionRule):
    """Choose those with the largest first number of the first layer."""

    sketch: str = "count:2"
    besides: str = "count:8"
    layers: tuple[str, ...] = ("head",)
    num_selected: int = 2

    @property
    def request(self):
        return SummaryRequest(sketch=self.sketch, layers=self.layers, besides=self.besides)

    def select(self, state, now, summaries):
        def first(client):
            return float(next(iter(summaries[client].values()))[0])

        return Choice(tuple(sorted(now.available, key=first)[: now.num_selected]))


def run(*mods, rounds: int = 5, model=numpy_app, rule=None, queue_length: int = 2, **options):
    options |= {"seed": SEED, "queue_length": queue_length}
    strategy = SelectionStrategy(FedAvg(), rule or AskingRule(), **options)
    grid = InProcessGrid(model.make_app(*mods, summary_mod), 6)
    result = strategy.start(grid, model.initial_arrays(), num_rounds=rounds)
    return strategy, result


def told(strategy) -> list[str]:
    """What the rounds came to, without what was asked and when, and what it cost."""
    left_out = ("rule", "seconds", "pre_round", "bytes_up", "bytes_down")
    rows = [{k: v for k, v in vars(r).items() if k not in left_out} for r in strategy.history]
    return [json.dumps(row, sort_keys=True, default=str) for row in rows]


def test_a_run_with_both_sketches_rides_along_and_chooses_as_without():
    alone, plain = run(rule=AskingRule(besides=""))
    ahead, riding = run()
    own, apart = run(ride_along=False)
    assert told(alone) == told(ahead) == told(own)
    assert plain.arrays == riding.arrays == apart.arrays
    assert [r.pre_round for r in ahead.history] == ["own"] + ["ahead"] * 4


def test_a_resumed_run_is_that_which_was_not_stopped(tmp_path):
    straight, result = run()
    run(rounds=2, checkpoint=tmp_path)
    resumed, again = run(checkpoint=tmp_path)
    assert told(resumed) == told(straight)
    assert again.arrays == result.arrays


@pytest.mark.parametrize("sketch", ["count:2", "layers", "count:8@int8"])
@pytest.mark.parametrize("besides", ["count:8", "layers", "count:8@float16"])
@pytest.mark.parametrize("model", [numpy_app, kinds_app])
def test_honest_clients_pass_the_check_of_both_sketches(sketch, besides, model):
    rule = AskingRule(sketch, besides, layers=("half",) if model is kinds_app else ("head",))
    strategy, _ = run(rule=rule, model=model, verify_sketches=True)
    assert not any(record.rejected for record in strategy.history)
    assert all(len(record.delivered) == 2 for record in strategy.history)


@pytest.mark.parametrize(
    "change", [lambda v: -v, lambda v: v * 1.1, np.zeros_like], ids=["negated", "longer", "zeros"]
)
def test_a_liar_in_the_second_sketch_alone_is_left_out(change):
    lie = second(lambda r: r.update({"*": Array(np.float32(change(r["*"].numpy())))}))
    strategy, _ = run(lie, verify_sketches=True, queue_length=4)
    first = next(r.round for r in strategy.history if str(CULPRIT) in r.chosen)
    caught = {r.round: r.rejected for r in strategy.history if r.rejected}
    assert list(caught) == [first]
    assert "not that of its update" in caught[first][str(CULPRIT)]
    unchecked, _ = run(lie)
    assert not any(record.rejected for record in unchecked.history)


# --- the request ----------------------------------------------------------------------------------


def test_a_request_without_either_is_that_of_an_older_release():
    assert SummaryRequest().to_config() == {
        "kind": "update",
        "sketch": "layers",
        "max-examples": 0,
    }
    old = {"kind": "gradient", "sketch": "count:2", "max-examples": 0, "layers": ["head"]}
    assert SummaryRequest.from_config(old) == SummaryRequest("gradient", "count:2", ("head",))


@pytest.mark.parametrize(
    "request_",
    [SummaryRequest(whole=True), SummaryRequest(layers=("a",), whole=True, besides="count:9")],
)
def test_a_request_is_read_as_it_was_written(request_):
    assert SummaryRequest.from_config(ConfigRecord(request_.to_config())) == request_


@pytest.mark.parametrize("kind", ["gradient", "loss"])
def test_only_who_trains_can_send_its_update_besides(kind):
    with pytest.raises(ValueError, match=f"besides a summary of kind '{kind}'"):
        SummaryRequest(kind, besides="count:8")


def test_a_loss_is_no_vector():
    with pytest.raises(ValueError, match="a loss has no layers"):
        SummaryRequest("loss", whole=True)


def test_a_gradient_as_one_vector_is_that_of_all_layers():
    from pncs_flower.clients import SummaryMod

    mod = SummaryMod(gradient=numpy_app.gradient)
    arrays = numpy_app.initial_arrays()
    request = SummaryRequest("gradient", whole=True)
    pre_round = PreRound.for_model(ROUND, request, arrays, SelectionOptions(seed=SEED))
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    template = Message(content, 0, MessageType.TRAIN)
    pre_round.hold(InProcessGrid(numpy_app.make_app(mod), 1), template, {"0": 1000})
    expected = np.concatenate([-numpy_app.target(0, name).ravel() for name in numpy_app.LAYERS])
    np.testing.assert_allclose(pre_round.sketches["0"], expected, rtol=1e-6)


@pytest.mark.parametrize("place", ["sketch", "besides"])
def test_an_unknown_sketch_is_told_before_anybody_is_asked(place):
    ask = partial(SummaryRequest, **{place: "counts:8"})
    with pytest.raises(ValueError, match="unknown sketch 'counts:8'"):
        held(ask(), model=numpy_app)
