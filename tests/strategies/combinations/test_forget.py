"""A client that has left for good: nothing is left of it, and it may come again as a new one."""

import json
from itertools import chain

import numpy as np
import pytest
from apps import numpy_app
from coming_and_going import Federation, Grid
from culprits import CULPRIT, culprit_sends
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    DivFL,
    FedCor,
    GradientMemory,
    Oort,
    PowerOfChoice,
    ProportionalSelection,
    RoundRobin,
    SketchedMean,
)
from pncs_flower.strategies.resume.snapshot import Encoder

RULES = {
    "pncs": (PNCS, {"combine": "sketched-mean"}),
    "sketched mean": (SketchedMean, {"combine": "sketched-mean:dtype=float16"}),
    "some asked": (SketchedMean, {"candidates": 5}),
    "memory": (GradientMemory, {}),
    "fedvarp": (RoundRobin, {"combine": "fedvarp"}),
    "mifa": (RoundRobin, {"combine": "mifa:4"}),
    "drawn": (ProportionalSelection, {}),
    "divfl": (DivFL, {"stale": True, "combine": "surrogates:0.5"}),
    "fedcor": (FedCor, {"schedule": "short"}),
    "oort": (Oort, {}),
    "active-fl": (ActiveFL, {}),
    "rpow-d": (PowerOfChoice, {"variant": "rpow-d"}),
}


def train(message, context):
    client = int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    if client == 3 and number == 3:
        raise OSError("no data")
    reply = numpy_app.train(message, context)
    # Numbers that are in no other client's.
    reply.content["metrics"]["train-loss"] = 1 / (client + 1.7) + number
    reply.content["metrics"]["num-examples"] = 1000 + 7 * client
    return reply


def texts(value, place="") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [
            *((str(key), place) for key in value),
            *chain.from_iterable(texts(v, f"{place}/{k}") for k, v in value.items()),
        ]
    if isinstance(value, list | tuple):
        return list(chain.from_iterable(texts(v, f"{place}[]") for v in value))
    return [(value, place)] if isinstance(value, str) else []


