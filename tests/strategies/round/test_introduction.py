"""Who is there? Apps with named functions, without the mod, or with others before it."""

import time

import pytest
from apps import numpy_app
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    NoSummariesError,
    PowerOfChoice,
    SelectionError,
    UniformSelection,
    timeouts,
)

ROUNDS, CLIENTS = 3, 5


FIRST = r"ClientApp\(mods=\[summary_mod, \.\.\.\]\)"


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch):
    """A node that gives no hope is asked again soon."""
    monkeypatch.setattr(timeouts, "RETRY_IN_VAIN", 0.1)


def run(app: ClientApp, base=None, kind=PNCS, grid=InProcessGrid, **options):
    """Run in at most a few seconds, though there would be a minute to wait for clients."""
    start = time.monotonic()
    strategy = kind(base or FedAvg(), num_selected=2, seed=1, **options)
    config = ConfigRecord({"lr": 0.25, "clipping_norm": 0.5})
    try:
        result = strategy.start(
            grid(app, CLIENTS), numpy_app.initial_arrays(), num_rounds=ROUNDS, train_config=config
        )
    finally:
        assert time.monotonic() - start < 5
    return strategy, result


def choices(strategy):
    return [(r.chosen, r.asked, r.delivered, r.mean_similarity) for r in strategy.history]


# --- functions with names -----------------------------------------------------------------------


class Named(FedAvg):
    """Sends ``train.sgd``, and counts how often it is asked to."""

    asked = 0

    def configure_train(self, server_round, arrays, config, grid):
        self.asked += 1
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.metadata.message_type = "train.sgd"
        return messages


def named_app() -> ClientApp:
    app = ClientApp(mods=[summary_mod])
    app.train("sgd")(numpy_app.train)
    app.evaluate()(numpy_app.evaluate)
    return app


@pytest.mark.parametrize("ride_along", [True, False])
@pytest.mark.parametrize("kind", [PNCS, GradientMemory, UniformSelection])
def test_an_app_whose_train_function_has_a_name_chooses_and_learns_the_same(kind, ride_along):
    base = Named()
    named, result = run(named_app(), base, kind, ride_along=ride_along)
    plain, plain_result = run(numpy_app.make_app(summary_mod), None, kind, ride_along=ride_along)
    assert choices(named) == choices(plain)
    assert result.arrays == plain_result.arrays
    assert not any(record.rejected for record in named.history)
    assert base.asked == ROUNDS  # it may decay a rate or charge a budget each time


