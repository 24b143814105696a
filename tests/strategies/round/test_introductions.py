"""Clients that start slowly, that lack the mod, and what nodes may say of themselves."""

import time

import pytest
from apps import numpy_app
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import INTRODUCE, MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    SelectionError,
    SelectionOptions,
    SelectionStrategy,
    TooFewClientsError,
    timeouts,
)
from pncs_flower.strategies.grids.polling import PollingGrid
from pncs_flower.strategies.record import RoundRecord
from pncs_flower.strategies.round.roster import Roster
from pncs_flower.strategies.round.waiting import Waiting
from pncs_flower.strategies.rules import GradientMemoryRule

NEVER = 1e9


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch):
    """Nodes are looked at often, and one that gives no hope is asked again soon."""
    monkeypatch.setattr(timeouts, "LEAST_PAUSE", 0.02)
    monkeypatch.setattr(timeouts, "RETRY_IN_VAIN", 0.2)


FIRST = r"ClientApp\(mods=\[summary_mod, \.\.\.\]\)"


class Deployed(InProcessGrid):
    """Nodes that answer after a while, and of which nobody knows how many there will be.

    `delays` are the seconds that each takes to answer, `connected` those after which it connects.
    """

    simulated = False

    def __init__(self, app, delays, connected=()):
        super().__init__(app, len(delays))
        self._start = time.monotonic()
        self._delays = dict(zip(self.contexts, delays, strict=True))
        self._connected = dict(zip(self.contexts, connected, strict=False))
        self._due = {}
        for number, context in enumerate(self.contexts.values()):
            context.node_config.clear()
            context.node_config["name"] = f"site-{number}"

    def get_node_ids(self):
        past = time.monotonic() - self._start
        return [node for node in self.contexts if self._connected.get(node, 0.0) <= past]

    def push_messages(self, messages):
        messages = list(messages)
        now = time.monotonic()
        ids = list(super().push_messages(messages))
        self._due |= {
            i: now + self._delays[m.metadata.dst_node_id]
            for i, m in zip(ids, messages, strict=True)
        }
        return ids

    def pull_messages(self, message_ids):
        now = time.monotonic()
        return super().pull_messages([i for i in message_ids if self._due[i] <= now])


def on_flowers_grid(*delays, app=None, connected=()):
    """Return nodes as on Flower's own grid, where replies are looked for one by one."""
    return PollingGrid(Deployed(app or numpy_app.make_app(summary_mod), delays, connected))


def roster(min_clients=None, wait_timeout=60.0, eligible=None, **options):
    return Roster(
        SelectionOptions(
            min_clients=min_clients, wait_timeout=wait_timeout, eligible=eligible, **options
        )
    )


def timed(who, grid, num_selected=2, kind=Waiting):
    start = time.monotonic()
    record = RoundRecord(1)
    try:
        return list(kind(who, grid, record, num_selected).clients()), record
    finally:
        record.seconds["test"] = time.monotonic() - start


# --- clients that start slowly -----------------------------------------------------------------


def test_time_to_wait_begins_with_the_first_answer():
    """The imports of a client app may take longer than any wait for a client that is missing."""
    clients, record = timed(roster(None, 0.4, None), on_flowers_grid(1.2, 1.3, 1.4))
    assert clients == ["site-0", "site-1", "site-2"]
    assert record.seconds["waiting"] >= 1.2
    assert not record.notes


def test_waiting_for_the_others_ends_a_while_after_the_first_answer():
    clients, record = timed(roster(None, 0.5, None), on_flowers_grid(0.3, 0.3, NEVER))
    assert clients == ["site-0", "site-1"]
    assert 0.8 <= record.seconds["test"] < 2.5
    ((node, reason),) = record.rejected.items()
    assert node == "node 1002"
    assert "introduction: no answer within" in reason


def test_clients_of_which_none_ever_answers_are_starting_and_not_without_the_mod():
    who = roster(None, 0.2, None, start_timeout=0.6)
    start = time.monotonic()
    with pytest.raises(SelectionError, match="still starting") as caught:
        timed(who, on_flowers_grid(NEVER, NEVER))
    assert 0.6 <= time.monotonic() - start < 3
    assert "summary_mod" not in str(caught.value)
    assert "start_timeout" in str(caught.value)


def test_without_any_node_there_is_no_start_to_wait_for():
    start = time.monotonic()
    with pytest.raises(TooFewClientsError, match="0 clients take part"):
        timed(roster(None, 0.2, None, start_timeout=60.0), on_flowers_grid())
    assert time.monotonic() - start < 3


