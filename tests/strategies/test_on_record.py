"""A function of the user's hears of each whole round, and costs the run nothing."""

import json

import pytest
from apps import numpy_app
from flwr.app import MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import RoundRobin


def run(*, rounds=3, base=None, evaluate=None, should_stop=None, **options):
    strategy = RoundRobin(base or FedAvg(), num_selected=2, **options)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        evaluate_fn=evaluate,
        should_stop=should_stop,
    )
    return strategy


def measured(number, arrays):
    return MetricRecord({"accuracy": number / 10})


def test_each_round_is_told_once_with_all_that_is_known_of_it():
    rows = []
    strategy = run(on_record=rows.append, evaluate=measured)
    assert [row["round"] for row in rows] == [1, 2, 3]
    for row, record in zip(rows, strategy.history, strict=True):
        assert row.items() >= record.to_dict().items()
        assert row["evaluate_metrics_serverapp"] == {"accuracy": record.round / 10}
        assert row["evaluate_metrics_clientapp"].keys() == {"loss"}
        assert row["train_metrics_clientapp"] == {}  # the app reports nothing but its size
    json.dumps(rows)


def test_metrics_that_there_are_not_are_empty():
    rows = []
    run(on_record=rows.append, base=FedAvg(fraction_evaluate=0.0))
    for row in rows:
        assert row["evaluate_metrics_clientapp"] == row["evaluate_metrics_serverapp"] == {}


def test_what_an_evaluation_adds_is_told():
    rows = []

    def evaluate(number, arrays):
        if number:
            strategy.history[-1].extra["mine"] = number
        return None

    strategy = RoundRobin(FedAvg(), num_selected=2, on_record=rows.append)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2, evaluate_fn=evaluate)
    assert [row["mine"] for row in rows] == [1, 2]


@pytest.mark.parametrize("bad", [(1,), (2, 3), (3,)])
def test_an_error_is_noted_and_the_run_goes_on(bad, tmp_path, caplog):
    calls = []

    def log(row):
        calls.append(row["round"])
        if row["round"] in bad:
            raise ConnectionError("\x1b[31mno\nroute" + "x" * 9999)

    path, folder = tmp_path / "rounds.jsonl", tmp_path / "run"
    strategy = run(on_record=log, history_path=path, checkpoint=folder)
    assert calls == [1, 2, 3]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    again = run(checkpoint=folder)  # what was saved, too
    for records in (strategy.history, again.history, written):
        for number, record in enumerate(records, start=1):
            notes = record["notes"] if isinstance(record, dict) else record.notes
            found = [note for note in notes if "on_record raised ConnectionError: no route" in note]
            assert len(found) == (number in bad)
            assert len("".join(found)) < 600
    assert "the run goes on" in caplog.text


def test_a_run_that_goes_on_tells_new_rounds_only(tmp_path):
    first, second = [], []
    run(rounds=2, on_record=first.append, checkpoint=tmp_path)
    run(rounds=4, on_record=second.append, checkpoint=tmp_path)
    assert [[row["round"] for row in rows] for rows in (first, second)] == [[1, 2], [3, 4]]
    third = []
    run(rounds=4, on_record=third.append, checkpoint=tmp_path)
    assert third == []


def test_a_run_that_is_stopped_early_tells_its_last_round():
    rows = []
    run(rounds=5, on_record=rows.append, should_stop=lambda number, result: number == 2)
    assert [row["round"] for row in rows] == [1, 2]


def test_a_round_that_is_not_whole_is_not_told():
    rows = []

    def evaluate(number, arrays):
        if number == 2:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        run(on_record=rows.append, evaluate=evaluate)
    assert [row["round"] for row in rows] == [1]


def test_who_ends_the_process_ends_the_run():
    def log(row):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(on_record=log)


def test_rounds_are_told_within_another_strategy():
    rows = []
    inner = RoundRobin(FedAvg(), num_selected=2, on_record=rows.append)
    outer = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, 2)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    outer.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert all(row["evaluate_metrics_clientapp"] for row in rows)


@pytest.mark.parametrize("bad", [3, True, "print", [print]])
def test_what_cannot_be_called_is_refused(bad):
    with pytest.raises(TypeError, match=r"on_record is .*, but must be callable"):
        RoundRobin(FedAvg(), num_selected=2, on_record=bad)
