"""Clients may report what they like: no update and no run is lost for a metric."""

from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from apps import client_fn_app, numpy_app
from culprits import CULPRIT, run, with_update
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    Krum,
    QFedAvg,
)
from packaging.version import Version

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, EmptyRoundsError, Oort, RoundRobin, SelectionError

NAN, INF = float("nan"), float("inf")
ONLY_TRAIN = {"fraction_evaluate": 0.0}
pytestmark = pytest.mark.usefixtures("quick_collection")
HUGE = 10**400  # no float64, and no protocol buffer either; in one process it may come all the same


def reports(metrics):
    """Return a mod with which client k reports ``metrics(k)`` beside its number of examples."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        for record in reply.content.metric_records.values():
            for name, value in metrics(int(context.node_config["partition-id"])).items():
                record[name] = value
        return reply

    return mod


def trained(metrics, base=None, clients: int = 4, rounds: int = 1, **options):
    strategy = RoundRobin(base or FedAvg(**ONLY_TRAIN), num_selected=clients, **options)
    app = numpy_app.make_app(reports(metrics), summary_mod)
    grid = InProcessGrid(app, clients)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy, result


BASES = [FedAvg, FedAdam, FedMedian, Krum]


@pytest.mark.parametrize("base", BASES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", [NAN, INF, -INF, HUGE], ids=["nan", "inf", "-inf", "huge"])
def test_a_metric_that_is_not_finite_costs_no_update(base, value):
    """As the AUC of a client with one class: the mean is that of the others."""
    auc = {0: 0.5, 1: value, 2: 0.7, 3: 0.9}
    strategy, result = trained(lambda k: {"auc": auc[k]}, base(**ONLY_TRAIN))
    record = strategy.history[0]
    assert record.delivered == ["0", "1", "2", "3"]
    assert "'auc' of 1" in record.notes[0]
    if base is not Krum:  # which aggregates one of them
        mean = (1 * 0.5 + 3 * 0.7 + 4 * 0.9) / 8  # client k has k + 1 examples
        assert result.train_metrics_clientapp[1]["auc"] == pytest.approx(mean)


@pytest.mark.parametrize("place", [0, 2])
def test_a_list_with_one_value_that_is_not_finite_keeps_the_others(place):
    def per_class(k):
        values = [0.1 * (k + 1)] * 3
        if k == 2:
            values[place] = NAN
        return {"per-class": values}

    strategy, result = trained(per_class)
    assert strategy.history[0].delivered == ["0", "1", "2", "3"]
    all_four = (1 * 0.1 + 2 * 0.2 + 3 * 0.3 + 4 * 0.4) / 10
    without = (1 * 0.1 + 2 * 0.2 + 4 * 0.4) / 7
    expected = [without if index == place else all_four for index in range(3)]
    assert result.train_metrics_clientapp[1]["per-class"] == pytest.approx(expected)


@pytest.mark.parametrize("value", [NAN, [NAN, 1.0]])
def test_a_metric_that_nobody_has_is_left_out_and_the_updates_count(value):
    strategy, result = trained(lambda k: {"auc": value, "loss": 1.0})
    assert strategy.history[0].delivered == ["0", "1", "2", "3"]
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 1.0}
    assert "nobody" in strategy.history[0].notes[0]


def test_healthy_metrics_are_handed_on_as_they_are():
    values = {k: {"loss": 0.1 * k, "steps": k, "list": [k], "empty": []} for k in range(4)}
    seen = []

    def collect(contents, weighted_by):
        seen.extend(contents)
        return MetricRecord({"n": len(contents)})

    strategy, _ = trained(values.get, FedAvg(train_metrics_aggr_fn=collect, **ONLY_TRAIN))
    assert strategy.history[0].notes == []
    rows = [dict(content["metrics"]) for content in seen]
    assert rows == [{"num-examples": k + 1, **values[k]} for k in range(4)]
    assert [type(row["steps"]) for row in rows] == [int] * 4


ODD = {
    "absent": lambda k: {} if k == 1 else {"loss": 1.0},
    "one more": lambda k: {"loss": 1.0, "mine": 2.0} if k == 1 else {"loss": 1.0},
    "a list": lambda k: {"loss": [1.0, 2.0] if k == 1 else 1.0},
    "an empty list": lambda k: {"loss": [] if k == 1 else 1.0},
    "a longer list": lambda k: {"loss": 1.0, "row": [1.0] * (3 if k == 1 else 2)},
    "a number for a list": lambda k: {"loss": 1.0, "row": 1.0 if k == 1 else [1.0, 2.0]},
    "a number for an empty list": lambda k: {"loss": 1.0, "row": 1.0 if k == 1 else []},
    "whole": lambda k: {"loss": 1 if k == 1 else 1.0},
}


@pytest.mark.parametrize("metrics", ODD.values(), ids=ODD)
def test_one_client_with_odd_metrics_delivers_and_changes_those_of_nobody(metrics):
    strategy, result = trained(metrics)
    assert strategy.history[0].delivered == ["0", "1", "2", "3"]
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(1.0)
    assert "mine" not in result.train_metrics_clientapp[1]


def test_metrics_of_their_own_names_cost_no_update_and_are_told_once(caplog):
    strategy, result = trained(lambda k: {f"loss-{k}": 1.0, "loss": 2.0}, rounds=3)
    assert all(record.delivered == ["0", "1", "2", "3"] for record in strategy.history)
    assert all("'loss-2' of 2" in record.notes[0] for record in strategy.history)
    assert dict(result.train_metrics_clientapp[3]) == {"loss": 2.0}
    assert (
        len([r for r in caplog.records if r.levelname == "WARNING" and "loss-2" in r.msg % r.args])
        == 1
    )


def test_of_two_clients_the_metrics_of_the_rounds_before_count():
    rounds = []

    def metrics(k):
        rounds.append(k)
        odd = k == CULPRIT and len(rounds) > 4
        return {"loss": [1.0] if odd else 1.0}

    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=2, seed=2)
    grid = InProcessGrid(numpy_app.make_app(reports(metrics), summary_mod), 4)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=6)
    assert all(len(record.delivered) == 2 for record in strategy.history)
    assert all(row["loss"] == pytest.approx(1.0) for row in result.train_metrics_clientapp.values())
    assert any("'loss' of 1" in note for r in strategy.history for note in r.notes)


@pytest.mark.parametrize("kind", ["arrays", "metrics"])
def test_a_record_of_another_name_counts_as_the_others(kind):
    def rename(content):
        record = content[kind]
        del content[kind]
        content["mine"] = record

    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4)
    result = run("train", with_update(rename), strategy)
    plain = run("train", lambda m, reply: reply, RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4))
    assert all(record.delivered == ["0", "1", "2", "3"] for record in strategy.history)
    assert result.arrays == plain.arrays


def test_records_under_one_anothers_names_count_as_the_others():
    def swap(content):
        arrays, metrics = content.pop("arrays"), content.pop("metrics")
        content["metrics"], content["arrays"] = arrays, metrics

    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4)
    result = run("train", with_update(swap), strategy)
    plain = run("train", lambda m, reply: reply, RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4))
    assert all(record.delivered == ["0", "1", "2", "3"] for record in strategy.history)
    assert result.arrays == plain.arrays


def test_an_app_of_the_older_kind_may_report_nan(monkeypatch):
    fit = client_fn_app.TargetClient.fit

    def odd(self, parameters, config):
        arrays, size, metrics = fit(self, parameters, config)
        return arrays, size, {**metrics, "auc": NAN, f"own-{size}": 1.0}

    monkeypatch.setattr(client_fn_app.TargetClient, "fit", odd)
    strategy = PNCS(FedAvg(**ONLY_TRAIN), num_selected=2)
    grid = InProcessGrid(client_fn_app.make_app(summary_mod), 4)
    strategy.start(grid, client_fn_app.initial_arrays(), num_rounds=3)
    for record in strategy.history:
        assert len(record.delivered) == 2
        assert "nobody has as a finite number are left out: 'auc'" in record.notes[-2]
        assert "'own-" in record.notes[-1]


def test_a_rule_does_not_take_a_stand_in_for_what_a_client_has_said():
    seen = []

    class Watching(Oort):
        pass

    strategy = Watching(FedAvg(**ONLY_TRAIN), num_selected=4, loss_key="loss")
    observe = strategy._selector.observe
    strategy._selector.observe = lambda plan, chosen, metrics: (
        seen.append(metrics),
        observe(plan, chosen, metrics),
    )
    app = numpy_app.make_app(reports(lambda k: {"loss": NAN if k == 1 else 1.0}), summary_mod)
    strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=1)
    assert "loss" not in seen[0]["1"]
    assert seen[0]["0"]["loss"] == 1.0


@pytest.mark.parametrize("loss", [NAN, INF, -1.0, 1e200, [1.0], None], ids=str)
def test_the_loss_that_a_fair_base_weighs_by_must_be_there(loss):
    odd = {} if loss is None else {"train_loss": loss}

    def metrics(k):
        return odd if k == 1 else {"train_loss": 1.0}

    strategy, result = trained(metrics, QFedAvg(client_learning_rate=0.5, **ONLY_TRAIN), rounds=2)
    for record in strategy.history:
        assert record.delivered == ["0", "2", "3"]
        assert "train_loss" in record.rejected["1"]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


@pytest.mark.parametrize("bit", [NAN, [1.0], None], ids=str)
def test_the_bit_that_adaptive_clipping_needs_must_be_there(bit):
    base = DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(**ONLY_TRAIN), 0.1, 4)
    odd = {} if bit is None else {"norm_bit": bit}

    def metrics(k):
        return odd if k == 1 else {"norm_bit": 1.0}

    strategy, _ = trained(metrics, base, rounds=2)
    assert all("norm_bit" in record.rejected["1"] for record in strategy.history)
    assert all(record.delivered == ["0", "2", "3"] for record in strategy.history)


class Account:
    """As much of Flower's account of privacy as its wrapper looks at."""

    config = SimpleNamespace(population_size=4, max_epsilon=None)

    def compose(self, event):
        pass

    def get_privacy_spent(self):
        return SimpleNamespace(epsilon=1.0, delta=1e-5, num_releases=1)