def numbers(value) -> list[float]:
    """All numbers in a state."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list | tuple):
        return [n for v in value for n in numbers(v)]
    if isinstance(value, np.ndarray):
        return [] if value.size > 1 else value.ravel().tolist()
    return [value] if isinstance(value, float | int) and not isinstance(value, bool) else []


def run(kind, options, forget_after=None, rounds=6, away=lambda number: (), first=None, **more):
    app = numpy_app.make_app(
        SummaryMod(num_examples=lambda c: 2000 + 7 * int(c.node_config["partition-id"])),
        train=train,
    )
    grid = Grid(app, 6, away)
    strategy = kind(
        FedAvg(fraction_evaluate=0.0),
        num_selected=3,
        queue_length=3,
        min_clients=5,
        **options,
        **more,
    )
    if first:
        strategy.forget(first)
    states = []

    def after(number, arrays):
        grid.round = number + 1
        if number:
            states.append(strategy.state())
        if number == forget_after:
            strategy.forget("3")
            states.append(strategy.state())

    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds, evaluate_fn=after)
    return strategy, states


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("away", [True, False])
def test_nothing_of_a_client_is_left(name, away):
    kind, options = RULES[name]
    gone = lambda number: (3,) if away and number > 5 else ()  # noqa: E731
    strategy, states = run(kind, options, forget_after=5, away=gone)
    before, after, *later = states[4:]
    assert any(text == "3" for text, _ in texts(before)), "nothing was known: the test says nothing"
    for state in [after, *(later if away else [])]:
        assert [place for text, place in texts(state) if text.partition("@")[0] == "3"] == []
        own = {1000 + 7 * 3, 2000 + 7 * 3, *(1 / 4.7 + number for number in range(1, 7))}
        assert own.isdisjoint(numbers(state))
        encoder = Encoder()
        encoded = json.dumps(encoder.encode(state, "the state"))
        assert '"3"' not in encoded
    if not away:
        assert "3" in strategy.history[5].clients


@pytest.mark.parametrize("name", RULES)
def test_a_forgotten_client_may_come_again_as_a_new_one(name):
    kind, options = RULES[name]
    gone = lambda number: (3,) if number in (5, 6) else ()  # noqa: E731
    strategy, states = run(kind, options, forget_after=5, rounds=9, away=gone)
    assert all("3" not in r.clients for r in strategy.history[4:6])
    assert all("3" in r.clients for r in strategy.history[6:])
    assert any(text == "3" for text, _ in texts(states[-1]))
    assert all(record.delivered for record in strategy.history)


def test_arrays_and_sketches_go_with_it():
    federation = Federation()
    strategy = SketchedMean(FedAvg(fraction_evaluate=0.0), num_selected=3)
    federation.run(strategy, 5)
    fit = strategy._combiner.combination
    assert {entry.client for entry in fit._updates.entries} == set("012345")
    strategy.forget("1", "4")
    assert {entry.client for entry in fit._updates.entries} == set("0235")
    assert set(fit._last) == set("0235")


def test_the_failures_of_one_go_with_it():
    federation = Federation(says=True, fails=lambda client, number: client == 3)
    strategy = SketchedMean(FedAvg(fraction_evaluate=0.0), num_selected=5)
    federation.run(strategy, 3)
    assert strategy.state()["doubted"] == ["3"]
    assert "3" in strategy.state()["backoff"]["failed"]
    strategy.forget("3")
    assert not [place for text, place in texts(strategy.state()) if text == "3"]


def test_one_that_was_never_there_is_no_matter_and_a_number_is_no_key():
    strategy, _ = run(SketchedMean, {}, rounds=2)
    before = repr(strategy.state())
    strategy.forget("17", "")
    strategy.forget()
    assert repr(strategy.state()) == before
    with pytest.raises(TypeError, match="client 3 is 3, but must be text"):
        strategy.forget("0", 3)
    assert repr(strategy.state()) == before


def test_a_forgotten_client_is_in_no_checkpoint_two_rounds_later(tmp_path):
    strategy, _ = run(
        SketchedMean,
        {},
        forget_after=4,
        away=lambda n: (3,) if n > 4 else (),
        rounds=6,
        checkpoint=tmp_path,
    )
    resumed, states = run(SketchedMean, {}, away=lambda n: (3,), rounds=7, checkpoint=tmp_path)
    assert [r.chosen for r in resumed.history[:6]] == [r.chosen for r in strategy.history]
    assert not [p for text, p in texts(states[-1]) if text == "3"]


@pytest.mark.parametrize("name", RULES)
def test_what_is_forgotten_before_a_checkpoint_is_taken_up_stays_so(name, tmp_path):
    kind, options = RULES[name]
    run(kind, options, rounds=4, checkpoint=tmp_path)
    again = {"away": lambda number: (3,), "first": "3", "checkpoint": tmp_path}
    strategy, states = run(kind, options, rounds=6, **again)
    assert [record.round for record in strategy.history] == [1, 2, 3, 4, 5, 6]
    assert not [place for text, place in texts(states[-1]) if text == "3"]
    _, kept = run(kind, options, rounds=8, **{**again, "first": None})
    assert not [place for text, place in texts(kept[-1]) if text == "3"]


def test_one_that_lied_stays_out():
    def answer(message, reply):
        if "pncs-summary" in reply.content.array_records:
            values = -reply.content["pncs-summary"]["*"].numpy()
            reply.content["pncs-summary"] = ArrayRecord({"*": Array(values)})
        return reply

    app = numpy_app.make_app(culprit_sends("summarize", answer), summary_mod)
    strategy = SketchedMean(FedAvg(fraction_evaluate=0.0), num_selected=4)

    def after(number, arrays):
        if number == 1:
            strategy.forget(str(CULPRIT))

    strategy.start(
        InProcessGrid(app, 5), numpy_app.initial_arrays(), num_rounds=3, evaluate_fn=after
    )
    assert str(CULPRIT) in strategy.history[0].rejected
    assert all(str(CULPRIT) not in record.clients for record in strategy.history[1:])
