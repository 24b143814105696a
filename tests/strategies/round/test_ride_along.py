"""Summaries asked for with the evaluation: the same choices with one exchange less."""

from contextlib import suppress

import pytest
from apps import numpy_app
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    GradientMemory,
    PowerOfChoice,
    SketchedMean,
    UniformSelection,
    timeouts,
)

ROUNDS, CLIENTS = 8, 7


class Counting(InProcessGrid):
    """Counts messages, and exchanges that send any."""

    exchanges = messages = 0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.exchanges += bool(messages)
        self.messages += len(messages)
        return super().send_and_receive(messages, timeout=timeout)


def run(kind=PNCS, base=None, mods=(), rounds=ROUNDS, grid=None, **options):
    mods = mods or (SummaryMod(gradient=numpy_app.gradient),)
    grid = grid or Counting(numpy_app.make_app(*mods), CLIENTS)
    strategy = kind(base or FedAvg(), num_selected=2, seed=4, **options)
    result = strategy.start(
        grid,
        numpy_app.initial_arrays(),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.3}),
    )
    return strategy, result, grid


def choices(strategy):
    return [(r.chosen, r.asked, r.answered, r.mean_similarity) for r in strategy.history]


@pytest.mark.parametrize("base", [FedAvg, FedAdam, lambda: FedProx(proximal_mu=0.5)])
@pytest.mark.parametrize("summary", ["update", "gradient"])
@pytest.mark.parametrize("kind", [PNCS, GradientMemory])
def test_choices_model_and_metrics_are_those_of_a_pre_round_of_its_own(kind, summary, base):
    ahead, result, grid = run(kind, base(), summary=summary)
    own, own_result, own_grid = run(kind, base(), summary=summary, ride_along=False)
    assert choices(ahead) == choices(own)
    assert result.arrays == own_result.arrays
    assert result.evaluate_metrics_clientapp == own_result.evaluate_metrics_clientapp
    assert [r.pre_round for r in ahead.history] == ["own"] + ["ahead"] * (ROUNDS - 1)
    assert [r.pre_round for r in own.history] == ["own"] * ROUNDS
    assert own_grid.exchanges - grid.exchanges == ROUNDS - 1


def joint_mod(**options):
    """Return a mod that takes an evaluation and a request for a summary in one message."""
    return SummaryMod(evaluate=numpy_app.evaluate, gradient=numpy_app.gradient, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PNCS, {}),
        (GradientMemory, {"summary": "gradient"}),
        (PowerOfChoice, {"candidates": 4}),
        (SketchedMean, {}),
    ],
)
def test_in_one_message_choices_model_and_metrics_are_the_same(kind, options):
    joint, result, grid = run(kind, mods=(joint_mod(),), **options)
    apart, apart_result, apart_grid = run(kind, **options)
    assert choices(joint) == choices(apart)
    assert result.arrays == apart_result.arrays
    assert result.evaluate_metrics_clientapp == apart_result.evaluate_metrics_clientapp
    assert [r.bytes_up for r in joint.history[1:]] == [r.bytes_up for r in apart.history[1:]]
    assert grid.exchanges == apart_grid.exchanges
    asked_ahead = sum(len(record.asked) for record in joint.history[1:])
    assert apart_grid.messages - grid.messages == asked_ahead > 0


def test_only_clients_that_take_both_in_one_message_are_sent_them_so():
    """A client of an earlier release does not know of it, nor one that is not told how."""

    def some(message, context, call_next):
        mod = joint_mod() if int(context.node_config["partition-id"]) % 2 else summary_mod
        return mod(message, context, call_next)

    some_joint, result, grid = run(mods=(some,))
    apart, apart_result, apart_grid = run(mods=(summary_mod,))
    assert choices(some_joint) == choices(apart)
    assert result.arrays == apart_result.arrays
    assert result.evaluate_metrics_clientapp == apart_result.evaluate_metrics_clientapp
    asked_ahead = [client for record in some_joint.history[1:] for client in record.asked]
    assert apart_grid.messages - grid.messages == sum(int(c) % 2 for c in asked_ahead)


def test_who_has_less_time_for_a_summary_than_for_the_evaluation_gets_two_messages():
    _, _, grid = run(mods=(joint_mod(),), summary_timeout=5)
    _, _, apart = run(mods=(summary_mod,))
    assert grid.messages == apart.messages