def accounted(sizes):
    base = DifferentialPrivacyServerSideFixedClipping(FedAvg(**ONLY_TRAIN), 0.1, 10.0, 4)
    base.accountant = Account()
    return trained(lambda k: {"num-examples": sizes[k]}, base, rounds=2)


def test_one_client_of_another_weight_does_not_end_an_account_of_privacy():
    strategy, _ = accounted([5, 7, 5, 5])
    for record in strategy.history:
        assert record.delivered == ["0", "2", "3"]
        assert "num-examples is 7, and that of others 5" in record.rejected["1"]
    strategy, _ = accounted([5, 5, 5, 5])
    assert all(record.delivered == ["0", "1", "2", "3"] for record in strategy.history)


@pytest.mark.skipif(
    Version(version("flwr")) < Version("1.35"),
    reason="Flower keeps an account of privacy since 1.35",
)
def test_an_app_whose_weights_all_differ_is_told_of_by_the_account():
    with pytest.raises(SelectionError, match="requires equal client weights"):
        accounted([1, 2, 3, 4])


def test_a_round_without_updates_does_not_end_adaptive_clipping():
    def raises(message, context, call_next):
        if message.metadata.message_type == "train" and "arrays" in message.content:
            raise RuntimeError("boom")
        return call_next(message, context)

    base = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(**ONLY_TRAIN), 0.1, 2)
    strategy = RoundRobin(base, num_selected=2)
    grid = InProcessGrid(numpy_app.make_app(summary_mod, raises), 4)
    with pytest.raises(EmptyRoundsError, match="boom"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=5)


