"""A client that fails steps back behind the others, under every rule, and is tried again."""

from collections.abc import Callable, Collection
from itertools import pairwise

import numpy as np
import pytest
from apps import every_rule, numpy_app
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.protocol import MARKER, SUMMARIZE, TRAIN
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    EmptyRoundsError,
    GradientNorm,
    Oort,
    SelectionStrategy,
)
from pncs_flower.strategies.record import RoundRecord
from pncs_flower.strategies.round.backoff import Backoff

STRATEGIES = every_rule.STRATEGIES | {
    "ActiveFL": lambda base, **o: ActiveFL(base, unseen="first", **o),
    "Oort": Oort,
}
del STRATEGIES["PNCS, per layer"]  # which trains more than are to be selected
Fault = Callable[[Message, Context], None]


def with_every_rule(test):
    return pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)(test)


def base() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


def train(message: Message, context: Context, length: float = 1.0) -> Message:
    """Train; with another length, the update is so many times as long, and so is the loss."""
    reply = numpy_app.train(message, context)
    weights = message.content["arrays"]
    longer = {
        name: Array((w.numpy() + length * (array.numpy() - w.numpy())).astype(np.float32))
        for (name, array), w in zip(reply.content["arrays"].items(), weights.values(), strict=True)
    }
    reply.content["arrays"] = ArrayRecord(longer)
    reply.content["metrics"]["train-loss"] = length
    return reply


def evaluate(message: Message, context: Context, length: float = 1.0) -> Message:
    reply = numpy_app.evaluate(message, context)
    reply.content["metrics"]["loss"] = length
    return reply


def fails_in(phase: str) -> Fault:
    """Return what a dead client does in place of its app, in one phase."""

    def act(message: Message, context: Context) -> None:
        if message.content.config_records.get(MARKER, {}).get("phase") == phase:
            raise RuntimeError("dead")

    return act


def has_no_examples(message: Message, context: Context) -> None:
    """Answer as usual: `play` has the app report no examples."""


def play(
    strategy: SelectionStrategy,
    rounds: int,
    dead: Collection[int],
    fault: Fault,
    clients: int = 6,
    mod: SummaryMod | None = None,
) -> list[RoundRecord]:
    """Run with clients that the rules like best: their updates are the longest, losses highest."""

    def is_dead(context: Context) -> bool:
        return int(context.node_config["partition-id"]) in dead

    def outermost(message: Message, context: Context, call_next) -> Message:
        # In front, as a client that kept its update in the pre-round does not train again.
        if is_dead(context):
            fault(message, context)
        return call_next(message, context)

    app = ClientApp(mods=[outermost, mod or SummaryMod()])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        if not is_dead(context):
            return train(message, context)
        reply = train(message, context, length=10.0)
        if fault is has_no_examples:
            reply.content["metrics"]["num-examples"] = 0
        return reply

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        return evaluate(message, context, length=10.0 if is_dead(context) else 1.0)

    grid = InProcessGrid(app, clients)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
    return strategy.history


def turns(history, client: str) -> int:
    return sum(client in record.chosen for record in history)


ROUNDS = 10
# Chosen in round 1 at the earliest, and then not for 1, 2, 4 and 8 rounds: 1, 3 and 6.
MOST_TURNS = 3


@pytest.mark.parametrize(
    ("make", "fault", "num_selected"),
    [
        pytest.param(make, fault, 1 + (number + turn) % 2, id=f"{name}-{how}")
        for number, (name, make) in enumerate(STRATEGIES.items())
        for turn, (how, fault) in enumerate(
            {"raises": fails_in(TRAIN), "empty": has_no_examples}.items()
        )
    ],
)
def test_a_client_that_never_delivers_gets_fewer_and_fewer_turns(make, fault, num_selected):
    history = play(make(base(), num_selected=num_selected), ROUNDS, {2}, fault)
    assert len(history) == ROUNDS
    assert turns(history, "2") <= MOST_TURNS
    empty = [record.round for record in history if not record.delivered]
    assert len(empty) <= MOST_TURNS
    assert not any(after - before == 1 for before, after in pairwise(empty))