def test_clients_with_named_functions_that_come_one_by_one():
    class Coming(InProcessGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            return list(super().get_node_ids())[: self.looks - 1]

    strategy, _ = run(named_app(), Named(), grid=Coming)
    assert strategy.history[0].clients == [str(k) for k in range(CLIENTS)]


def test_a_base_whose_messages_no_function_takes_is_told_at_once_with_their_type():
    app = ClientApp(mods=[summary_mod])
    app.train("adam")(numpy_app.train)
    with pytest.raises(SelectionError, match=r"no function for messages of type 'train\.sgd'"):
        run(app, Named())


def test_a_named_app_and_a_base_that_does_not_train_are_told_at_once():
    class Resting(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return []

    with pytest.raises(SelectionError, match="no function for messages of type 'train'"):
        run(named_app(), Resting())


# --- without the mod ----------------------------------------------------------------------------


def answers_anything(message, context, call_next):
    return Message(message.content, reply_to=message)


@pytest.mark.parametrize("mods", [(), (answers_anything,)], ids=["raises", "answers"])
@pytest.mark.parametrize("kind", [PNCS, UniformSelection])
def test_a_forgotten_mod_is_told_at_once_with_the_remedy(kind, mods):
    with pytest.raises(SelectionError, match=FIRST):
        run(numpy_app.make_app(*mods), kind=kind)


def test_a_forgotten_mod_ends_the_run_in_seconds_but_not_before_the_apps_are_asked_again(
    monkeypatch,
):
    monkeypatch.undo()
    times = []

    def not_yet(message, context, call_next):
        times.append(time.monotonic())
        if len(times) <= CLIENTS:
            raise FileNotFoundError("the data are not mounted")
        return call_next(message, context)

    strategy, _ = run(numpy_app.make_app(not_yet, summary_mod))
    assert len(strategy.history[0].clients) == CLIENTS
    assert times[CLIENTS] - times[0] > 1


def test_clients_that_are_slow_to_start_are_not_told_that_they_lack_the_mod():
    class Silent(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return []

    with pytest.raises(SelectionError, match=r"no reply within.*still starting") as told:
        run(numpy_app.make_app(summary_mod), grid=Silent, wait_timeout=0.5, start_timeout=0.5)
    assert "summary_mod first" not in str(told.value)


def test_one_app_without_the_mod_costs_that_client_alone():
    def absent_on_two(message, context, call_next):
        if context.node_config["partition-id"] == 2:
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "KeyError: 'arrays'"),
                reply_to=message,
            )
        return call_next(message, context)

    strategy, _ = run(numpy_app.make_app(absent_on_two, summary_mod))
    assert strategy.history[0].clients == ["0", "1", "3", "4"]
    (reason,) = strategy.history[0].rejected.values()
    assert "put summary_mod first" in reason
    assert "KeyError: 'arrays'" in reason


def test_a_number_of_examples_that_cannot_be_had_is_not_taken_for_a_missing_mod():
    def num_examples(context):
        if context.node_config["partition-id"] == 3:
            raise FileNotFoundError("train.csv")
        return 7

    strategy, _ = run(numpy_app.make_app(SummaryMod(num_examples=num_examples)))
    assert strategy.history[0].clients == ["0", "1", "2", "4"]
    (reason,) = strategy.history[0].rejected.values()
    assert reason.endswith("num_examples(context) raised FileNotFoundError: train.csv")


# --- with other mods ----------------------------------------------------------------------------

CHANGING = {
    "fixedclipping": fixedclipping_mod,
    "adaptiveclipping": adaptiveclipping_mod,
    "local-dp": LocalDpMod(0.5, 0.01, 10.0, 1e-5),
}
LOOKING = {"arrays-size": arrays_size_mod, "message-size": message_size_mod}


@pytest.mark.parametrize("mod", [*CHANGING.values(), *LOOKING.values()], ids=[*CHANGING, *LOOKING])
@pytest.mark.parametrize("kind", [PNCS, UniformSelection])
def test_each_of_flowers_mods_works_behind_the_mod(kind, mod):
    def decorated() -> ClientApp:
        app = ClientApp(mods=[summary_mod])
        app.train(mods=[mod])(numpy_app.train)
        app.evaluate()(numpy_app.evaluate)
        return app

    _, plain = run(numpy_app.make_app(summary_mod), FedAvg(fraction_evaluate=0.0), kind)
    for app in (numpy_app.make_app(summary_mod, mod), decorated()):
        # The sketches are those of the updates as they leave, also clipped and with noise.
        strategy, result = run(app, FedAvg(fraction_evaluate=0.0), kind, verify_sketches=True)
        assert not any(record.rejected for record in strategy.history)
        assert all(len(record.delivered) == 2 for record in strategy.history)
        assert (result.arrays == plain.arrays) == (mod in LOOKING.values())


@pytest.mark.parametrize("mod", LOOKING.values(), ids=LOOKING)
@pytest.mark.parametrize("kind", [PNCS, UniformSelection])
def test_a_mod_that_only_looks_may_come_first_too(kind, mod):
    before, result = run(numpy_app.make_app(mod, summary_mod), kind=kind)
    alone, expected = run(numpy_app.make_app(summary_mod), kind=kind)
    assert choices(before) == choices(alone)
    assert result.arrays == expected.arrays


@pytest.mark.parametrize("mod", CHANGING.values(), ids=CHANGING)
@pytest.mark.parametrize("kind", [PNCS, UniformSelection])
def test_one_of_flowers_mods_before_the_mod_is_told_at_once_with_the_remedy(kind, mod):
    """It would not clip the sketches, or what it adds to protect would not protect them."""
    app = ClientApp(mods=[mod])
    app.train(mods=[summary_mod])(numpy_app.train)
    for wrong in (numpy_app.make_app(mod, summary_mod), app):
        with pytest.raises(SelectionError, match=FIRST):
            run(wrong, kind=kind)


def test_the_mod_on_the_train_function_alone_suffices_unless_a_rule_asks_for_the_loss():
    def app() -> ClientApp:
        made = ClientApp()
        made.train(mods=[summary_mod])(numpy_app.train)
        made.evaluate()(numpy_app.evaluate)
        return made

    alone, result = run(app())
    everywhere, expected = run(numpy_app.make_app(summary_mod))
    assert choices(alone) == choices(everywhere)
    assert result.arrays == expected.arrays
    with pytest.raises(NoSummariesError, match=FIRST):
        run(app(), kind=PowerOfChoice)


def test_messages_that_differ_by_client_and_have_a_named_type_are_told():
    class Each(Named):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for number, message in enumerate(messages):
                content = {**message.content, "config": ConfigRecord({"lr": 0.1 * (number + 1)})}
                message.content = RecordDict(content)
            return messages

    with pytest.raises(SelectionError, match="a message of its own for each client"):
        run(named_app(), Each(), UniformSelection)
