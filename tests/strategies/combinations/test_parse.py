"""What a combination may be given as."""

import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import RoundRobin, SelectionError, SketchedMean
from pncs_flower.strategies.combination import Change, Combination
from pncs_flower.strategies.combinations import (
    MIFA,
    Mean,
    SketchedFit,
    Surrogates,
    parse_combination,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean", Mean()),
        ("surrogates", Surrogates(1.0)),
        ("surrogates:0.8", Surrogates(0.8)),
        ("surrogates: 0.8", Surrogates(0.8)),
        ("surrogates:beta=0.8", Surrogates(0.8)),
        ("surrogates:1", Surrogates(1)),
        ("surrogates:1e-1", Surrogates(0.1)),
        (
            "surrogates:0.5, store = 2GB ,dtype=float16",
            Surrogates(0.5, store="2GB", dtype="float16"),
        ),
        ("fedvarp", Surrogates(1.0)),
        ("fedstale:0.5", Surrogates(0.5)),
        ("fedvarp:store=50", Surrogates(1.0, store=50)),
        ("fedvarp:1", Surrogates(1)),
        ("mifa", MIFA()),
        ("mifa:50", MIFA(store=50)),
        ("mifa:store=None", MIFA()),
        ("sketched-mean", SketchedFit()),
        ("sketched-mean:50", SketchedFit(store=50)),
        ("sketched-mean:store=0", SketchedFit(store=0)),
        ("sketched-mean:store=500MB", SketchedFit(store="500MB")),
        ("sketched-mean:dtype=float16,store=5", SketchedFit(store=5, dtype="float16")),
        ("sketched-mean:bound=inf", SketchedFit(bound=np.inf)),
        ("sketched-mean:sketch=count:512@float16", SketchedFit(sketch="count:512@float16")),
    ],
)
def test_a_text_is_what_it_says(text, expected):
    found = parse_combination(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no ''"),
        (" ", "there is no ' '"),
        (" mean", "did you mean 'mean'?"),
        ("Mean", "did you mean 'mean'?"),
        ("sketched_mean", "did you mean 'sketched-mean'?"),
        ("fedavg", "there is no 'fedavg'"),
        (":0.5", "there is no ''"),
        ("mean:", "'mean' has no parameter '': it has none"),
        ("mean:1", "'mean' has no parameter '1': it has none"),
        ("surrogates:", "but beta has no value: use beta=VALUE"),
        ("FedVARP", "did you mean 'fedvarp'?"),
        ("sketched-mean:store", "but store has no value: use store=VALUE"),
        ("sketched-mean:store=None", "store is None, but each round adds updates"),
        ("sketched-mean:bound=None", "bound is None, but must be a number"),
        ("surrogates:2", "beta is 2, but must be a share from 0 to 1"),
        ("surrogates:-0.1", "beta is -0.1, but must be a share from 0 to 1"),
        ("surrogates:nan", "beta is nan, but must be a share from 0 to 1"),
        ("surrogates:inf", "beta is inf, but must be a share from 0 to 1"),
        ("surrogates:True", "beta is 'True', but must be a number"),
        ("surrogates:half", "beta is 'half', but must be a number"),
        ("surrogates:0.5,0.6", "'surrogates' has no parameter '0.6'"),
        ("surrogates:0.5,beta=0.6", "beta is given twice: leave one out"),
        ("surrogates:0.5,", "'surrogates' has no parameter ''"),
        ("surrogates:=0.5", "'surrogates' has no parameter '=0.5'"),
        ("surrogates:beta=", "but beta has no value: use beta=VALUE"),
        ("surrogates:_updates=3", "'surrogates' has no parameter '_updates=3'"),
        ("fedvarp:0.5", "but FedVARP's beta is 1: for another, from 0 to 1, use 'surrogates:BETA'"),
        (
            "fedvarp:beta=0,store=5",
            "but FedVARP's beta is 1: for another, from 0 to 1, use 'surrogates:BETA'",
        ),
        ("fedvarp:half", "but FedVARP's beta is 1"),
        ("mifa:0.5", "is 0.5, but must be a whole number"),
        ("sketched-mean:store=-1", "is -1, but must be at least 0"),
        ("sketched-mean:store=1e3", "is 1000.0, but must be a whole number"),
        ("sketched-mean:store=much", "is 'much', but must be a number of updates, such as 50"),
        ("sketched-mean:store=5,store=6", "store is given twice: leave one out"),
        (
            "sketched-mean:size=5",
            "has no parameter 'size=5': there are store, dtype, bound, sketch",
        ),
        ("sketched-mean:bound=0", "bound is 0, but must be above 0"),
        ("sketched-mean:bound=nan", "bound is nan, but must be above 0"),
        ("sketched-mean:dtype=float64", "dtype is 'float64', but must be 'float32' or 'float16'"),
        ("sketched-mean:sketch=counts:5", "unknown sketch 'counts:5'"),
        ("sketched-mean:sketch=5", "sketch"),
    ],
)
def test_any_other_text_is_refused_with_the_value_and_what_to_do(text, reason):
    with pytest.raises(ValueError, match=rf"^combine is {text!r}.*{re.escape(reason)}"):
        parse_combination(text)
    with pytest.raises(ValueError, match=re.escape(reason)):
        RoundRobin(FedAvg(), combine=text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "combine is None, but must be a text or a combination: there are 'mean', "),
        (True, "combine is True, but must be a text or a combination"),
        (0.8, "combine is 0.8, but must be a text or a combination"),
        (("mean",), "must be a text or a combination"),
        (b"mean", "must be a text or a combination"),
        (SketchedFit, "combine is the class SketchedFit: make one of it"),
        (object, "combine is <class 'object'>, but must be a text or a combination"),
    ],
)
def test_what_is_neither_a_text_nor_a_combination_is_refused(given, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        RoundRobin(FedAvg(), combine=given)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"beta": True}, TypeError, "beta is True, but must be a number"),
        ({"beta": "0.5"}, TypeError, "beta is '0.5', but must be a number"),
        ({"store": True}, TypeError, "is True, but must be a whole number"),
        ({"store": -1}, ValueError, "is -1, but must be at least 0"),
        ({"dtype": np.float16}, ValueError, "must be 'float32' or 'float16'"),
    ],
)
def test_arguments_are_checked_when_it_is_made(arguments, error, text):
    with pytest.raises(error, match=text):
        Surrogates(**arguments)