@with_every_rule
def test_two_of_six_that_never_deliver_do_not_end_the_run(make):
    history = play(make(base(), num_selected=2), ROUNDS, {1, 4}, has_no_examples)
    assert len(history) == ROUNDS
    assert turns(history, "1") <= MOST_TURNS
    assert turns(history, "4") <= MOST_TURNS
    assert sum(not record.delivered for record in history) <= MOST_TURNS


@with_every_rule
def test_three_of_six_that_never_deliver_do_not_end_the_run(make):
    history = play(make(base(), num_selected=2), ROUNDS, {0, 2, 5}, has_no_examples)
    assert len(history) == ROUNDS
    assert all(turns(history, client) <= MOST_TURNS for client in "025")


def test_one_of_four_without_examples_and_a_queue():
    strategy = GradientNorm(base(), num_selected=1, queue_length=2)
    history = play(strategy, ROUNDS, {3}, has_no_examples, clients=4)
    assert turns(history, "3") <= MOST_TURNS
    assert "3" in history[1].backing_off
    assert not any("3" in record.delivered for record in history)


@with_every_rule
def test_a_client_that_says_it_has_no_examples_is_not_among_the_first(make):
    mod = SummaryMod(num_examples=lambda context: 3 * (context.node_config["partition-id"] != 2))
    history = play(make(base(), num_selected=2), 6, {2}, has_no_examples, mod=mod)
    assert history[0].backing_off == ["2"]
    assert "2" not in [*history[0].asked, *history[0].chosen]
    assert turns(history, "2") <= 2


@with_every_rule
def test_a_client_that_never_answers_is_asked_less_and_less(make):
    strategy = make(base(), num_selected=2)
    history = play(strategy, ROUNDS, {2}, fails_in(SUMMARIZE))
    assert sum("2" in record.asked for record in history) <= MOST_TURNS


@with_every_rule
def test_a_client_that_recovers_is_used_again(make):
    times = 0

    def fails_at_first(message: Message, context: Context) -> None:
        nonlocal times
        if message.content.config_records.get(MARKER, {}).get("phase") == TRAIN:
            times += 1
            if times <= 2:
                raise RuntimeError("not yet")

    # With such a queue, everybody that does not step back has a turn in three rounds.
    history = play(make(base(), num_selected=2, queue_length=4), 12, {2}, fails_at_first)
    assert times >= 3
    assert any("2" in record.delivered for record in history)
    first = next(record.round for record in history if "2" in record.delivered)
    assert not any("2" in record.backing_off for record in history if record.round > first)


@with_every_rule
def test_where_nobody_delivers_the_same_clients_are_not_chosen_again_and_again(make):
    strategy = make(base(), num_selected=2, max_empty_rounds=6)
    with pytest.raises(EmptyRoundsError):
        play(strategy, 6, range(6), has_no_examples)
    pairs = [record.chosen for record in strategy.history]
    assert sorted(client for pair in pairs[:3] for client in pair) == list("012345")
    assert sorted(client for pair in pairs[3:] for client in pair) == list("012345")
    assert any("in spite of earlier failures" in note for note in strategy.history[3].notes)


def test_who_is_needed_is_tried_at_once():
    history = play(PNCS(base(), num_selected=2), 3, {1}, has_no_examples, clients=2)
    assert [record.chosen for record in history] == [["0", "1"]] * 3
    assert all(record.delivered == ["0"] for record in history)
    assert "so 1 may be chosen in spite of earlier failures" in history[1].notes[0]


@with_every_rule
def test_nobody_steps_back_where_nobody_fails(make):
    history = play(make(base(), num_selected=2, queue_length=2), 6, (), has_no_examples)
    assert not any(record.backing_off or record.rejected for record in history)


