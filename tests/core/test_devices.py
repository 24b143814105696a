"""Simulated devices: durations by hand, distributions against theirs, and when who is there."""

import math

import numpy as np
import pytest

from pncs_flower.devices import (
    PRESETS,
    Always,
    Chance,
    Device,
    DrawnDevices,
    ListedDevices,
    LogNormal,
    Periods,
    Trace,
    Uniform,
    as_fleet,
    daily,
)
from pncs_flower.devices.timing import Task, time_tasks, waited


def test_span_by_hand():
    # 2,000 bytes at 8,000 bit/s are 2 s, 30 examples at 20 a second 1.5 s, 500 bytes at 4,000 1 s.
    device = Device(20, download=8000, upload=4000, latency=0.25)
    assert device.span(10.0, 2000, 30, 500) == (10.0, 12.25, 13.75, 14.75)


def test_tasks_of_one_client_follow_one_another_and_others_do_not_wait():
    devices = {"0": Device(10, 8000, 8000), "1": Device(5, 8000, 8000)}
    tasks = [Task("0", 1000, 10, 0), Task("1", 1000, 10, 0), Task("0", 0, 20, 1000)]
    outcomes = time_tasks(tasks, devices.__getitem__, 0, 100.0)
    assert [outcome.span for outcome in outcomes] == [
        (0, 1, 2, 2),
        (0, 1, 3, 3),
        (2, 2, 4, 5),
    ]
    assert outcomes[2].span.after(100.0) == (102, 102, 104, 105)
    assert waited(outcomes) == 5
    assert waited([]) == 0


def test_the_same_work_is_in_time_whatever_the_clock_says():
    device = Device(10, 8000, 8000, latency=0.1)
    tasks = [Task("0", 100, 7, 100)]  # .1 + .1 + .7 + .1
    deadline = device.span(0.0, 100, 7, 100).sent
    for start in (0.0, 0.3, 12.2589, 1e6 / 3, 1e9 / 7):
        (outcome,) = time_tasks(tasks, lambda c: device, 0, start, deadline=deadline)
        assert outcome.problem == ""
        assert waited([outcome], deadline) == deadline


def test_who_is_done_at_the_deadline_is_in_time_and_who_is_later_is_not():
    device = Device(10, 8000, 8000)
    tasks = [Task("0", 0, 50, 0), Task("1", 0, 51, 0)]
    first, second = time_tasks(tasks, lambda c: device, 0, 0.0, deadline=5.0)
    assert (first.problem, first.late) == ("", False)
    assert second.late
    assert "5.100 s" in second.problem
    assert "deadline of 5 s" in second.problem
    assert waited([first, second], 5.0) == 5.0


def test_a_device_that_goes_does_none_of_the_rest():
    device = Device(10, 8000, 8000, availability=Trace(((0.0, 3.0),)))
    tasks = [Task("0", 0, 20, 0), Task("0", 0, 20, 0), Task("0", 0, 1, 0)]
    done, going, gone = time_tasks(tasks, lambda c: device, 0, 0.0)
    assert done.problem == ""
    assert "gone after 3.000 s" in going.problem
    assert going.span == (2, 2, 3, 3)
    assert gone.problem == going.problem
    assert gone.span == (3, 3, 3, 3)
    assert not going.late
    (before,) = time_tasks(tasks[:1], lambda c: device, 0, 7.0)
    assert before.problem
    assert before.span == (0, 0, 0, 0)


def test_dropouts_are_as_frequent_as_they_are_to_be_and_follow_from_the_names():
    device = Device(10, 8000, 8000, dropout=0.3)

    def run(seed: int, number: int) -> list[str]:
        tasks = [Task(str(k), 100, 10, 100, (number, "training")) for k in range(2000)]
        outcomes = time_tasks(tasks, lambda c: device, seed, 0.0)
        for outcome in outcomes:
            assert 0 <= outcome.span.sent <= 1.2 + 1e-9
        return [outcome.problem for outcome in outcomes]

    first = run(0, 1)
    # Standard deviation of the share: sqrt(.3 * .7 / 2000) = .0102
    assert abs(np.mean([bool(problem) for problem in first]) - 0.3) < 0.035
    assert run(0, 1) == first
    assert run(0, 2) != first
    assert run(1, 1) != first


def test_whether_a_device_breaks_off_is_drawn_anew_each_time():
    device = Device(10, 8000, 8000, dropout=0.5)
    second = 0
    for k in range(1000):
        task = Task(str(k), 100, 10, 100, (1, "training"))
        outcomes = time_tasks([task, task], lambda c: device, 0, 0.0)
        second += outcomes[1].problem != "" and outcomes[0].problem == ""
    assert second == pytest.approx(250, abs=45)  # its standard deviation is 13.7


