"""A part of a sweep: the same runs, and nothing said of what is left out."""

import re

import pytest

from pncs_flower.simulations.config import APP_DIRECTORY
from pncs_flower.simulations.sweep.file import part_of, read_sweep
from pncs_flower.simulations.sweep.plan import Best, Report
from pncs_flower.simulations.sweep.sweep import Sweep


def experiment(name: str) -> Sweep:
    return read_sweep(APP_DIRECTORY / "experiments" / f"{name}.toml")


def test_a_part_of_a_sweep_has_the_runs_of_the_whole() -> None:
    whole = experiment("table2")
    wanted = ("pncs", "pncs L=0", "uniform")
    part = part_of(whole, ["shards=2", "rules=uniform, pncs,pncs L=0"])
    assert part.rules == wanted
    assert part.title == f"{whole.title}; only shards 2; only rules pncs, pncs L=0, uniform"
    assert part.cells() == [
        cell for cell in whole.cells() if cell.line in wanted and "shards 2" in cell.panel
    ]


def test_lengths_of_the_queue_keep_their_lines() -> None:
    whole = experiment("figure-queue")
    part = part_of(whole, ["queue=0,4"])
    assert part.cells() == [c for c in whole.cells() if c.line in ("pncs L=0", "pncs L=4")]
    assert (part.report.reference, part.report.claims) == ("pncs L=4", ())


def test_a_part_without_some_rules_leaves_out_what_is_said_of_them() -> None:
    whole = experiment("table2")
    assert part_of(whole, ["rules=pncs,uniform"]).report.claims == ()
    without_pncs = part_of(whole, ["rules=uniform,all"]).report
    assert (without_pncs.reference, without_pncs.claims) == ("", ())
    named = ",".join([whole.report.reference, *whole.report.claims[0].against])
    assert part_of(whole, [f"rules={named}"]).report == whole.report


def test_part_of_a_sweep_that_names_no_reference_keeps_the_wholes() -> None:
    claim = Best(text="", kind="best", against=("uniform",))
    whole = Sweep("a sweep", ("pncs", "round-robin", "uniform"), report=Report(claims=(claim,)))
    kept = part_of(whole, ["rules=pncs,uniform"])
    assert (kept.reference, kept.report.claims) == ("pncs", (claim,))
    without = part_of(whole, ["rules=round-robin,uniform"])
    assert (without.reference, without.report.claims) == ("round-robin", ())


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("seeds=1", "--only seeds=1: there is no axis 'seeds': --seeds says how many there are"),
        ("shrads=1", "--only shrads=1: there is no axis 'shrads': did you mean 'shards'?"),
        ("x=1", "--only x=1: there is no axis 'x': there are rules, shards, dirichlet, layers, "),
        ("shards", "--only shards must be AXIS=VALUES, such as shards=1,2; the axes are rules, "),
        ("", "--only  must be AXIS=VALUES"),
        ("shards=3,1", "--only shards=3,1: of shards there is no '3': there are 1, 2, 5"),
        ("devices=a", "--only devices=a: of devices there is no 'a': there is none"),
        ("rules=uniform,unifrom", "of rules there is no 'unifrom': did you mean 'uniform'?"),
        ("rules=", "--only rules=: of rules the sweep has pncs, "),
        ("shards=", "--only shards=: shards and dirichlet are both empty"),
    ],
)
def test_a_part_that_is_not_there_is_refused(only: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        part_of(experiment("table2"), [only])


def test_an_axis_is_given_once() -> None:
    with pytest.raises(ValueError, match="--only shards is given twice"):
        part_of(experiment("table2"), ["shards=1", "shards=2"])


def test_one_length_of_the_queue_is_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="--only queue=4: keep two of 0, 2, 4, 6, 8 or more"):
        part_of(experiment("figure-queue"), ["queue=4"])


def test_a_part_may_have_one_kind_of_partition_alone() -> None:
    part = part_of(experiment("rules-100"), ["shards="])
    assert {cell.panel.split(",")[0] for cell in part.cells()} == {"dirichlet 0.1"}


def test_values_of_a_rules_parameter_are_an_axis() -> None:
    whole = Sweep(
        "a sweep", ("pncs", "uniform"), parameters={"rule.p": (2, 4.0), "rule.per_layer": (True,)}
    )
    part = part_of(whole, ["rule.p=4", "rule.per_layer=true"])
    assert part.title == "a sweep; only rule.p 4; only rule.per_layer true"
    lines = ("pncs p=4 per_layer=true", "uniform")
    assert part.cells() == [cell for cell in whole.cells() if cell.line in lines]
    with pytest.raises(
        ValueError, match=r"no axis 'values': there are .*queue, devices, rule.p, rule.per_layer"
    ):
        part_of(whole, ["values=2"])
    with pytest.raises(ValueError, match=r"of rule.p there is no '3': there are 2, 4"):
        part_of(whole, ["rule.p=3"])
    with pytest.raises(ValueError, match=r"--only rule.p=: of rule.p the sweep has 2, 4"):
        part_of(whole, ["rule.p="])


def test_a_name_with_a_comma_in_it_is_named_as_it_stands() -> None:
    own = {"pncs, rested": {"strategy": "pncs", "rest-rounds": 4}}
    whole = Sweep("a sweep", ("pncs", "uniform", "pncs, rested"), rule=own)
    for text in ("pncs, rested,pncs", "pncs; pncs, rested"):
        part = part_of(whole, [f"rules={text}"])
        assert part.rules == ("pncs", "pncs, rested")
        assert part.title == "a sweep; only rules pncs; pncs, rested"
    assert part_of(whole, ["rules=pncs"]).rules == ("pncs",)
    with pytest.raises(ValueError, match="no 'oort': there are pncs; uniform; pncs, rested"):
        part_of(whole, ["rules=pncs,oort"])