@pytest.mark.parametrize("sketch", ["coordinates:5", "power-moments:5", "norm"])
def test_a_sketch_that_cannot_be_added_up_is_refused(sketch):
    with pytest.raises(ValueError, match=r"needs a linear sketch .* 'count:SIZE' or 'layers'"):
        SketchedMean(FedAvg(), sketch=sketch)


def start(strategy, rounds=3):
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 5)
    return strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds).arrays


@pytest.mark.parametrize("combine", [Surrogates(0.5), MIFA(), SketchedFit(store=4)])
def test_an_object_may_be_given_to_several_strategies(combine):
    kind = SketchedMean if isinstance(combine, SketchedFit) else RoundRobin
    one, other = (kind(FedAvg(), combine=combine) for _ in range(2))
    assert start(one) == start(other)
    assert start(kind(FedAvg(), combine=combine)) == start(kind(FedAvg(), combine=combine))
    assert combine._updates.entries == []
    assert one.history[0].combined["stored"] == other.history[0].combined["stored"] == 0


# --- a combination of a user's own ----------------------------------------------------------------


@dataclass
class Heavy(Combination):
    """Polyak's heavy ball over the mean of those that delivered.

    Parameters
    ----------
    momentum : float (default: 0.5)
        How much of the last change is in the next.
    """

    momentum: float = 0.5
    _last: np.ndarray | None = field(default=None, init=False, repr=False, compare=False)

    def combine(self, delivery):
        mean = np.mean([*delivery.updates.values()], axis=0)
        last = 0 if self._last is None else self._last
        return Change(mean + self.momentum * last, {"momentum": self.momentum})

    def keep(self, delivery, change):
        self._last = change.values
        return [f"kept {len(delivery.updates)}"]

    def state(self):
        return {"last": np.zeros(0) if self._last is None else self._last}

    def restore(self, state):
        self._last = state["last"] if len(state["last"]) else None


def test_a_combination_of_ones_own_works_and_is_resumed(tmp_path):
    strategy = RoundRobin(FedAvg(fraction_evaluate=0.0), combine=Heavy(0.25))
    arrays = start(strategy, 5)
    last, model = 0, {n: np.zeros(s) for n, s in numpy_app.LAYERS.items()}
    for record in strategy.history:
        ids = [int(c) for c in record.delivered]
        mean = {
            n: np.mean([(w - numpy_app.target(k, n)) / 2 for k in ids], axis=0)
            for n, w in model.items()
        }
        last = {n: mean[n] + (0.25 * last[n] if last else 0) for n in mean}
        model = {n: model[n] - last[n] for n in model}
        assert record.combined == {"momentum": 0.25}
        assert "kept 2" in record.notes
    for name, array in arrays.items():
        np.testing.assert_allclose(array.numpy(), model[name], rtol=1e-5, atol=1e-6)
    for rounds in (2, 5):
        again = RoundRobin(FedAvg(fraction_evaluate=0.0), combine=Heavy(0.25), checkpoint=tmp_path)
        resumed = start(again, rounds)
    assert resumed == arrays
    with pytest.raises(ValueError, match=r"combine: saved .*0\.25.*, given .*0\.5"):
        start(RoundRobin(FedAvg(fraction_evaluate=0.0), combine=Heavy(), checkpoint=tmp_path), 6)


class Broken(Heavy):
    def combine(self, delivery):
        raise KeyError("mine")


class Short(Heavy):
    def combine(self, delivery):
        return Change(np.zeros(3))


@pytest.mark.parametrize(
    ("combine", "text"),
    [
        (
            Broken(),
            r"combine of the combination Broken\(momentum=0\.5\) raised KeyError in round",
        ),
        (Short(), r"Short.* in round 1: a change of shape \(3,\), want \(23,\)"),
    ],
)
def test_its_errors_say_whose_they_are(combine, text):
    with pytest.raises(SelectionError, match=text):
        start(RoundRobin(FedAvg(), combine=combine))


class Leaving(Heavy):
    def combine(self, delivery):
        return None


class Infinite(Heavy):
    def combine(self, delivery):
        return Change(np.full(23, np.inf))


def test_it_may_leave_a_round_to_the_base_strategy():
    assert start(RoundRobin(FedAvg(), combine=Leaving())) == start(RoundRobin(FedAvg()))


def test_what_is_not_finite_is_not_used():
    strategy = RoundRobin(FedAvg(), combine=Infinite())
    assert start(strategy) == numpy_app.initial_arrays()
    assert all("not finite" in str(record.notes) for record in strategy.history)
    assert all(record.combined == {} for record in strategy.history)


def test_the_rule_of_the_sketched_mean_is_given_the_sketch_itself():
    with pytest.raises(
        ValueError, match=r"'count:64'.*asks for a sketch.*'count:256': give the rule"
    ):
        SketchedMean(FedAvg(), combine="sketched-mean:sketch=count:64")
    SketchedMean(FedAvg(), sketch="count:64", combine="sketched-mean:sketch=count:64")