def test_without_dropouts_nobody_breaks_off_and_with_certainty_everybody_does():
    tasks = [Task(str(k), 100, 10, 100) for k in range(50)]
    never = time_tasks(tasks, lambda c: Device(1, 1, 1, dropout=0), 0, 0.0)
    always = time_tasks(tasks, lambda c: Device(1, 1, 1, dropout=1), 0, 0.0)
    assert not any(outcome.problem for outcome in never)
    assert all(outcome.problem for outcome in always)


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ({"examples_per_second": 0}, ValueError, "examples_per_second is 0"),
        ({"download": -1.0}, ValueError, "download is -1.0"),
        ({"upload": math.nan}, ValueError, "upload is nan"),
        ({"latency": math.inf}, ValueError, "latency is inf"),
        ({"latency": True}, TypeError, "latency is True"),
        ({"download": 10**5000}, ValueError, "download is above 1e\\+15"),
        ({"latency": 1e300}, ValueError, "latency is above 1e\\+15"),
        ({"examples_per_second": 5e-324}, ValueError, "must be at least 1e-15"),
        ({"upload": "fast"}, TypeError, "upload is 'fast'"),
        ({"dropout": 1.5}, ValueError, "at most 1"),
        ({"availability": 0.5}, TypeError, "availability is 0.5"),
    ],
)
def test_bad_devices_are_refused(what, error, words):
    with pytest.raises(error, match=words):
        Device(**{"examples_per_second": 1, "download": 1, "upload": 1, **what})


def test_log_normal_has_its_median_and_spread():
    fleet = DrawnDevices(LogNormal(50.0, 0.8), 1e6, Uniform(1e6, 3e6))
    devices = [fleet.device(str(k), seed=3) for k in range(4000)]
    logs = np.log([device.examples_per_second for device in devices])
    assert np.median(logs) == pytest.approx(math.log(50), abs=0.06)  # 3 standard errors
    assert logs.std() == pytest.approx(0.8, abs=0.03)
    uploads = np.array([device.upload for device in devices])
    assert 1e6 <= uploads.min() <= uploads.max() <= 3e6
    assert uploads.mean() == pytest.approx(2e6, rel=0.02)
    assert {device.download for device in devices} == {1e6}


def test_devices_follow_from_seed_and_client_alone():
    phones = PRESETS["phones"]
    assert phones.device("7", 1) == phones.device("7", 1)
    assert phones.device("7", 1) != phones.device("7", 2)
    assert phones.device("7", 1) != phones.device("8", 1)
    slower = DrawnDevices(LogNormal(100.0, 0.8), 1.0, LogNormal(2e6, 0.8))
    # Each quantity has a stream of its own.
    assert slower.device("7", 1).upload == phones.device("7", 1).upload


def test_presets_are_what_their_documentation_says():
    phones = [PRESETS["phones"].device(str(k)) for k in range(4000)]
    assert np.median([device.download for device in phones]) == pytest.approx(6e6, rel=0.06)
    assert np.median([device.upload for device in phones]) == pytest.approx(2e6, rel=0.06)
    there = [
        np.mean([device.availability.is_there(hour * 3600) for device in phones])
        for hour in range(24)
    ]
    assert max(there) / min(there) == pytest.approx(4.4, rel=0.1)
    alike = PRESETS["uniform"]
    assert alike.device("1") == alike.device("2", seed=9)
    for name in ("cross-silo", "uniform"):
        device = PRESETS[name].device("1")
        assert device.availability == Always()
        assert device.dropout == 0


def test_periods_by_hand():
    there = Periods(on=4.0, off=6.0, offset=3.0)
    seen = [there.is_there(second) for second in range(14)]
    assert seen == [False] * 3 + [True] * 4 + [False] * 6 + [True]
    assert there.leaves(5.0) == 7.0
    assert there.leaves(8.0) == 8.0  # gone already
    assert there.returns(8.0) == 13.0
    assert there.returns(1.0) == 3.0
    assert Periods(4.0, 0.0).leaves(99.0) == math.inf
    assert Periods(4.0, 0.0, 1e-20).is_there(0.0)  # whatever the rounding


def test_daily_rhythm_goes_over_midnight():
    there = daily(22, 8)
    assert [there.is_there(hour * 3600) for hour in (0, 5.9, 6, 12, 21.9, 22, 23, 24)] == [
        *(True, True, False, False, False, True, True, True)
    ]
    assert daily(3, 24) == Always()