@pytest.mark.parametrize("name", ["PNCS", "GradientMemory", "DivFL, stale", "pow-d"])
def test_asking_ahead_makes_the_same_choices_also_where_clients_fail(name):
    def evaluating() -> FedAvg:
        return FedAvg(min_train_nodes=1, min_available_nodes=1)

    for fault in (has_no_examples, fails_in(SUMMARIZE)):
        ahead, own = (
            play(STRATEGIES[name](evaluating(), num_selected=2, ride_along=ride), 8, {2}, fault)
            for ride in (True, False)
        )
        assert [r.chosen for r in ahead] == [r.chosen for r in own]
        assert [r.backing_off for r in ahead] == [r.backing_off for r in own]


@pytest.mark.minutes
@with_every_rule
def test_a_run_that_is_taken_up_knows_who_failed(make, tmp_path):
    whole = play(make(base(), num_selected=2), 8, {2}, has_no_examples)
    play(make(base(), num_selected=2, checkpoint=tmp_path), 3, {2}, has_no_examples)
    resumed = play(make(base(), num_selected=2, checkpoint=tmp_path), 8, {2}, has_no_examples)
    assert [r.chosen for r in resumed] == [r.chosen for r in whole]
    assert [r.backing_off for r in resumed] == [r.backing_off for r in whole]


def test_clients_whose_sum_is_not_finite_step_back():
    class Overflowing(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            if arrays is not None and server_round == 1:
                arrays = ArrayRecord({n: Array(a.numpy() + np.inf) for n, a in arrays.items()})
            return arrays, metrics

    strategy = GradientNorm(
        Overflowing(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        num_selected=1,
    )
    history = play(strategy, 2, (), has_no_examples)
    assert history[1].backing_off == history[0].chosen


def end(backoff: Backoff, round: int, tried: str, succeeded: str = "", used: str = "z") -> None:
    backoff.end_round(
        round,
        {"pre-round": tried, "training": ""},
        {"pre-round": succeeded, "training": used},
        empty=not used,
    )


def test_rounds_held_back_double_up_to_sixteen():
    backoff, rests, number = Backoff(), [], 0
    for _ in range(7):
        number += 1
        end(backoff, number, "a")
        rests.append(0)
        while backoff.holds_back("abz"):
            number += 1
            rests[-1] += 1
            end(backoff, number, "")
    assert rests == [1, 2, 4, 8, 16, 16, 16]


def test_an_answer_makes_up_for_none_but_not_for_an_update_that_never_came():
    backoff = Backoff()
    end(backoff, 1, "ab")
    backoff.end_round(
        1, {"pre-round": "", "training": "b"}, {"pre-round": "", "training": "z"}, empty=False
    )
    end(backoff, 2, "")
    end(backoff, 3, "ab", succeeded="ab")
    assert list(backoff.failed) == ["b"]
    assert backoff.failed["b"].by_phase == {"training": 1}


def test_rounds_without_an_update_do_not_count():
    backoff = Backoff()
    end(backoff, 1, "a", used="")
    for number in range(2, 9):
        end(backoff, number, "", used="")
        assert backoff.holds_back("ab") == ["a"]
    end(backoff, 9, "")
    assert backoff.holds_back("ab") == []


def test_after_an_empty_round_all_that_failed_are_behind_the_others():
    backoff = Backoff()
    end(backoff, 1, "a")
    end(backoff, 2, "")
    assert backoff.holds_back("abc") == []
    end(backoff, 3, "b", used="")
    assert backoff.holds_back("abc") == ["a", "b"]


def test_state_goes_round():
    backoff, other = Backoff(), Backoff()
    backoff.note_without_examples(["c"], 1)
    end(backoff, 1, "ab", used="")
    other.restore(backoff.state())
    assert other.state() == backoff.state()
    assert other.holds_back("abcd") == backoff.holds_back("abcd") == ["c", "a", "b"]
    other.note_without_examples(["c"], 2)
    assert other.state() == backoff.state()
