"""What base strategies and rules remember is there again after a restart, or refused by name."""

import queue
import random
import sqlite3
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
)

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import Choice, RoundRobin, SelectionRule, SelectionStrategy
from pncs_flower.strategies.errors import UnsavableError

torch = pytest.importorskip("torch")

ROUNDS = 4


class Seen(NamedTuple):
    round: int
    norm: float


class Names(list):
    pass


class Momentum:
    """What a server remembers in an object of its own."""

    __slots__ = ("decay", "steps", "velocity")

    def __init__(self, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.velocity: dict[str, torch.Tensor] = {}

    def step(self, name: str, change: torch.Tensor) -> torch.Tensor:
        before = self.velocity.get(name, torch.zeros_like(change))
        self.velocity[name] = self.decay * before + change
        return self.velocity[name]


def weighted(records: list[Any], key: str, offset: float) -> MetricRecord:
    return MetricRecord({"clients": len(records) + offset})


class Rich(FedAvg):
    """A base strategy whose model depends on memory of many kinds."""

    __slots__ = ("hidden",)

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0, train_metrics_aggr_fn=partial(weighted, offset=0.5))
        self.momentum = Momentum(0.5)
        self.last = deque([0.0], maxlen=3)
        self.met: set[int] = set()
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.log: list[Seen] = []
        self.names = Names()
        self.order: OrderedDict[str, Any] = OrderedDict(first=[self.log])
        self.noise = np.random.default_rng(3)
        self.coin = random.Random(4)
        self.shared = np.zeros(2)
        self.also = {"the same": self.shared}
        self.hidden = 0
        self.temporary = "only before the first round"
        self.on_change = self._note
        self.before: ArrayRecord | None = None

    def _note(self, norm: float) -> None:
        self.last.append(norm)

    def configure_train(self, server_round, arrays, config, grid):
        self.before = arrays
        if hasattr(self, "temporary"):
            del self.temporary
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, list(replies))
        self.hidden += 1
        self.also["the same"] += self.hidden
        self.counts["rounds"] += 1
        self.met.add(server_round % 3)
        self.log.append(Seen(server_round, sum(self.last)))
        self.names.append(str(server_round))
        self.names.longest = max(map(len, self.names))
        factor = (
            sum(self.last) * 0.01
            + self.noise.normal() * 0.1
            + self.coin.random() * 0.1
            + self.shared.sum() * 0.01
            + self.counts["rounds"]
            + len(self.met)
            + sum(seen.norm + seen.round for seen in self.order["first"][0]) * 0.01
            + self.names.longest
            + hasattr(self, "temporary")
        )
        new = {}
        for name, array in arrays.items():
            change = torch.from_numpy(array.numpy() - self.before[name].numpy())
            stepped = self.momentum.step(name, change * (0.05 * factor))
            new[name] = Array((self.before[name].numpy() + stepped.numpy()).astype(np.float32))
        self.on_change(float(abs(new["head.bias"].numpy()).sum()))
        return ArrayRecord(new), metrics


class Charging(FedAvg):
    """Changes the configs that it is given from round to round."""

    def configure_evaluate(self, server_round, arrays, config, grid):
        config["budget"] = config["budget"] * 0.5
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        messages = list(replies)
        super().aggregate_evaluate(server_round, messages)
        return MetricRecord({"left": self.budgets(messages)})

    def budgets(self, messages: list[Any]) -> float:
        return self._last["budget"]

    def _construct_messages(self, record, node_ids, message_type):
        self._last = record["config"]
        return super()._construct_messages(record, node_ids, message_type)


def run(base: Any, rounds: int = ROUNDS, **options: Any):
    strategy = RoundRobin(base, seed=3, **options)
    result = strategy.start(
        InProcessGrid(numpy_app.make_app(summary_mod), 4),
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.5}),
        evaluate_config=ConfigRecord({"budget": 8.0}),
    )
    return strategy, result