def test_trace_by_hand():
    once = Trace(((2.0, 3.0), (5.0, 8.0)))
    assert [once.is_there(second) for second in (0, 2, 3, 5, 7.9, 8)] == [
        *(False, True, False, True, True, False)
    ]
    assert (once.leaves(6.0), once.leaves(3.5)) == (8.0, 3.5)
    assert [once.returns(second) for second in (0.0, 4.0, 9.0)] == [2.0, 5.0, math.inf]
    again = Trace(once.intervals, repeat=10.0)
    assert again.is_there(12.5)
    assert not again.is_there(14.0)
    assert (again.leaves(26.0), again.returns(9.0)) == (28.0, 12.0)
    assert Trace(((1.0, math.inf),)).leaves(5.0) == math.inf


def test_intervals_without_a_gap_between_them_are_one():
    # There from 22 to 7 o'clock: over midnight nobody goes.
    nights = Trace(((0.0, 7 * 3600), (22 * 3600, 86_400.0)), repeat=86_400.0)
    assert nights.leaves(23 * 3600) == 31 * 3600
    assert nights.leaves(3600) == 7 * 3600
    assert nights.leaves(47 * 3600) == 55 * 3600
    assert nights.leaves(12 * 3600) == 12 * 3600
    assert Trace(((0.0, 5.0), (5.0, 10.0), (11.0, 12.0))).leaves(1.0) == 10.0
    assert Trace(((0.0, 5.0), (5.0, math.inf))).leaves(1.0) == math.inf
    assert Trace(((0.0, 10.0),), repeat=10.0).leaves(7.0) == math.inf
    assert Trace(((0.0, 4.0), (4.0, 10.0)), repeat=10.0).leaves(37.0) == math.inf
    assert Trace(((0.0, 9.0),), repeat=10.0).leaves(37.0) == 39.0


def test_chance_is_of_the_round_and_not_of_the_time():
    there = Chance(0.25)
    seen = [there.is_there(0.0, 0, number, "client") for number in range(4000)]
    assert np.mean(seen) == pytest.approx(0.25, abs=0.03)
    assert there.is_there(5.0, 0, 1, "client") == there.is_there(9e9, 0, 1, "client")
    assert there.returns(10.0) == 70.0
    assert Chance(0.0).returns(10.0) == math.inf


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Periods(0, 1), "on is 0"),
        (lambda: Periods(1, -1), "off is -1"),
        (lambda: Chance(1.1), "at most 1"),
        (lambda: Chance(math.nan), "probability is nan"),
        (lambda: daily(3, 0), "hours is 0"),
        (lambda: Trace(()), "empty"),
        (lambda: Trace(((3.0, 2.0),)), "comes at 3 s and goes at 2 s"),
        (lambda: Trace(((0.0, 5.0), (4.0, 6.0))), "has not gone before 5 s"),
        (lambda: Trace(((0.0, 5.0),), repeat=4.0), "repeat is 4 s"),
        (lambda: LogNormal(0.0, 1.0), "median is 0"),
        (lambda: LogNormal(1.0, -1.0), "sigma is -1"),
        (lambda: Uniform(3.0, 2.0), "high is 2"),
        (lambda: DrawnDevices(0.0, 1.0, 1.0), "examples_per_second is 0"),
        (lambda: ListedDevices({}), "empty"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_devices_may_be():
    listed = as_fleet({"a": Device(1, 1, 1)})
    assert listed.device("a") == Device(1, 1, 1)
    assert as_fleet(listed) is listed
    assert as_fleet("uniform") is PRESETS["uniform"]
    with pytest.raises(ValueError, match=r"client 'b' is not among the devices .* which has a"):
        listed.device("b")
    with pytest.raises(ValueError, match="did you mean 'phones'"):
        as_fleet("phone")
    with pytest.raises(TypeError, match="devices is 3"):
        as_fleet(3)
    with pytest.raises(TypeError, match="must have text, a client's key, and a Device"):
        as_fleet({"a": 3})
    with pytest.raises(TypeError, match="client's key"):
        as_fleet({1: Device(1, 1, 1)})


def test_listed_devices_show_when_they_are_others():
    first, second = (as_fleet({"a": Device(speed, 1, 1)}) for speed in (1, 2))
    assert repr(first) != repr(second)
    assert repr(first) == repr(as_fleet({"a": Device(1, 1, 1)}))