@pytest.mark.parametrize("joint", [False, True])
def test_half_of_a_message_that_fails_costs_the_other_half_nothing(joint):
    """With what it has done to the state, too."""

    def train(message, context):
        reply = numpy_app.train(message, context)
        if message.content["config"]["server-round"] == 2 and context.node_id == 1000:
            raise RuntimeError("no training")
        return reply

    def evaluate(message, context):
        if "evaluated" not in context.state:
            context.state["evaluated"] = ConfigRecord({"rounds": []})
        number = message.content["config"]["server-round"]
        context.state["evaluated"]["rounds"].append(number)  # in place
        if number == 3 and context.node_id == 1001:
            raise RuntimeError("no evaluation")
        return numpy_app.evaluate(message, context)

    mod = SummaryMod(evaluate=evaluate) if joint else summary_mod
    grid = Counting(numpy_app.make_app(mod, train=train, evaluate=evaluate), 3)
    strategy, result, _ = run(grid=grid, rounds=4, queue_length=0)
    rejected = [record.rejected for record in strategy.history]
    assert rejected == [{}, {"0": "pre-round: <class 'RuntimeError'>:<'no training'>"}, {}, {}]
    assert [len(record.answered) for record in strategy.history] == [3, 2, 2, 3]
    notes = [note for note in strategy.history[2].notes if "evaluation" in note]
    assert notes == ["evaluation: left out are 1: <class 'RuntimeError'>:<'no evaluation'>"]
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3, 4}
    states = [context.state for context in grid.contexts.values()]
    assert [state["evaluated"]["rounds"] for state in states] == [
        [1, 2, 3, 4],
        [1, 2, 4],
        [1, 2, 3, 4],
    ]
    own, asked_ahead = 3 + 3 + 4 * (3 + 2), 3 + 2 + 3
    assert grid.messages == own + (0 if joint else asked_ahead)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {MARKER: ConfigRecord({"summarize": 3, "evaluate": [b"x"]})},
        {"pncs-evaluation/": ConfigRecord()},
        {"pncs-evaluation/pncs": ConfigRecord({"evaluate": "x"})},
        {"pncs-evaluation/a": ArrayRecord(), "pncs-summary": ConfigRecord()},
        Error(2, ""),
    ],
)
def test_an_odd_answer_to_a_message_with_both_costs_only_its_client(answer):
    def odd(message, context, call_next):
        if context.node_id == 1002 and any("evaluation" in name for name in message.content):
            content = answer if isinstance(answer, Error) else RecordDict(dict(answer))
            return Message(content, reply_to=message)
        return call_next(message, context)

    strategy, result, _ = run(mods=(odd, joint_mod()), rounds=3, queue_length=0)
    assert list(strategy.history[1].reasons("pre-round")) == ["2"]
    assert any(note.startswith("evaluation: left out are 2") for note in strategy.history[0].notes)
    assert [len(record.delivered) for record in strategy.history] == [2, 2, 2]
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}


def test_an_app_is_asked_with_its_mods_in_one_message_as_in_two():
    """Also one of the older kind, and with what mods keep in the state."""

    def counted(joint):
        def count(message, context, call_next):
            key = f"times-{message.metadata.message_type}"
            times = context.state.get(key, ConfigRecord({"count": 0}))["count"]
            context.state[key] = ConfigRecord({"count": times + 1})
            return call_next(message, context)

        mod = SummaryMod(evaluate=lambda m, c: app(m, c)) if joint else summary_mod
        app = numpy_app.make_app(mod, count)
        _, result, grid = run(grid=Counting(app, CLIENTS))
        states = [context.state.config_records for context in grid.contexts.values()]
        return (
            grid.messages,
            result.arrays,
            [
                {name: dict(record) for name, record in state.items() if name.startswith("times")}
                for state in states
            ],
        )

    joint, apart = counted(True), counted(False)
    assert joint[0] < apart[0]
    assert joint[1:] == apart[1:]


def test_with_client_evaluation_a_round_has_as_many_exchanges_as_fedavgs():
    _, _, grid = run()
    introduction, first_pre_round = 1, 1
    assert grid.exchanges == 2 * ROUNDS + introduction + first_pre_round


def test_nobody_trains_for_a_round_that_does_not_come():
    strategy, _, grid = run(mods=(summary_mod,))
    asked = [client for record in strategy.history for client in record.asked]
    trained = [numpy_app.times_trained(context) for context in grid.contexts.values()]
    assert trained == [asked.count(str(client)) for client in range(CLIENTS)]


def test_clients_that_will_cool_down_are_not_asked():
    strategy, _, _ = run()
    for record in strategy.history[1:]:
        assert not set(record.asked) & set(record.cooling)


def tries(strategy):
    """Return the rounds whose summaries were asked for ahead."""
    return [r.round for r in strategy.history if r.pre_round not in ("own", None)]