BASES = {
    "memory of many kinds": Rich,
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.0),
    "FedYogi": lambda: FedYogi(fraction_evaluate=0.0),
    "momentum": lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
    "adaptive clipping": lambda: DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvgM(server_momentum=0.5), 0.0, 2
    ),
    "evaluation's config": Charging,
}


@pytest.mark.parametrize("base", BASES)
def test_run_goes_on_with_all_that_its_base_remembers(tmp_path, base):
    _, whole = run(BASES[base]())
    for stop in range(1, ROUNDS):
        folder = tmp_path / str(stop)
        run(BASES[base](), stop, checkpoint=folder)
        _, resumed = run(BASES[base](), checkpoint=folder)
        assert resumed.arrays == whole.arrays
        assert resumed.train_metrics_clientapp == whole.train_metrics_clientapp
        assert resumed.evaluate_metrics_clientapp == whole.evaluate_metrics_clientapp


def test_types_and_what_is_one_object_are_as_before(tmp_path):
    run(Rich(), 3, checkpoint=tmp_path)
    base = Rich()
    run(base, 3, checkpoint=tmp_path)
    assert type(base.names) is Names
    assert type(base.log[0]) is Seen
    assert base.last.maxlen == 3
    assert base.order["first"][0] is base.log
    assert base.also["the same"] is base.shared
    assert base.on_change.__self__ is base
    assert not hasattr(base, "temporary")


