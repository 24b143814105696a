"""What clients say of themselves reaches who chooses, and what cannot be said is refused."""

import re
from typing import Any

import numpy as np
import pytest
from apps import legacy_app, numpy_app
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.clients.legacy import SummaryClient
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    Choice,
    SelectionError,
    SelectionRule,
    SelectionStrategy,
    timeouts,
)
from pncs_flower.strategies.options import takes_tags
from pncs_flower.tags import check_tags


class Seeing(SelectionRule):
    """Takes the longest waiting, and keeps what it was told of all."""

    def __init__(self) -> None:
        self.num_selected = 2
        self.seen: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return "Seeing()"

    def select(self, state: Any, now: Any, summaries: Any) -> Choice:
        self.seen.append({client: dict(tags) for client, tags in now.tags.items()})
        return Choice(now.available[:2])


def run(*mods: Any, rounds: int = 2, **options: Any) -> tuple[Seeing, SelectionStrategy]:
    rule = Seeing()
    strategy = SelectionStrategy(FedAvg(), rule, **options)
    grid = InProcessGrid(numpy_app.make_app(*mods), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return rule, strategy


def of(context: Any) -> dict[str, Any]:
    client = int(context.node_config["partition-id"])
    tags = {"site": f"Zürich {client}", "priority": client, "share": 0.5, "open": client > 1}
    return tags if client else {}


def test_a_rule_sees_what_clients_say_and_nothing_else_of_them() -> None:
    rule, _ = run(SummaryMod(tags=of))
    assert list(rule.seen[0]) == ["1", "2", "3"]
    assert rule.seen[0]["2"] == {"site": "Zürich 2", "priority": 2, "share": 0.5, "open": True}
    assert rule.seen[1] == rule.seen[0]
    assert run(summary_mod)[0].seen == [{}, {}]


def test_they_cost_no_message_and_change_no_choice() -> None:
    def play(**given: Any) -> PNCS:
        strategy = PNCS(FedAvg(), num_selected=2, queue_length=2)
        grid = InProcessGrid(numpy_app.make_app(SummaryMod(**given)), 4)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
        return strategy

    plain, tagged = play(), play(tags=of)
    assert [r.chosen for r in plain.history] == [r.chosen for r in tagged.history]
    assert [r.bytes_down for r in plain.history] == [r.bytes_down for r in tagged.history]


def test_a_run_that_goes_on_is_told_again(tmp_path: Any) -> None:
    run(SummaryMod(tags=of), rounds=1, checkpoint=tmp_path)
    rule, _ = run(SummaryMod(tags=of), rounds=3, checkpoint=tmp_path)
    assert [list(seen) for seen in rule.seen[-2:]] == [["1", "2", "3"]] * 2


def test_clients_of_older_servers_say_it_too() -> None:
    mod = SummaryMod(tags=lambda context: {"site": "Ås"})
    client = legacy_app.client_fn_app.TargetClient(0).to_client()
    wrapped = SummaryClient(client, name="a", mod=mod)
    content = wrapped._answer("train", {"phase": "introduce"}, {}, {})
    assert content.config_records[MARKER]["tag/site"] == "Ås"


BAD: list[tuple[Any, str]] = [
    ({"site": "x" * 201}, "text of at most 200 letters"),
    ({"site": "a\nb"}, r"'a\\nb', but must be .* without control characters"),
    ({"site": "\ud800"}, "control characters"),
    ({"n": float("nan")}, "'n' is nan"),
    ({"n": float("inf")}, "'n' is inf"),
    ({"n": 2**63}, "64 bits"),
    ({"n": [1, 2]}, r"'n' is \[1, 2\]"),
    ({"n": b"x"}, "'n' is b'x'"),
    ({"n": None}, "'n' is None"),
    ({"": 1}, "the name of its tag ''"),
    ({"a" * 51: 1}, "1 to 50 letters"),
    ({"a\tb": 1}, "control characters"),
    ({3: 1}, "the name of its tag 3"),
    ({str(n): n for n in range(21)}, "21 tags, but may have 20"),
    (["site"], "list, but must be a dict"),
    (None, "NoneType, but must be a dict"),
]


@pytest.mark.parametrize(("bad", "named"), BAD)
def test_what_cannot_be_said_is_refused(bad: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_tags(bad)


@pytest.mark.parametrize("value", [True, 0, -(2**63), 0.25, "", "x" * 200])
def test_what_can_be_said_is_kept(value: Any) -> None:
    (kept,) = check_tags({"it": value}).values()
    assert (kept, type(kept)) == (value, type(value))


@pytest.mark.parametrize("value", [np.int64(3), np.float32(1.5), np.bool_(True), np.str_("x")])
def test_numbers_of_numpy_are_kept_as_those_of_python(value: Any) -> None:
    (kept,) = check_tags({"it": value}).values()
    assert (kept, type(kept)) == (value, type(value.item()))


def test_a_client_that_says_too_much_takes_no_part_and_says_why() -> None:
    def bad(context: Any) -> dict[str, Any]:
        return {"site": ["a"]} if context.node_config["partition-id"] == 3 else {"site": "b"}

    rule, strategy = run(SummaryMod(tags=bad))
    assert list(rule.seen[0]) == strategy.history[0].clients == ["0", "1", "2"]
    (reason,) = strategy.history[0].rejected.values()
    assert reason.startswith("introduction: tags(context) raised ValueError: its tag 'site' is")


@pytest.mark.parametrize(
    "forged", [{"tag/site": ["a"] * 9}, {"tag/": 1}, {f"tag/{n}": 1 for n in range(5000)}]
)
def test_what_a_client_forges_is_refused_by_the_server(forged: dict[str, Any]) -> None:
    def forges(message: Message, context: Any, call_next: Any) -> Message:
        marker = message.content.config_records.get(MARKER, ConfigRecord())
        if marker.get("phase") == "introduce" and context.node_config["partition-id"] == 3:
            answer = ConfigRecord({"key": "3", **forged})
            return Message(RecordDict({MARKER: answer}), reply_to=message)
        reply: Message = call_next(message, context)
        return reply

    _, strategy = run(forges, SummaryMod(tags=of))
    assert strategy.history[0].clients == ["0", "1", "2"]
    (reason,) = strategy.history[0].rejected.values()
    assert "tag" in reason
    assert len(reason) < 400


def test_an_error_in_it_is_told_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "RETRY_IN_VAIN", 0.1)

    def broken(context: Any) -> dict[str, Any]:
        return {"site": context.node_config["site"]}

    with pytest.raises(SelectionError, match=r"tags\(context\) raised KeyError: 'site'"):
        run(SummaryMod(tags=broken))


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"tags is .*, but must be a function or None"):
        SummaryMod(tags={"site": "a"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("eligible", "expected"),
    [
        (None, False),
        (lambda key: True, False),
        (lambda key, tags: True, True),
        (lambda key, tags=None: True, False),
        (lambda *args: True, False),
        (re.compile("a").match, False),
        ({"a"}.__contains__, False),
        (bool, False),
    ],
)
def test_tags_are_given_to_who_must_have_them(eligible: Any, expected: bool) -> None:
    assert takes_tags(eligible) is expected


def test_eligible_by_tags_is_given_those_of_clients_that_say_nothing() -> None:
    _, strategy = run(SummaryMod(tags=of), eligible=lambda key, tags: not tags.get("open"))
    assert strategy.history[0].clients == ["0", "1"]


def test_an_error_in_eligible_names_the_client() -> None:
    with pytest.raises(SelectionError, match=r"eligible\('0'\) raised KeyError: 'site'"):
        run(SummaryMod(tags=of), eligible=lambda key, tags: tags["site"])