def test_a_client_that_is_quick_does_not_cut_short_the_start_of_those_that_a_round_needs():
    """Its word comes first, also if it only says that it cannot: else one node ends any run."""
    clients, record = timed(roster(None, 0.3, None), on_flowers_grid(0.0, 1.2, 1.3))
    assert clients[:2] == ["site-0", "site-1"]
    assert record.seconds["waiting"] >= 1.2

    def fails(message, context, call_next):
        if context.node_config["name"] == "site-0":
            raise RuntimeError("no")
        return call_next(message, context)

    grid = on_flowers_grid(0.0, 1.2, 1.2, app=numpy_app.make_app(fails, summary_mod))
    assert timed(roster(None, 0.3, None), grid)[0] == ["site-1", "site-2"]


def test_a_client_that_never_answers_is_waited_for_no_longer_than_for_a_start():
    who = roster(None, 0.3, None, start_timeout=1.0)
    start = time.monotonic()
    with pytest.raises(TooFewClientsError, match=r"no answer within.*larger start_timeout"):
        timed(who, on_flowers_grid(0.0, NEVER))
    assert 1.0 <= time.monotonic() - start < 3


def test_later_a_client_that_never_answers_is_waited_for_no_longer_than_for_any():
    who = roster(None, 0.3, None)
    grid = on_flowers_grid(0.0, 0.0, NEVER, connected=(0.0, 0.0, 0.5))
    assert len(timed(who, grid)[0]) == 2
    time.sleep(0.6)
    start = time.monotonic()
    with pytest.raises(TooFewClientsError):
        timed(who, grid, num_selected=3)
    assert time.monotonic() - start < 2


def test_a_node_met_just_before_the_end_does_not_make_the_wait_longer():
    who = roster(None, 1.0, None, start_timeout=1.0)
    start = time.monotonic()
    with pytest.raises(TooFewClientsError, match="1 client takes part"):
        timed(who, on_flowers_grid(0.0, NEVER, connected=(0.0, 0.8)))
    assert 1.0 <= time.monotonic() - start < 1.7


def test_the_log_says_who_is_still_starting(caplog):
    caplog.set_level("INFO", logger="flwr")
    timed(roster(None, 3.0, None), on_flowers_grid(0.0, 1.5, 1.6), num_selected=3)
    assert "1 of 3 are here; 2 are connected and still starting: no answer yet" in caplog.text


# --- apps without the mod -----------------------------------------------------------------------


