"""The simulated clock of three clients by hand, and who is late, breaks off or is not there."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from apps import numpy_app
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.devices import Chance, Device, Periods, Trace
from pncs_flower.protocol import KEPT, MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    EmptyRoundsError,
    GradientMemory,
    Oort,
    PowerOfChoice,
    RoundRobin,
    TooFewClientsError,
    UniformSelection,
    timeouts,
)

# Client k has k + 1 examples, and goes through them three times when it trains.
DEVICES = {
    "0": Device(10, download=8e3, upload=4e3, latency=0.5),
    "1": Device(3, download=16e3, upload=8e3, latency=0.25),
    "2": Device(1, download=80e3, upload=80e3),
}
# Bytes of messages and replies.
TRAIN, UPDATE, REQUEST, SUMMARY, KEPT_ASKED, EVALUATE, SCORES = 699, 664, 781, 295, 62, 664, 32


def size(context) -> int:
    return 1 + int(context.node_config["partition-id"])


def federation(joint=False, clients=3, kind=InProcessGrid, told=True, workers=1):
    mod = SummaryMod(
        num_examples=size if told else None,
        epochs=(lambda context: 3) if told else None,
        evaluate=numpy_app.evaluate if joint else None,
        gradient=numpy_app.gradient,
    )
    return kind(numpy_app.make_app(mod), clients, workers=workers)


def run(kind=UniformSelection, selected=3, rounds=1, grid=None, base=None, **options):
    options = {"devices": DEVICES, "queue_length": 0, **options}
    strategy = kind(base or FedAvg(), num_selected=selected, seed=1, **options)
    config = ConfigRecord({"lr": 0.3}) if options.pop("lr", None) else None
    with grid or federation() as grid:
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds, train_config=config)
    return strategy


def seconds(record) -> dict[str, float]:
    return {phase: round(value, 3) for phase, value in record.simulated_seconds.items()}


def ends(record, phase) -> dict[str, float]:
    return {c: round(spans[phase][-1], 3) for c, spans in record.timeline.items() if phase in spans}


def alone(**options):
    """Return a base strategy without an evaluation on the clients."""
    least = {"min_train_nodes": 1, "min_available_nodes": 1, "min_evaluate_nodes": 1}
    return FedAvg(**{"fraction_evaluate": 0.0, **least, **options})


def test_training_and_evaluation_by_hand():
    (record,) = run().history
    assert record.bytes_down["training"] == 3 * TRAIN
    assert record.bytes_up["training"] == 3 * UPDATE
    # Client 0: .5 + 699/1000 + 3 * 1/10 + 664/500 = 2.827
    # Client 1: .25 + 699/2000 + 3 * 2/3 + 664/1000 = 3.2635
    # Client 2: 699/10000 + 3 * 3/1 + 664/10000 = 9.1363, for which all wait
    assert record.timeline["0"]["training"] == [0.0, 1.199, 1.499, 2.827]
    assert record.timeline["1"]["training"] == [0.0, 0.5995, 2.5995, 3.2635]
    assert record.timeline["2"]["training"] == [0.0, 0.0699, 9.0699, 9.1363]
    # Each says that it has evaluated one example, which takes a third of what training on it does.
    # Client 0: .5 + 664/1000 + 1/30 + 32/500 = 1.2613, for which all wait
    # Client 1: .25 + 664/2000 + 1/9 + 32/1000 = .7251
    # Client 2: 664/10000 + 1/3 + 32/10000 = .4029
    assert ends(record, "evaluation") == {"0": 10.398, "1": 9.861, "2": 9.539}
    assert seconds(record) == {"training": 9.136, "evaluation": 1.261}
    assert record.clock == 0.0


# Of the pre-round, with training in it, and of the upload alone by those that keep the update:
# client 0: .5 + 781/1000 + .3 + 295/500 = 2.171, and .5 + 62/1000 + 664/500 = 1.89
# client 1: .25 + 781/2000 + 2 + 295/1000 = 2.9355, and .25 + 62/2000 + 664/1000 = .945
# client 2: 781/10000 + 9 + 295/10000 = 9.1076, and 62/10000 + 664/10000 = .0726


def test_pre_round_of_its_own_by_hand_and_kept_updates_are_not_trained_again():
    first, second = run(PNCS, 2, 2, ride_along=False).history
    assert first.bytes_down == {"introduction": 63, "pre-round": 3 * REQUEST, "training": 124}
    assert first.bytes_up["pre-round"] == 3 * SUMMARY
    assert ends(first, "pre-round") == {"0": 2.171, "1": 2.936, "2": 9.108}
    assert first.chosen == ["0", "1"]
    assert ends(first, "training") == {"0": 10.998, "1": 10.053}  # 9.1076 + 1.89 and + .945
    assert seconds(first) == {"pre-round": 9.108, "training": 1.89, "evaluation": 1.261}
    assert second.clock == pytest.approx(12.2589, abs=5e-5)
    assert seconds(second) == seconds(first)


def test_summaries_asked_for_with_the_evaluation_take_what_they_take_longer():
    first, second = run(PNCS, 2, 2).history
    assert (first.pre_round, second.pre_round) == ("own", "ahead")
    # Each evaluates first, and is then asked for the summary: client 0 is done after
    # 1.2613 + 2.171 = 3.4323, client 1 after .7251 + 2.9355 = 3.6606, and client 2 after
    # .4029 + 9.1076 = 9.5105, which is 8.2492 after the last evaluation.
    assert seconds(first) == {"pre-round": 9.108, "training": 1.89, "evaluation": 1.261}
    assert seconds(second) == {"pre-round": 8.249, "training": 1.89, "evaluation": 1.261}
    # 10.9976 when the evaluation begins: 9.1076 + 1.89
    assert ends(second, "pre-round") == {"0": 14.43, "1": 14.658, "2": 20.508}
    assert second.clock == pytest.approx(12.2589, abs=5e-5)  # after the evaluation alone


def test_both_in_one_message_send_the_weights_once_and_wait_for_the_latency_once():
    first, second = run(PNCS, 2, 2, grid=federation(joint=True)).history
    # 20 bytes of the evaluation are beside what the request holds anyway.
    # Client 0: .5 + 801/1000 + 1/30 + .3 + 327/500 = 2.2883
    # Client 1: .25 + 801/2000 + 1/9 + 2 + 327/1000 = 3.0886
    # Client 2: 801/10000 + 1/3 + 9 + 327/10000 = 9.4461
    assert ends(first, "evaluation") == {"0": 13.286, "1": 14.086, "2": 20.444}
    assert ends(second, "pre-round") == ends(first, "evaluation")
    assert seconds(first)["evaluation"] == 9.446
    assert seconds(second) == {"pre-round": 0.0, "training": 1.89, "evaluation": 1.261}


@pytest.mark.parametrize("summary", ["update", "gradient"])
def test_without_an_evaluation_it_is_all_one_whether_summaries_are_asked_for_ahead(summary):
    ahead = run(PNCS, 2, 4, base=alone(), summary=summary).history
    own = run(PNCS, 2, 4, base=alone(), summary=summary, ride_along=False).history
    assert [record.pre_round for record in ahead] == ["own", *["ahead"] * 3]
    for one, other in zip(ahead, own, strict=True):
        assert (one.clock, one.simulated_seconds) == (other.clock, other.simulated_seconds)
        assert (one.timeline, one.chosen) == (other.timeline, other.chosen)


def test_a_gradient_is_one_pass_and_the_chosen_train_after_it():
    record = run(PNCS, 2, summary="gradient", base=alone()).history[0]
    down = record.bytes_down["pre-round"] // 3 / 1e4
    up = record.bytes_up["pre-round"] // 3 / 1e4
    assert record.timeline["2"]["pre-round"][-1] == pytest.approx(down + 3 + up)  # 3 examples
    assert record.bytes_down["training"] > 2 * TRAIN  # the weights, and this pre-round's ticket
    for client in record.chosen:
        _, received, computed, _ = record.timeline[client]["training"]
        examples = 3 * (1 + int(client))
        speed = DEVICES[client].examples_per_second
        assert computed - received == pytest.approx(examples / speed, abs=2e-6)


def test_a_loss_is_a_third_of_a_pass_over_as_many_examples_as_are_asked_for():
    record = run(PowerOfChoice, 2, candidates=3, base=alone()).history[0]
    _, received, computed, _ = record.timeline["2"]["pre-round"]
    assert computed - received == pytest.approx(3 / 3, abs=2e-6)
    record = run(
        PowerOfChoice, 2, candidates=3, base=alone(), variant="cpow-d", batch_size=2
    ).history[0]
    _, received, computed, _ = record.timeline["2"]["pre-round"]
    assert computed - received == pytest.approx(2 / 3, abs=2e-6)


def test_what_a_client_says_to_have_gone_through_counts():
    def train(message, context):
        reply = numpy_app.train(message, context)
        reply.content["metrics"]["examples-processed"] = 25
        return reply

    grid = InProcessGrid(numpy_app.make_app(SummaryMod(num_examples=size), train=train), 3)
    (record,) = run(grid=grid, base=alone()).history
    _, received, computed, _ = record.timeline["0"]["training"]
    assert computed - received == pytest.approx(2.5, abs=2e-6)


def test_clients_that_do_not_tell_count_by_their_replies_and_the_local_epochs_of_the_config():
    grid = federation(told=False)
    strategy = UniformSelection(alone(), num_selected=3, devices=DEVICES)
    strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=1,
        train_config=ConfigRecord({"local-epochs": 5}),
    )
    _, received, computed, _ = strategy.history[0].timeline["1"]["training"]
    assert computed - received == pytest.approx(5 * 2 / 3, abs=2e-6)


def test_a_pre_round_of_clients_whose_size_nobody_knows_is_noted_once():
    first, second = run(PNCS, 3, 2, grid=federation(told=False), base=alone()).history
    _, received, computed, _ = first.timeline["2"]["pre-round"]
    assert received == computed
    assert sum("num_examples=" in note for note in first.notes) == 1
    _, received, computed, _ = second.timeline["2"]["pre-round"]  # as it came with its update
    assert computed - received == pytest.approx(3, abs=2e-6)
    assert not any("num_examples=" in note for note in second.notes)


def test_who_is_late_is_left_out_and_nobody_waits_for_longer():
    (record,) = run(deadline=5.0).history
    assert record.chosen == ["0", "1", "2"]
    assert record.delivered == ["0", "1"]
    (reason,) = record.rejected.values()
    assert reason.startswith("training: ")
    assert "9.136 s" in reason
    assert "deadline of 5 s" in reason
    assert seconds(record) == {"training": 5.0, "evaluation": 1.261}
    assert record.bytes_up["training"] == 2 * UPDATE
    assert record.bytes_up["late"] == UPDATE


def test_model_of_a_round_with_a_deadline_is_that_of_those_in_time():
    def model(**options):
        strategy = RoundRobin(alone(), num_selected=3, devices=DEVICES, **options)
        arrays = strategy.start(federation(), numpy_app.initial_arrays(), num_rounds=1).arrays
        return [array.numpy().tobytes() for array in arrays.values()]

    two = UniformSelection(alone(), num_selected=2, eligible=lambda client: client != "2")
    result = two.start(federation(), numpy_app.initial_arrays(), num_rounds=1)
    assert model(deadline=5.0) == [array.numpy().tobytes() for array in result.arrays.values()]
    assert model() != model(deadline=5.0)


def test_summaries_that_are_late_are_not_chosen_by():
    first, second = run(PNCS, 1, 2, deadline=5.0, base=alone()).history
    for record in (first, second):
        assert record.asked == ["0", "1", "2"] if record is first else True
        assert "2" not in record.answered
        assert record.chosen in (["0"], ["1"])
    assert first.rejected["2"].startswith("pre-round: its reply would have come after 9.108 s")
    assert seconds(first)["pre-round"] == 5.0


def test_a_device_that_breaks_off_is_waited_for_until_then():
    devices = {**DEVICES, "2": Device(1, 80e3, 80e3, dropout=1.0)}
    (record,) = run(devices=devices, base=alone()).history
    assert record.delivered == ["0", "1"]
    assert "broke off after" in record.rejected["2"]
    end = record.timeline["2"]["training"][-1]
    assert 0 < end < 9.1363
    assert record.simulated_seconds["training"] == pytest.approx(max(3.2635, end), abs=1e-6)
    assert record.bytes_up["training"] == 2 * UPDATE
    assert "late" not in record.bytes_up


def test_of_more_than_are_needed_the_first_to_arrive_count():
    strategy = run(selected=1, extra=2, rounds=3, base=alone())
    for record in strategy.history:
        assert record.chosen == ["0", "1", "2"]
        assert record.delivered == ["0"]
        assert seconds(record) == {"training": 2.827}
        assert set(record.rejected) == {"1", "2"}
        assert "too late: 1 other had arrived before" in record.rejected["1"]
        assert "last by 0.43" in record.rejected["1"]  # 3.2635 - 2.827 = .4365
        assert record.bytes_up["late"] == 2 * UPDATE
        assert record.backing_off == []  # nobody has failed


def test_if_one_of_them_breaks_off_another_takes_its_place():
    devices = {**DEVICES, "0": Device(10, 8e3, 4e3, 0.5, dropout=1.0)}
    (record,) = run(selected=1, extra=1, rounds=1, devices=devices, base=alone()).history
    assert record.delivered != ["0"]
    assert len(record.delivered) == 1


def test_the_queue_rests_those_that_delivered_and_not_those_that_came_too_late():
    history = run(RoundRobin, 1, 4, extra=1, queue_length=1, base=alone()).history
    for earlier, later in pairwise(history):
        assert earlier.delivered == later.cooling
        assert len(earlier.chosen) == 2
        assert len(earlier.delivered) == 1


def test_an_update_that_was_lost_is_trained_again_after_the_answer_that_it_is_gone():
    class Forgetful(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                if message.content.get(MARKER, {}).get(KEPT):
                    self.contexts[message.metadata.dst_node_id].state.clear()
            return super().push_messages(messages)

    (record,) = run(PNCS, 2, grid=federation(kind=Forgetful), base=alone()).history
    assert record.delivered == ["0", "1"]
    asked, _, _, end = record.timeline["1"]["training"]
    # .25 + 62/2000 and 8 bytes or so of an answer, then .25 + (down)/2000 + 2 + 664/1000
    assert end - asked > 3.2
    assert record.simulated_seconds["training"] == pytest.approx(
        max(spans["training"][-1] for spans in record.timeline.values() if "training" in spans)
        - asked,
        abs=2e-6,
    )


RULES = [
    (PNCS, {}),
    (PNCS, {"summary": "gradient", "candidates": 2}),
    (UniformSelection, {}),
    (RoundRobin, {}),
    (PowerOfChoice, {"candidates": 2}),
]


@pytest.mark.parametrize("ride_along", [True, False])
@pytest.mark.parametrize(("kind", "options"), RULES)
def test_who_is_not_there_is_neither_asked_nor_chosen_nor_evaluated_on(kind, options, ride_along):
    # Client 3 is away at first, and client 2 from second 12 on.
    there = {"2": Trace(((0.0, 12.0),)), "3": Trace(((20.0, 1e9),))}
    devices = {
        str(k): Device(50, 1e6, 1e6, availability=there.get(str(k), Periods(1, 0)))
        for k in range(5)
    }
    devices["4"] = Device(1, 1e6, 1e6)  # slow enough for time to go by
    strategy = run(
        kind,
        2,
        14,
        grid=federation(joint=True, clients=5),
        devices=devices,
        ride_along=ride_along,
        **options,
    )
    seen = set()
    for record in strategy.history:
        away = {"0", "1", "2", "3", "4"}.difference(record.clients)
        asked = {*record.asked, *record.chosen}
        assert asked <= set(record.clients)
        seen |= {("2", "2" in record.clients), ("3", "3" in record.clients)}
        assert away.isdisjoint(asked)
        if record.clock < 11:
            assert "3" in away
    assert ("3", False) in seen
    assert ("2", True) in seen
    assert strategy.history[-1].clock > 12
    assert "2" not in strategy.history[-1].clients


def test_where_too_few_are_there_the_clock_goes_on_to_when_enough_are():
    devices = {
        "0": Device(10, 1e6, 1e6),
        "1": Device(10, 1e6, 1e6, availability=Trace(((100.0, 1e6),))),
        "2": Device(10, 1e6, 1e6, availability=Periods(50, 250, offset=250)),
    }
    first, second = run(selected=2, rounds=2, devices=devices, base=alone()).history
    assert first.clients == ["0", "1"]
    assert first.clock == 0.0
    assert first.simulated_seconds["waiting"] == 100.0
    assert any("went on by 100.000 s, until 2 were" in note for note in first.notes)
    assert second.clock == pytest.approx(100 + first.simulated_seconds["training"])
    assert "waiting" not in second.simulated_seconds


def test_where_nobody_ever_comes_back_it_is_an_error_and_no_wait():
    devices = {str(k): Device(10, 1e6, 1e6, availability=Trace(((0.0, 0.5),))) for k in range(3)}
    with pytest.raises(TooFewClientsError, match=r"0 of 3 clients are there.*never come back"):
        run(selected=2, rounds=9, devices=devices, base=alone())
    devices = {k: Device(10, 1e6, 1e6, availability=Chance(0.0)) for k in devices}
    with pytest.raises(TooFewClientsError, match="never come back"):
        run(selected=2, devices=devices)
    devices = {k: Device(10, 1e6, 1e6, availability=Chance(1e-12)) for k in devices}
    with pytest.raises(TooFewClientsError, match=r"at any of \d+ looks"):
        run(selected=2, devices=devices)


def test_where_never_enough_are_there_at_once_those_are_chosen_from_that_most_are():
    # In turns, but for 20 seconds in which two are there.
    devices = {
        "0": Device(10, 1e6, 1e6, availability=Periods(100, 200)),
        "1": Device(10, 1e6, 1e6, availability=Periods(120, 180, offset=220)),
        "2": Device(10, 1e6, 1e6, availability=Periods(10, 290, offset=50)),
    }
    there = [
        {c for c, d in devices.items() if d.availability.is_there(float(second))}
        for second in range(1200)
    ]
    assert max(map(len, there)) == 2
    for record in run(selected=3, rounds=4, devices=devices, base=alone()).history:
        began = record.clock + record.simulated_seconds.get("waiting", 0.0)
        assert set(record.clients) == there[math.floor(began)]
        assert len(record.clients) == 2
        assert record.chosen == record.clients
        assert any("num_selected is 3, but only 2 are there" in note for note in record.notes)


def test_clients_that_are_there_by_chance_are_others_in_each_round():
    devices = {str(k): Device(10, 1e6, 1e6, availability=Chance(0.5)) for k in range(12)}
    strategy = run(
        selected=2, rounds=40, devices=devices, base=alone(), grid=federation(clients=12)
    )
    there = [len(record.clients) for record in strategy.history]
    assert 5 < sum(there) / len(there) < 7  # of 12; its standard error is .27
    assert len(set(map(tuple, (record.clients for record in strategy.history)))) > 30


def test_where_all_break_off_the_run_ends_with_the_reason():
    devices = {client: Device(10, 1e6, 1e6, dropout=1.0) for client in DEVICES}
    with pytest.raises(EmptyRoundsError, match=r"3 rounds in a row.*its device broke off"):
        run(devices=devices, rounds=9)


def test_who_goes_before_it_was_asked_has_not_delivered():
    # Client 1 answers the pre-round, which client 2 makes last until second 9.
    devices = {**DEVICES, "1": Device(3, 16e3, 8e3, availability=Trace(((0.0, 5.0),)))}
    (record,) = run(PNCS, 2, devices=devices, base=alone()).history
    assert record.answered == ["0", "1", "2"]
    if "1" in record.chosen:
        assert "gone" in record.rejected["1"]
    assert record.chosen == ["0", "1"]
    assert record.delivered == ["0"]


def facts(strategy) -> list[object]:
    return [
        (
            *(r.clock, r.simulated_seconds, r.timeline, r.clients, r.asked, r.answered),
            *(r.chosen, r.delivered, r.rejected),
        )
        for r in strategy.history
    ]


class StopError(Exception):
    """Ends a run."""


FLEETS = {
    "phones": {"devices": "phones"},
    "by chance": {
        "devices": {
            str(k): Device(5 + k, 1e5, 1e5, 0.1, Chance(0.7), dropout=0.2) for k in range(9)
        }
    },
    "in periods": {
        "devices": {
            str(k): Device(5, 1e4, 1e4, 0.1, Periods(30.0 + k, 10.0, float(k)), dropout=0.1)
            for k in range(9)
        }
    },
}
FLEETS["by chance"] |= {"deadline": 2.0, "extra": 1}


@pytest.mark.parametrize(
    ("kind", "fleet", "joint"),
    [
        (kind, fleet, (rule + number) % 2 == 0)
        for rule, kind in enumerate([PNCS, UniformSelection, Oort])
        for number, fleet in enumerate(FLEETS)
    ],
)
def test_a_run_that_is_stopped_in_the_middle_goes_on_with_the_same_clock(
    tmp_path, kind, fleet, joint
):
    def started(folder, stop=None, rounds=8):
        def after(number, arrays):
            if number == stop:
                raise StopError

        strategy = kind(
            FedAvg(min_evaluate_nodes=1),
            num_selected=2,
            seed=5,
            queue_length=2,
            max_empty_rounds=9,
            checkpoint=folder,
            **({"loss_key": "num-examples"} if kind is Oort else {}),
            **FLEETS[fleet],
        )
        grid = federation(joint=joint, clients=9)
        try:
            result = strategy.start(
                grid, numpy_app.initial_arrays(), num_rounds=rounds, evaluate_fn=after
            )
        except StopError:
            return strategy, None
        return strategy, [array.numpy().tobytes() for array in result.arrays.values()]

    whole, model = started(tmp_path / "whole")
    started(tmp_path / "parts", stop=3)
    started(tmp_path / "parts", stop=6)
    parts, again = started(tmp_path / "parts")
    assert facts(parts) == facts(whole)
    assert again == model
    assert whole.history[-1].clock > 0


def test_settings_of_devices_must_be_the_same_when_a_run_goes_on(tmp_path):
    run(rounds=2, checkpoint=tmp_path, base=alone())
    run(rounds=3, checkpoint=tmp_path, base=alone(), devices=dict(DEVICES))
    other = {**DEVICES, "2": Device(2, 80e3, 80e3)}
    with pytest.raises(ValueError, match=r"devices: saved .* given"):
        run(rounds=4, checkpoint=tmp_path, base=alone(), devices=other)
    with pytest.raises(ValueError, match="deadline: saved None, given 4"):
        run(rounds=4, checkpoint=tmp_path, base=alone(), deadline=4.0)


@pytest.mark.parametrize("kind", [PNCS, UniformSelection])
def test_workers_have_the_clock_of_one_process(kind):
    def started(workers):
        grid = federation(joint=True, clients=9, workers=workers)
        options = {"devices": "phones", "extra": 1, "max_empty_rounds": 9}
        return facts(run(kind, 2, 5, grid=grid, queue_length=2, **options))

    assert started(1) == started(2)


def test_without_devices_nothing_is_there_and_nobody_is_asked_for_epochs():
    (plain,) = run(devices=None).history
    (clocked,) = run().history
    assert (plain.clock, plain.simulated_seconds, plain.timeline) == (None, {}, {})
    assert plain.bytes_down["introduction"] < clocked.bytes_down["introduction"]
    same = ("training",)
    assert [plain.bytes_down[n] for n in same] == [clocked.bytes_down[n] for n in same]
    assert [plain.bytes_up[n] for n in same] == [clocked.bytes_up[n] for n in same]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"deadline": 3.0}, ValueError, "deadline is 3.0, but devices is None"),
        ({"extra": 1}, ValueError, "extra is 1, but devices is None"),
        ({"devices": "phones", "deadline": 0}, ValueError, "deadline is 0"),
        ({"devices": "phones", "deadline": float("nan")}, ValueError, "deadline is nan"),
        ({"devices": "phones", "extra": -1}, ValueError, "extra is -1"),
        ({"devices": "phones", "extra": 1.5}, TypeError, "extra is 1.5"),
        ({"devices": "phones", "extra": True}, TypeError, "extra is True"),
        ({"devices": "tablets"}, ValueError, "devices is 'tablets', but must be one of phones"),
        ({"devices": 3}, TypeError, "devices is 3"),
    ],
)
def test_bad_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        UniformSelection(FedAvg(), **options)


def test_extra_is_refused_where_each_layer_has_a_choice_of_its_own():
    with pytest.raises(ValueError, match="extra is 1, but the rule chooses for each layer"):
        PNCS(FedAvg(), per_layer=True, devices="phones", extra=1)


def test_extra_is_refused_where_the_rule_chooses_among_fewer():
    for variant in ("pow-d", "cpow-d", "rpow-d"):
        with pytest.raises(ValueError, match=r"extra is 2 and num_selected 2, .* 3 candidates"):
            PowerOfChoice(FedAvg(), candidates=3, variant=variant, devices="phones", extra=2)
    with pytest.raises(ValueError, match="extra is 2"):
        PNCS(FedAvg(), candidates=3, devices="phones", extra=2)
    GradientMemory(FedAvg(), candidates=1, devices="phones", extra=2)  # it chooses the unasked too


def test_extra_with_which_all_are_chosen_is_told(caplog):
    record = run(selected=1, extra=9, base=alone()).history[0]
    assert (record.chosen, record.delivered) == (["0", "1", "2"], ["0"])
    assert "num_selected is 1, extra is 9 and 3 clients take part" in caplog.text


def test_who_is_done_just_at_the_deadline_is_in_time_in_each_round():
    device = Device(10, 8e3, 4e3, 0.5)
    options = {"devices": dict.fromkeys("012", device), "base": alone(), "rounds": 6}
    deadline = run(**options).history[0].simulated_seconds["training"]
    for record in run(deadline=deadline, **options).history:
        assert record.delivered == ["0", "1", "2"]
        assert record.simulated_seconds["training"] == deadline


def test_a_device_that_is_there_over_midnight_does_not_go_then():
    day = 86_400.0
    there = Trace(((0.0, 5.0), (day - 5, day)), repeat=day)
    away = Trace(((day - 1, 2 * day),))  # so that the clock begins a second before midnight
    devices = {c: Device(1, 80e3, 80e3, availability=there) for c in "01"}
    devices["2"] = Device(1, 80e3, 80e3, availability=away)
    (record,) = run(selected=3, devices=devices, base=alone()).history
    assert record.simulated_seconds["waiting"] == day - 1
    assert "0" in record.delivered  # 3 s of training, over midnight


def test_too_few_for_an_evaluation_is_a_note_only_where_there_is_one():
    gone = Device(1, 80e3, 80e3, availability=Trace(((0.0, 5.0),)))

    def notes(base):
        (record,) = run(devices={**DEVICES, "2": gone}, base=base).history
        return [note for note in record.notes if "for an evaluation" in note]

    assert notes(FedAvg()) == ["too few clients are there for an evaluation: there is none"]
    assert notes(alone()) == []


def test_a_client_without_a_device_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="client '2' is not among the devices"):
        run(selected=2, devices={client: DEVICES[client] for client in "01"})


def test_epochs_that_cannot_be_told_are_said_by_their_client(monkeypatch):
    monkeypatch.setattr(timeouts, "RETRY_IN_VAIN", 0.1)

    def epochs(context):
        raise OSError("no settings")

    grid = InProcessGrid(numpy_app.make_app(SummaryMod(epochs=epochs)), 3)
    with pytest.raises(RuntimeError, match=r"epochs\(context\) raised OSError: no settings"):
        run(grid=grid)


@pytest.mark.parametrize("epochs", [-1, 0, float("nan"), 1e30])
def test_a_number_of_epochs_that_cannot_be_is_an_error_that_names_it(epochs, monkeypatch):
    monkeypatch.setattr(timeouts, "RETRY_IN_VAIN", 0.1)
    grid = InProcessGrid(numpy_app.make_app(SummaryMod(epochs=lambda context: epochs)), 3)
    with pytest.raises(RuntimeError, match=r"epochs\(context\) raised ValueError: it returned "):
        run(grid=grid)


def test_a_timeline_is_in_the_order_of_clients():
    def keys(items: Sequence[str]) -> list[str]:
        return sorted(items, key=int)

    least = {"min_train_nodes": 1, "min_available_nodes": 1}
    for record in run(selected=1, rounds=4, base=FedAvg(**least)).history:
        assert len(record.timeline) == 3  # some are evaluated on, and do not train
        assert list(record.timeline) == keys(list(record.timeline))