# --- evaluation -----------------------------------------------------------------------------------


def evaluated(answer, base=None, clients: int = 4, rounds: int = 2):
    """Run with one client that answers evaluations in a way of its own."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        mine = context.node_config["partition-id"] == CULPRIT
        if message.metadata.message_type == "evaluate" and mine:
            return answer(message, reply)
        return reply

    strategy = RoundRobin(base or FedAvg(), num_selected=2)
    grid = InProcessGrid(numpy_app.make_app(mod, summary_mod), clients)
    return strategy, strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)


def says(**metrics):
    record = MetricRecord({name.replace("_", "-"): value for name, value in metrics.items()})
    return lambda message, reply: Message(RecordDict({"metrics": record}), reply_to=message)


def two_records(message, reply):
    more = MetricRecord({"num-examples": 1, "loss": 0.5})
    return Message(RecordDict({**reply.content, "more": more}), reply_to=message)


LEFT_OUT = {
    "no weight": (says(loss=1.0), "lack 'num-examples'"),
    "nothing": (says(), "lack 'num-examples'"),
    "no record": (lambda m, r: Message(RecordDict(), reply_to=m), "0 metric records"),
    "two records": (two_records, "2 metric records"),
    "below zero": (says(num_examples=-100, loss=1.0), "num-examples is -100"),
    "zero": (says(num_examples=0, loss=1.0), "num-examples is 0"),
    "a list": (says(num_examples=[1, 2], loss=1.0), "lack 'num-examples'"),
    "NaN": (says(num_examples=NAN, loss=1.0), "num-examples is nan"),
    "infinite": (says(num_examples=INF, loss=1.0), "num-examples is inf"),
    "too many": (says(num_examples=10**12, loss=1.0), "num-examples is 1e+12"),
    "no number": (says(num_examples=HUGE, loss=1.0), "num-examples is inf"),
    "an error": (lambda m, r: Message(Error(2, "odd boom"), reply_to=m), "odd boom"),
}
USED = {
    "loss missing": says(num_examples=5),
    "loss NaN": says(num_examples=5, loss=NAN),
    "loss a list": says(num_examples=5, loss=[1.0, 2.0]),
    "loss an empty list": says(num_examples=5, loss=[]),
}


def losses(result):
    return [metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()]


def expected_losses():
    """Return the mean losses of all clients but one; each has one example."""
    of_others = {}

    def collect(contents, weighted_by):
        rows = [float(content["metrics"]["loss"]) for content in contents]
        of_others[len(of_others)] = (sum(rows) - rows[CULPRIT]) / (len(rows) - 1)
        return MetricRecord({"loss": 0.0})

    evaluated(lambda message, reply: reply, FedAvg(evaluate_metrics_aggr_fn=collect))
    return list(of_others.values())


@pytest.mark.parametrize(("answer", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_one_odd_evaluation_is_left_out_with_a_note(answer, reason):
    strategy, result = evaluated(answer)
    for record in strategy.history:
        (note,) = [n for n in record.notes if n.startswith("evaluation: left out are 1: ")]
        assert reason in note
    assert losses(result) == pytest.approx(expected_losses())


def test_that_all_evaluations_are_left_out_is_a_warning_with_the_reason(caplog):
    def refuse(message, context, call_next):
        if message.metadata.message_type == "evaluate":
            return Message(Error(2, "no data"), reply_to=message)
        return call_next(message, context)

    grid = InProcessGrid(numpy_app.make_app(refuse, summary_mod), 2)
    strategy = RoundRobin(FedAvg(), num_selected=2)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    assert not result.evaluate_metrics_clientapp
    (told,) = [each for each in caplog.records if "left out are" in each.message]
    assert told.message.endswith("left out are 0: no data; 1: no data, and so there is none")
    assert told.levelname == "WARNING"


@pytest.mark.parametrize("answer", USED.values(), ids=USED)
def test_an_evaluation_without_its_loss_does_not_count_in_that(answer):
    strategy, result = evaluated(answer)
    assert losses(result) == pytest.approx(expected_losses())
    assert all("'loss' of 1" in " ".join(record.notes) for record in strategy.history)


def test_more_metrics_than_others_have_are_left_out_of_an_evaluation():
    _, result = evaluated(says(num_examples=1, loss=1.0, mine=3.0))
    assert all(set(row) == {"loss"} for row in result.evaluate_metrics_clientapp.values())
    assert len(result.evaluate_metrics_clientapp) == 2


def test_a_second_evaluation_of_a_client_does_not_count():
    class Twice(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = list(super().send_and_receive(messages, timeout=timeout))
            return [*replies, *replies]

    once, twice = (
        RoundRobin(FedAvg(), num_selected=2).start(
            kind(numpy_app.make_app(summary_mod), 4), numpy_app.initial_arrays(), num_rounds=2
        )
        for kind in (InProcessGrid, Twice)
    )
    assert once.evaluate_metrics_clientapp == twice.evaluate_metrics_clientapp


@pytest.mark.parametrize("answer", [says(), two_records], ids=["nothing", "two records"])
def test_if_no_evaluation_can_be_used_there_is_none_and_a_note(answer):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        return answer(message, reply) if message.metadata.message_type == "evaluate" else reply

    strategy = PNCS(FedAvg(), num_selected=2)
    grid = InProcessGrid(numpy_app.make_app(mod, summary_mod), 4)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert result.evaluate_metrics_clientapp == {}
    for record in strategy.history:
        assert any("; and 1 others" in note for note in record.notes)
        assert any("there is none" in note for note in record.notes)


@pytest.mark.parametrize("all_fail", [False, True])
def test_an_error_in_an_evaluation_reaches_neither_the_base_strategy_nor_at_length_the_log(
    caplog, all_fail
):
    class Strict(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            replies = list(replies)
            assert replies
            assert not any(reply.has_error() for reply in replies)
            return super().aggregate_evaluate(server_round, replies)

    def mod(message, context, call_next):
        if message.metadata.message_type == "evaluate" and (
            all_fail or context.node_config["partition-id"] == CULPRIT
        ):
            return Message(Error(2, "a long story " * 10_000), reply_to=message)
        return call_next(message, context)

    caplog.set_level("INFO", logger="flwr")
    strategy = RoundRobin(Strict(), num_selected=2)
    grid = InProcessGrid(numpy_app.make_app(mod, summary_mod), 4)
    result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert len(result.evaluate_metrics_clientapp) == (0 if all_fail else 2)
    for record in strategy.history:
        assert any("a long story" in note for note in record.notes)
        assert any("there is none" in note for note in record.notes) == all_fail
    assert max(len(r.getMessage()) for r in caplog.records) < 2000


def test_evaluations_with_every_kind_of_metric_are_handed_on_as_they_are():
    seen = []

    def collect(contents, weighted_by):
        seen.append([dict(content["metrics"]) for content in contents])
        return MetricRecord()

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "evaluate":
            k = int(context.node_config["partition-id"])
            reply.content["metrics"] = MetricRecord({"num-examples": 9, **rows[k]})
        return reply

    rows = [{"loss": 0.1 * k, "row": [k, 2], "whole": k, "none": []} for k in range(3)]
    strategy = RoundRobin(FedAvg(evaluate_metrics_aggr_fn=collect), num_selected=2)
    grid = InProcessGrid(numpy_app.make_app(mod, summary_mod), 3)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    assert seen == [[{"num-examples": 9, **row} for row in rows]]
    assert [type(row["whole"]) for row in seen[0]] == [int] * 3
    assert strategy.history[0].notes == []