def answering_app():
    """An app that answers whatever it is asked."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("app", [numpy_app.make_app(), answering_app()])
def test_a_forgotten_mod_is_known_at_once_in_a_simulation(app):
    start = time.monotonic()
    strategy = PNCS(FedAvg())
    with pytest.raises(SelectionError, match=FIRST):
        strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=1)
    assert time.monotonic() - start < 6


@pytest.mark.parametrize("num_clients", [1, 4])
def test_a_forgotten_mod_is_known_at_once_also_where_fewer_clients_are_simulated_than_needed(
    num_clients,
):
    start = time.monotonic()
    with pytest.raises(SelectionError, match=FIRST):
        timed(roster(None, 60.0, None), InProcessGrid(numpy_app.make_app(), num_clients), 9)
    assert time.monotonic() - start < 6


def test_a_forgotten_mod_is_known_at_once_in_a_deployment():
    """The app is the same on all nodes; an answer without the marker leaves no doubt."""
    start = time.monotonic()
    with pytest.raises(SelectionError, match=FIRST):
        timed(roster(None, 60.0, None), on_flowers_grid(0.1, 0.2, app=answering_app()))
    assert time.monotonic() - start < 6


def test_an_app_that_no_client_can_load_is_known_at_once_and_not_taken_for_one_without_the_mod():
    """A module that it needs is not there: the answer comes from Flower, for want of an app."""

    def cannot(message, context, call_next):
        reason = "An exception was raised when attempting to load `ClientApp`"
        return Message(Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, reason), reply_to=message)

    start = time.monotonic()
    with pytest.raises(SelectionError, match=r"cannot be loaded.*module") as told:
        timed(roster(None, 60.0, None), on_flowers_grid(0.1, 0.2, app=numpy_app.make_app(cannot)))
    assert time.monotonic() - start < 6
    assert "summary_mod" not in str(told.value)


def test_one_client_whose_app_cannot_be_loaded_is_alone_in_that():
    def cannot(message, context, call_next):
        if context.node_config["name"] == "site-1":
            return Message(Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "x"), reply_to=message)
        return call_next(message, context)

    grid = on_flowers_grid(0.0, 0.0, 0.0, app=numpy_app.make_app(cannot, summary_mod))
    assert timed(roster(None, 0.3, None), grid)[0] == ["site-0", "site-2"]


@pytest.mark.parametrize("app", [numpy_app.make_app(), answering_app()])
def test_a_forgotten_mod_is_told_while_others_are_still_starting(app, caplog):
    told = []

    class Listening(Waiting):
        def _deadline(self, *arguments):  # at each look
            told.append("ClientApp(mods=[summary_mod, ...])" in caplog.text)
            return super()._deadline(*arguments)

    who = roster(None, 1.5, None, start_timeout=1.5)
    with pytest.raises(SelectionError, match=f"and 1 of them have not answered yet.*{FIRST}"):
        timed(who, on_flowers_grid(0.1, NEVER, app=app), kind=Listening)
    assert not told[0]
    assert sum(told) > len(told) / 2
    assert len([r for r in caplog.records if "ClientApp(mods=" in r.getMessage()]) == 1


# --- what nodes say of themselves -----------------------------------------------------------------


def claiming(claims):
    """A mod that answers for some clients; `claims` are the entries of each one's answer."""

    def mod(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        name = context.node_config.get("name")
        if marker.get("phase") != INTRODUCE or name not in claims:
            return call_next(message, context)
        answer = ConfigRecord({"key": name, **claims[name]})
        return Message(RecordDict({MARKER: answer}), reply_to=message)

    return mod


def deployed(claims, clients=4):
    return Deployed(numpy_app.make_app(claiming(claims), summary_mod), [0.0] * clients)


SILLY = [True, -3, 0, 2.5, "many", [7], b"\x07", 10**9, 2**62]


@pytest.mark.parametrize("number", [*SILLY, 1, 3, 1000])
def test_one_node_that_says_how_many_there_are_does_not_block_the_start(number):
    grid = deployed({"site-0": {"num-clients": number}})
    clients, record = timed(roster(None, 60.0, None), grid)
    assert len(clients) == 4
    assert record.seconds["test"] < 3


def test_one_node_that_says_it_is_alone_does_not_end_the_wait_for_others():
    claims = claiming({"site-0": {"num-clients": 1}})
    grid = on_flowers_grid(
        0.0, 0.0, app=numpy_app.make_app(claims, summary_mod), connected=(0.0, 0.5)
    )
    assert timed(roster(None, 10.0, None), grid)[0] == ["site-0", "site-1"]


def test_what_most_nodes_say_of_their_number_is_waited_for():
    claims = {f"site-{n}": {"num-clients": 4} for n in range(4)}
    grid = on_flowers_grid(
        *[0.0] * 4,
        app=numpy_app.make_app(claiming(claims), summary_mod),
        connected=(0.0, 0.0, 0.4, 0.4),
    )
    assert len(timed(roster(None, 10.0, None), grid)[0]) == 4


@pytest.mark.parametrize("number", [*SILLY, 10**9 + 1])
def test_a_number_of_examples_that_cannot_be_is_taken_for_none(number):
    who = roster(None, 5.0, None, max_weight=1e8)
    clients, _ = timed(who, deployed({"site-0": {"num-examples": number}}))
    assert len(clients) == 4
    assert not who.sizes().get("site-0")


def test_a_number_of_examples_is_at_most_max_weight():
    claims = {"site-0": {"num-examples": 50}, "site-1": {"num-examples": 51}}
    strategy = GradientMemory(FedAvg(fraction_evaluate=0.0), num_selected=2, max_weight=50.0)
    app = numpy_app.make_app(claiming(claims), summary_mod)
    assert timed(strategy._roster, Deployed(app, [0.0] * 3))
    assert strategy._roster.sizes() == {"site-0": 50}


@pytest.mark.parametrize(
    "key",
    ["", "x" * 201, "9" * 5000, "a\nb", "\x1b[31m", "\0", "\ud800", 7, True, 1.5, b"a", ["a"]],
)
def test_a_key_that_cannot_be_used_costs_its_node_alone(key):
    clients, record = timed(roster(None, 0.2, None), deployed({"site-0": {"key": key}}))
    assert clients == ["site-1", "site-2", "site-3"]
    assert record.rejected["node 1000"].startswith("introduction: ")


def test_what_a_node_says_is_wrong_is_one_line_without_control_characters():
    """It goes to the log, and may not pass for another line of it."""
    problem = "no data\nWARNING: all clients\x1b]0;x\x07 lie\x1b[2J\r" + "!" * 10**6
    record = timed(roster(None, 0.2, None), deployed({"site-0": {"problem": problem}}))[1]
    reason = record.rejected["node 1000"]
    assert reason.startswith("introduction: no data WARNING: all clients")
    assert reason.isprintable()
    assert len(reason) < 700


JOINED = "\N{ARABIC LETTER MEEM}\N{ZERO WIDTH NON-JOINER}\N{ARABIC LETTER ALEF}"


@pytest.mark.parametrize("key", [JOINED, "医院", "Klinik Süd", "x" * 200, "\U0001f3e5", "007"])
def test_names_in_any_script_are_keys(key):
    clients, _ = timed(roster(None, 0.2, None), deployed({"site-0": {"key": key}}))
    assert key in clients


def test_the_size_that_a_client_says_counts_for_nothing_once_it_does_not_deliver():
    """It would weigh more than all others together, for as long as it sends but summaries."""
    sizes = []

    class Watching(GradientMemoryRule):
        def select(self, state, now, summaries):
            sizes.append(dict(now.num_examples))
            return super().select(state, now, summaries)

    claims = {f"site-{n}": {"num-examples": 10} for n in range(3)}
    claims["site-3"] = {"num-examples": 10**8}

    def fails(message, context, call_next):
        context.node_config["partition-id"] = int(context.node_config["name"][-1])
        training = message.content.config_records.get(MARKER, {}).get("phase") == "train"
        if training and context.node_config["name"] == "site-3":
            raise RuntimeError("never")
        return call_next(message, context)

    def named(message, context, call_next):
        context.node_config.pop("partition-id", None)
        return call_next(message, context)

    app = numpy_app.make_app(named, claiming(claims), fails, summary_mod)
    strategy = SelectionStrategy(FedAvg(fraction_evaluate=0.0), Watching(num_selected=2))
    strategy.start(Deployed(app, [0.0] * 4), numpy_app.initial_arrays(), num_rounds=4)
    first = next(r.round for r in strategy.history if "site-3" in r.chosen)
    for number, known in enumerate(sizes, start=1):
        assert ("site-3" in known) == (number <= first)
    assert first < 4


# --- eligible --------------------------------------------------------------------------------


def test_clients_that_are_not_eligible_are_here_and_not_missing():
    grid = deployed({f"site-{n}": {"num-clients": 4} for n in range(4)})
    who = roster(None, 30.0, lambda key: key in {"site-1", "site-2"})
    clients, record = timed(who, grid)
    assert clients == ["site-1", "site-2"]
    assert not record.notes
    assert record.seconds["test"] < 3
    who = roster(4, 30.0, lambda key: key in {"site-1", "site-2"})
    clients, record = timed(who, deployed({}))
    assert not record.notes
    assert record.seconds["test"] < 3


def test_an_eligible_that_takes_nobody_is_what_the_error_speaks_of():
    who = roster(None, 0.3, lambda key: key in {0, 1, 2})
    with pytest.raises(TooFewClientsError, match=r"4 are here, but eligible refuses '0'") as caught:
        timed(who, InProcessGrid(numpy_app.make_app(summary_mod), 4))
    assert "keys are text" in str(caught.value)
    assert "Start more clients" not in str(caught.value)


def test_eligible_is_not_asked_at_each_look_while_clients_are_missing():
    asked = []
    who = roster(None, 5.0, lambda key: not asked.append(key))
    clients, _ = timed(who, on_flowers_grid(0.1, 0.2, 0.9, 1.0), num_selected=4)
    assert len(clients) == 4
    assert len(asked) <= 4 * 4  # not 4 in each of some fifty looks


def test_a_simulation_of_many_clients_is_asked_in_parts(monkeypatch):
    """All messages and replies of ten thousand clients at once would be 20 MB."""
    asked = []

    class Counted(InProcessGrid):
        def push_messages(self, messages):
            asked.append(len(messages := list(messages)))
            return super().push_messages(messages)

    monkeypatch.setattr("pncs_flower.strategies.round.waiting._AT_ONCE", 5)
    grid = Counted(numpy_app.make_app(summary_mod), 12)
    there = Waiting(Roster(SelectionOptions()), grid, RoundRecord(1), 2).clients()
    assert (asked, list(there)) == ([5, 5, 2], [str(client) for client in range(12)])
