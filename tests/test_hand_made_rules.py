"""The rules of the guide to rules made by hand choose what it says, on real clients."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from apps import numpy_app
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.fairness import Participation
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, RoundRobin, SelectionStrategy

DOCS = Path(__file__).resolve().parent.parent / "docs"
SITES = ("oslo", "rome", "lima")  # of clients 0, 3, 6, ...; 1, 4, ...; 2, 5, ...


def block(name: str, page: str = "hand-made-rules.md") -> str:
    pattern = rf"^```python\n# --- {re.escape(name)} ---\n(.*?)^```"
    (text,) = re.findall(pattern, (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    return text


def rules() -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(block("hand_made.py"), namespace)
    return namespace


def tags(context: Any) -> dict[str, Any]:
    client = int(context.node_config["partition-id"])
    return {"site": SITES[client % 3], "priority": 2 if client == 5 else 1}


def run(strategy: SelectionStrategy, rounds: int = 6, mod: Any = None) -> list[list[str]]:
    grid = InProcessGrid(numpy_app.make_app(mod or SummaryMod(tags=tags)), 9)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return [record.chosen for record in strategy.history]


def strategy(rule: Any, **options: Any) -> SelectionStrategy:
    return SelectionStrategy(FedAvg(), rule, **options)


def sites(chosen: list[str]) -> Counter[str]:
    return Counter(SITES[int(client) % 3] for client in chosen)


@pytest.mark.parametrize("name", ["AtMost", "SitesInTurn", "ByPriority", "Pinned"])
def test_each_rule_is_ten_lines(name: str) -> None:
    body = block("hand_made.py").partition(f"class {name}(")[2].partition("@dataclass")[0]
    assert len([line for line in body.splitlines()[2:] if line.strip()]) <= 10


@pytest.mark.parametrize("most", [1, 2])
def test_at_most_so_many_are_of_a_site(most: int) -> None:
    chosen = run(strategy(rules()["AtMost"](num_selected=3, most=most)))
    assert all(max(sites(each).values()) <= most for each in chosen)
    assert {client for each in chosen for client in each} == set(map(str, range(9)))


def test_others_follow_where_sites_are_too_few() -> None:
    chosen = run(strategy(rules()["AtMost"](num_selected=5, most=1)), rounds=2)
    assert [len(each) for each in chosen] == [5, 5]
    assert all(len(sites(each)) == 3 for each in chosen)


def test_sites_take_turns() -> None:
    chosen = run(strategy(rules()["SitesInTurn"](num_selected=3)))
    assert [list(sites(each)) for each in chosen] == 2 * [["lima"], ["oslo"], ["rome"]]


def test_priority_goes_first_and_the_queue_lets_others_have_a_turn() -> None:
    rule = rules()["ByPriority"](num_selected=3)
    assert all("5" in each for each in run(strategy(rule)))
    resting = run(strategy(rule, queue_length=6))
    assert ["5" in each for each in resting] == 2 * [True, False, False]


def test_pinned_are_always_there_and_others_beside_them() -> None:
    rule = rules()["Pinned"](num_selected=4, pinned=("0", "7"))
    chosen = run(strategy(rule), mod=summary_mod)
    assert all({"0", "7"} <= set(each) for each in chosen)
    others = Participation(str(k) for k in range(9) if k not in (0, 7))
    for each in chosen:
        others.add(set(each) - {"0", "7"})
    assert (others.never, others.longest_wait) == (0, 3)


def test_who_may_take_part_is_told_by_key_or_by_tags() -> None:
    made: list[SelectionStrategy] = []

    def keep(*args: Any, **options: Any) -> None:
        made.append(PNCS(*args, **options))

    exec(block("eligible.py"), {"PNCS": keep, "FedAvg": FedAvg})
    by_key, by_tags = (each.options.eligible for each in made)
    assert by_key is not None
    assert by_tags is not None
    assert (by_key("hospital-3"), by_key("3")) == (True, False)
    of_lima = RoundRobin(FedAvg(), num_selected=2, eligible=lambda key, own: own["site"] == "lima")
    assert {client for each in run(of_lima) for client in each} == {"2", "5", "8"}
    assert of_lima.history[0].clients == ["2", "5", "8"]


def test_strategies_are_made_as_shown() -> None:
    exec(block("server.py"), {**rules(), "FedAvg": FedAvg, "SelectionStrategy": SelectionStrategy})


def test_the_client_of_the_guide_says_where_it_is() -> None:
    namespace: dict[str, Any] = {}
    exec(block("client_app.py"), namespace)
    app = namespace["app"]
    app.train()(lambda message, context: numpy_app.train(message, context))
    app.evaluate()(lambda message, context: numpy_app.evaluate(message, context))

    def with_site(message: Any, context: Any) -> Any:  # as a SuperNode is started
        client = int(context.node_config["partition-id"])
        context.node_config = {**context.node_config, "site": SITES[client % 3]}
        return app(message, context)

    rule = rules()["SitesInTurn"](num_selected=3)
    strategy_ = strategy(rule)
    grid = InProcessGrid(with_site, 9)  # type: ignore[arg-type]
    strategy_.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert [list(sites(r.chosen)) for r in strategy_.history] == [["lima"], ["oslo"], ["rome"]]


def test_turns_are_counted_and_rounds_logged_as_shown(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"PNCS": RoundRobin, "FedAvg": FedAvg}
    exec(block("log.py", "who-is-served.md"), namespace)
    chosen = run(namespace["strategy"], rounds=3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"{n} {chosen[n - 1]} ") for n, line in enumerate(lines, 1)] == [
        True
    ] * 3
    exec(block("turns.py", "who-is-served.md"), namespace)
    assert capsys.readouterr().out.startswith("3 3 0.33")  # 6 of 9 had one turn