def test_a_resumed_round_says_whether_its_summaries_had_been_asked_for_ahead(tmp_path):
    def start(stops_in: int, rounds: int):
        def evaluate(number, arrays):
            if number == stops_in:
                raise KeyboardInterrupt

        strategy = PNCS(FedAvg(), checkpoint=tmp_path)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), CLIENTS)
        with suppress(KeyboardInterrupt):
            strategy.start(grid, numpy_app.initial_arrays(), rounds, evaluate_fn=evaluate)
        return [record.pre_round for record in strategy.history]

    start(stops_in=3, rounds=5)  # the second round is the last one saved
    lost = "own: the run was taken up, and what was asked for ahead is lost"
    assert start(stops_in=0, rounds=5) == ["own", "ahead", lost, "ahead", "ahead"]
    # After the last round that was asked for, nobody is asked ahead.
    assert start(stops_in=0, rounds=6)[-1] == "own"


def test_base_strategy_that_changes_its_message_is_right_and_guessed_at_less_and_less(
    caplog, monkeypatch
):
    monkeypatch.setattr(timeouts, "LONGEST_REST", 4)
    caplog.set_level("INFO", logger="flwr")
    rounds = 18
    ahead, result, _ = run(base=Halving(), rounds=rounds)
    own, own_result, _ = run(base=Halving(), rounds=rounds, ride_along=False)
    assert choices(ahead) == choices(own)
    assert result.arrays == own_result.arrays
    assert tries(ahead) == [2, 3, 5, 9, 13, 17]
    reason = "the base strategy sends another message than was expected"
    assert ahead.history[1].pre_round == f"own: {reason}"
    assert ahead.history[1].bytes_down["pre-round unused"] > 0
    told = [r.getMessage() for r in caplog.records if "asked for ahead" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("Round 3: ")
    assert reason in told[0]


def test_a_resumed_run_guesses_when_the_unbroken_one_does(tmp_path, caplog):
    def start(folder, stops_in=None):
        def evaluate(number, arrays):
            if number == stops_in:
                raise KeyboardInterrupt

        strategy = PNCS(Halving(), checkpoint=tmp_path / folder)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), CLIENTS)
        with suppress(KeyboardInterrupt):
            strategy.start(grid, numpy_app.initial_arrays(), 10, evaluate_fn=evaluate)
        return strategy

    caplog.set_level("INFO", logger="flwr")
    whole = start("whole")
    start("broken", stops_in=7)  # when nothing is asked ahead, after misfits in 2, 3 and 5
    caplog.clear()
    resumed = start("broken")
    rows = [
        [(r.pre_round, {**r.bytes_down, "introduction": 0}, r.chosen) for r in each.history]
        for each in (whole, resumed)  # which asks again who the clients are
    ]
    assert rows[0] == rows[1]
    assert tries(resumed) == [2, 3, 5, 9]
    assert "of no use" not in caplog.text  # it was told before