class Sharing(FedAvg):
    """Has one object in two attributes, of which one alone changes at first."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        seen: list[int] = []
        self.kept = {"seen": seen}
        self.counted = [seen, 0]

    def aggregate_train(self, server_round, replies):
        self.counted[1] += 1
        if server_round > 1:
            self.counted[0].append(server_round)
        return super().aggregate_train(server_round, replies)


def test_object_in_an_attribute_that_has_not_changed_and_in_one_that_has_is_one_again(tmp_path):
    run(Sharing(), 1, checkpoint=tmp_path)
    base = Sharing()
    run(base, 3, checkpoint=tmp_path)
    assert base.kept["seen"] is base.counted[0]
    assert base.kept["seen"] == [2, 3]


def with_attribute(value: Any) -> FedAvg:
    base = FedAvg(fraction_evaluate=0.0)
    base.memory = value
    return base


class Helper:
    def __init__(self, value: Any) -> None:
        self.value = value


UNSAVABLE = {
    "queue": lambda: queue.SimpleQueue(),
    "generator": lambda: (n for n in range(3)),
    "database": lambda: sqlite3.connect(":memory:"),
    "array of objects": lambda: np.array([None]),
    "masked array": lambda: np.ma.masked_array([1.0], mask=[True]),
    "inside": lambda: {"a": [Helper(iter([1]))]},
    "optimizer": lambda: torch.optim.SGD([torch.ones(1)], lr=0.1),
}


def trains(grid: InProcessGrid) -> int:
    return sum(numpy_app.times_trained(context) for context in grid.contexts.values())


@pytest.mark.parametrize("name", UNSAVABLE)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_checkpoint_cannot_hold_is_refused_before_the_first_round(tmp_path, name, wrapped):
    base: Any = with_attribute(UNSAVABLE[name]())
    if wrapped:
        base = DifferentialPrivacyServerSideAdaptiveClipping(base, 0.1, 2)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy = RoundRobin(base, checkpoint=tmp_path)
    with pytest.raises(UnsavableError, match=r"FedAvg\.memory.*not_in_checkpoint = \('memory',\)"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert trains(grid) == 0
    assert strategy.history == []


def test_arrays_of_two_attributes_that_share_memory_are_refused_before_the_first_round(tmp_path):
    base: Any = with_attribute(np.zeros(4))
    base.part = base.memory[1:]
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy = RoundRobin(base, checkpoint=tmp_path)
    with pytest.raises(UnsavableError, match=r"FedAvg\.memory and FedAvg\.part share memory"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert trains(grid) == 0


@pytest.mark.parametrize("name", UNSAVABLE)
def test_what_a_checkpoint_cannot_hold_is_fine_without_one_or_if_it_is_named(tmp_path, name):
    run(with_attribute(UNSAVABLE[name]()), 2)
    for rounds in (2, 3):
        base = with_attribute(UNSAVABLE[name]())
        base.not_in_checkpoint = ("memory",)
        run(base, rounds, checkpoint=tmp_path)


def test_what_is_named_as_not_in_the_checkpoint_stays_as_it_was_made(tmp_path):
    for rounds, place in ((2, "a"), (3, "b")):
        base = with_attribute([place])
        base.not_in_checkpoint = ("memory",)
        base.link = {"to": base.memory}
        run(base, rounds, checkpoint=tmp_path)
        assert base.memory == [place]
        assert base.link["to"] is base.memory


def test_single_name_in_place_of_names_is_refused(tmp_path):
    base = with_attribute(1)
    base.not_in_checkpoint = "memory"
    with pytest.raises(TypeError, match=r"want names: \('memory',\)"):
        run(base, 1, checkpoint=tmp_path)


class Later(FedAvg):
    """Comes to hold something in one round."""

    def __init__(self, number: int, make: Callable[[], Any]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.number, self.make = number, make
        self.found: list[Any] = []

    def aggregate_train(self, server_round, replies):
        if server_round == self.number:
            self.found.append({"it": self.make()})
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("name", UNSAVABLE)
def test_what_turns_up_later_is_an_error_that_names_it(tmp_path, name):
    path = tmp_path / "history.jsonl"
    options = {"checkpoint": tmp_path / "saved", "history_path": path}
    with pytest.raises(UnsavableError, match=r"Later\.found\[0\]\['it'\]"):
        run(Later(2, UNSAVABLE[name]), **options)
    assert [line.count("Later.found[0]['it']") for line in path.read_text().splitlines()] == [0, 1]


def test_what_turns_up_in_the_last_round_costs_its_checkpoint_but_not_the_model(tmp_path):
    _, whole = run(Later(0, threading.Lock), 2)
    strategy, result = run(Later(2, threading.Lock), 2, checkpoint=tmp_path)
    assert result.arrays == whole.arrays
    note = strategy.history[-1].notes[-1]
    assert "no checkpoint of this round was written: Later.found" in note
    assert "next round" not in note


class Counting(SelectionRule):
    """A rule that remembers in itself what it should keep in its state."""

    def __init__(self) -> None:
        self.num_selected = 2
        self.turns = deque(["0", "1", "2", "3"])

    def __repr__(self) -> str:
        return "Counting()"

    def select(self, state, now, summaries):
        self.turns.rotate(1)
        return Choice(tuple(list(self.turns)[:2]))


class Remembering(SelectionRule):
    """A rule with a state that cannot be saved."""

    def __init__(self) -> None:
        self.num_selected = 2

    def initial_state(self):
        return {"seen": iter(())}

    def select(self, state, now, summaries):
        return Choice(now.available[:2])


def test_state_of_a_rule_that_cannot_be_saved_is_refused_before_the_first_round(tmp_path):
    strategy = SelectionStrategy(FedAvg(), Remembering(), checkpoint=tmp_path)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    with pytest.raises(UnsavableError, match=r"the state of the rule\['rule'\]\['seen'\]"):
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=2)
    assert trains(grid) == 0


def test_what_a_rule_remembers_in_itself_is_there_again(tmp_path):
    def chosen(rounds: int, **options: Any) -> list[list[str]]:
        strategy = SelectionStrategy(FedAvg(fraction_evaluate=0.0), Counting(), **options)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
        return [record.chosen for record in strategy.history]

    chosen(2, checkpoint=tmp_path)
    assert chosen(4, checkpoint=tmp_path) == chosen(4)