def test_a_base_that_changes_its_message_for_a_while_is_guessed_at_again():
    class Warming(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 0.1 * min(server_round, 4)
            return super().configure_train(server_round, arrays, config, grid)

    strategy, _, _ = run(base=Warming(), rounds=12)
    ahead = [r.round for r in strategy.history if r.pre_round == "ahead"]
    assert tries(strategy) == [2, 3, *ahead]
    assert ahead == list(range(5, 13))


def test_roster_that_changes_between_the_rounds_is_asked_again():
    class Leaving(Counting):
        def get_node_ids(self):
            return list(super().get_node_ids())[: CLIENTS if self.exchanges < 8 else CLIENTS - 2]

    strategy, _, _ = run(
        grid=Leaving(numpy_app.make_app(summary_mod), CLIENTS), queue_length=0, wait_timeout=1
    )
    reasons = [record.pre_round for record in strategy.history]
    assert reasons.count("own: other clients take part than were asked") == 1
    assert reasons[-1] == "ahead"


@pytest.mark.parametrize("combine", ["mean", "sketched-mean"])
def test_too_few_answers_are_asked_for_again(combine):
    """Those that rest, which are asked for the sketched mean, do answer, but cannot be chosen."""

    def fails_once(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        state, phase = context.state, marker.get("phase")
        if phase == "train":
            state["rests"] = ConfigRecord({"from": marker["round"]})
        elif phase == "summarize" and marker["round"] == 3 and not {"failed", "rests"} & {*state}:
            state["failed"] = ConfigRecord({"at": 3})
            return Message(Error(2, "busy"), reply_to=message)
        return call_next(message, context)

    strategy, _, _ = run(mods=(fails_once, summary_mod), combine=combine)
    assert len(strategy.history[2].asked) == (3 if combine == "mean" else 7)
    assert strategy.history[2].pre_round == "own: only 0 that may be chosen answered"
    assert len(strategy.history[2].delivered) == 2


def test_rules_that_ask_for_nothing_have_no_pre_round():
    strategy, _, _ = run(UniformSelection)
    assert [record.pre_round for record in strategy.history] == [None] * ROUNDS


def test_evaluation_is_untouched():
    ahead = run()[1].evaluate_metrics_clientapp
    plain = run(ride_along=False)[1].evaluate_metrics_clientapp
    assert list(ahead) == list(range(1, ROUNDS + 1))
    assert ahead == plain


class Coming(InProcessGrid):
    """Two of the clients are away in each round, and others in the next."""

    rounds_trained = 0

    def get_node_ids(self):
        nodes = list(super().get_node_ids())
        away = {nodes[(3 * self.rounds_trained + k) % len(nodes)] for k in range(2)}
        return [node for node in nodes if node not in away]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        phases = {m.content[MARKER]["phase"] for m in messages if MARKER in m.content}
        replies = super().send_and_receive(messages, timeout=timeout)
        self.rounds_trained += phases == {"train"}
        return replies


class Halving(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.5 / server_round
        return super().configure_train(server_round, arrays, config, grid)


def test_clients_that_come_and_go_do_not_keep_summaries_from_riding_along():
    class Settling(Coming):
        def get_node_ids(self):
            away = self.rounds_trained < 6
            return super().get_node_ids() if away else list(self.contexts)

    strategy, _, _ = run(
        grid=Settling(numpy_app.make_app(summary_mod), CLIENTS),
        queue_length=0,
        rounds=12,
        min_clients=5,
    )
    reasons = [record.pre_round for record in strategy.history]
    assert reasons[1:7] == ["own: other clients take part than were asked"] * 6
    assert reasons[7:] == ["ahead"] * 5


def test_an_update_kept_for_a_guessed_message_is_not_delivered_for_the_real_one():
    """Asked ahead with the guessed message, not asked again with the real one, chosen unasked."""
    unasked = 0
    for seed in range(4):

        def run_coming(ride_along, seed=seed):
            strategy = GradientMemory(
                Halving(),
                num_selected=2,
                seed=seed,
                candidates=3,
                queue_length=0,
                min_clients=5,
                ride_along=ride_along,
            )
            grid = Coming(numpy_app.make_app(summary_mod), CLIENTS)
            result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)
            return strategy, result

        ahead, result = run_coming(True)
        own, own_result = run_coming(False)
        assert choices(ahead) == choices(own)
        assert result.arrays == own_result.arrays
        assert any(record.pre_round.startswith("own: ") for record in ahead.history)
        unasked += sum(len({*r.chosen} - {*r.asked}) for r in ahead.history)
    assert unasked  # else nothing is tested


def test_no_two_pre_rounds_have_one_ticket_also_not_of_one_round_or_of_two_runs():
    tickets: list[tuple[int, str]] = []
    trained: list[str] = []

    class Listening(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            for message in messages:
                marker = message.content.config_records.get(MARKER, {})
                if marker.get("phase") == "summarize":
                    tickets.append((marker["round"], marker["ticket"]))
                if marker.get("phase") == "train":
                    trained.append(marker["ticket"])
            return super().send_and_receive(messages, timeout=timeout)

    for _ in range(2):
        run(base=Halving(), mods=(summary_mod,), grid=Listening(numpy_app.make_app(summary_mod), 7))
    rounds = {ticket: number for number, ticket in tickets}
    assert len(rounds) > 2 * ROUNDS  # some were asked ahead in vain
    assert all(rounds[ticket] == number for number, ticket in tickets)
    assert len(set(trained)) == 2 * ROUNDS
    assert set(trained) < rounds.keys()


def test_candidates_of_which_some_rest_are_asked_once():
    """Fewer may be chosen than a round selects, however they are asked."""
    options = {"candidates": 3, "queue_length": 5, "ride_along": True}
    strategy, _, _ = run(SketchedMean, mods=(summary_mod,), rounds=12, **options)
    assert min(len(record.chosen) for record in strategy.history) == 1
    assert [record.pre_round for record in strategy.history] == ["own"] + ["ahead"] * 11


def test_an_evaluation_that_returns_no_message_says_so():
    strategy, _, _ = run(mods=(SummaryMod(evaluate=lambda message, context: None),), rounds=2)
    assert any(
        "returned NoneType, but must return a Message" in n for n in strategy.history[0].notes
    )
