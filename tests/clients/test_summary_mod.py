"""The mod on the client: what it answers, what it keeps, and what it leaves alone."""

import numpy as np
import pytest
from apps import client_fn_app, numpy_app
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from pncs_flower.clients import SummaryMod, summary_mod
from pncs_flower.protocol import MARKER, SUMMARY, SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.sketches.kinds import parse_sketch

NODE = 1000  # client 0 of an in-process grid


def ask(grid: InProcessGrid, phase: str | None, round: int = 1, **values) -> Message:
    content = {"arrays": numpy_app.initial_arrays(), "config": ConfigRecord({"lr": 0.25})}
    if phase is not None:
        marker = {"phase": phase, "round": round, "seed": 5, "ticket": "a", **values}
        content[MARKER] = ConfigRecord(marker)
    message = Message(RecordDict(content), NODE, MessageType.TRAIN)
    (reply,) = grid.send_and_receive([message])
    return reply


def summarize(grid, round: int = 1, kind="update", sketch="layers", layers=None, **more) -> Message:
    request = SummaryRequest(kind, sketch, layers)
    return ask(grid, "summarize", round, **request.to_config(), **more)


def ask_loss(grid: InProcessGrid, max_examples: int = 0) -> Message:
    request = SummaryRequest("loss", max_examples=max_examples)
    marker = ConfigRecord({"phase": "summarize", "round": 1, "seed": 5, **request.to_config()})
    content = {"arrays": numpy_app.initial_arrays(), "config": ConfigRecord(), MARKER: marker}
    message = Message(RecordDict(content), NODE, MessageType.EVALUATE)
    (reply,) = grid.send_and_receive([message])
    return reply


def federation(mod=summary_mod) -> InProcessGrid:
    return InProcessGrid(numpy_app.make_app(mod), 2)


def trained(grid: InProcessGrid) -> int:
    return numpy_app.times_trained(grid.contexts[NODE])


def test_introduction_tells_the_key_and_does_not_call_the_app():
    grid = federation()
    answer = ask(grid, "introduce").content[MARKER]
    assert dict(answer) == {"key": "0", "num-clients": 2}
    assert trained(grid) == 0


def test_a_new_strategy_in_the_same_run_does_not_get_what_was_kept_for_the_one_before():
    grid = federation()
    summarize(grid, round=3)
    ask(grid, "introduce")
    ask(grid, "train", round=3)
    assert trained(grid) == 2


@pytest.mark.parametrize("sketch", ["layers", "coordinates:3", "count:4"])
def test_update_summary_is_the_sketch_of_weights_before_minus_after(sketch):
    summary = summarize(federation(), round=4, sketch=sketch, layers=("head",)).content[SUMMARY]
    # From zero weights with learning rate 1/4 the update is -target/4.
    update = -np.concatenate(
        [numpy_app.target(0, name).ravel() / 4 for name in ("head.weight", "head.bias")]
    )
    expected = parse_sketch(sketch).encode(update, seed=5, round=4, layer="head")
    assert list(summary) == ["head"]
    np.testing.assert_allclose(summary["head"].numpy(), expected, rtol=1e-6)


def test_gradient_summary_is_the_sketch_of_the_apps_gradient_and_trains_nobody():
    grid = federation(SummaryMod(gradient=numpy_app.gradient))
    summary = summarize(grid, kind="gradient", layers=("body",)).content[SUMMARY]
    expected = -np.concatenate(
        [numpy_app.target(0, name).ravel() for name in ("body.weight", "body.bias")]
    )
    np.testing.assert_allclose(summary["body"].numpy(), expected, rtol=1e-6)
    assert trained(grid) == 0


def test_kept_update_is_sent_once_without_training_again():
    grid = federation()
    summarize(grid)
    kept, fresh = (ask(grid, "train").content for _ in range(2))
    assert trained(grid) == 2  # once in the pre-round, once more when nothing was kept any longer
    assert kept == fresh
    assert kept["metrics"]["num-examples"] == 1


def test_kept_update_is_exactly_what_plain_training_returns():
    grid = federation()
    plain = ask(grid, None).content
    summarize(grid)
    assert ask(grid, "train").content == plain


@pytest.mark.parametrize("ticket", ["b", ""], ids=["another", "none"])
def test_update_kept_for_another_pre_round_is_not_sent_even_in_the_same_round(ticket):
    grid = federation()
    summarize(grid)
    ask(grid, "train", ticket=ticket)
    assert trained(grid) == 2
    summarize(grid, ticket=ticket)
    ask(grid, "train")
    assert trained(grid) == 4


def test_update_kept_without_a_ticket_is_never_sent():
    grid = federation()
    summarize(grid, ticket="")
    ask(grid, "train", ticket="")
    assert trained(grid) == 2


def test_nothing_of_a_kept_update_stays_in_the_state_once_it_is_sent_or_outdated():
    grid = federation()
    state_before = set(ask_and_state(grid))
    summarize(grid)
    assert len(grid.contexts[NODE].state) > len(state_before)
    assert set(ask_and_state(grid)) == state_before


def ask_and_state(grid: InProcessGrid) -> list[str]:
    ask(grid, "train")
    return list(grid.contexts[NODE].state)


def test_messages_without_a_marker_reach_the_app_unchanged():
    grid = federation()
    reply = ask(grid, None)
    np.testing.assert_allclose(
        reply.content["arrays"]["head.bias"].numpy(), numpy_app.target(0, "head.bias") / 4
    )


def test_unknown_layer_is_an_error_reply_that_lists_the_layers():
    reply = summarize(federation(), layers=("neck",))
    assert "body, head" in reply.error.reason


def test_unknown_phase_is_an_error_reply():
    assert "unknown phase 'dance'" in ask(federation(), "dance").error.reason


def test_gradient_of_an_app_without_one_is_an_error_reply_with_the_remedy():
    reply = summarize(federation(), kind="gradient")
    assert "SummaryMod(gradient=...)" in reply.error.reason


def test_app_that_trains_more_than_one_array_record_is_an_error_reply():
    def two_records(message, context, call_next):
        reply = call_next(message, context)
        reply.content["more"] = ArrayRecord([np.zeros(2)])
        return reply

    grid = InProcessGrid(numpy_app.make_app(summary_mod, two_records), 1)
    assert "2 array records" in summarize(grid).error.reason


def test_app_whose_reply_lacks_an_array_is_an_error_reply_that_names_it():
    def forgetful(message, context, call_next):
        reply = call_next(message, context)
        del reply.content["arrays"]["head.bias"]
        return reply

    grid = InProcessGrid(numpy_app.make_app(summary_mod, forgetful), 1)
    assert "'head.bias'" in summarize(grid).error.reason


def test_client_fn_app_remembers_its_kind_between_messages():
    grid = InProcessGrid(client_fn_app.make_app(summary_mod), 1)
    content = RecordDict(
        {
            "arrays": client_fn_app.initial_arrays(),
            "config": ConfigRecord({"server-round": 1}),
        }
    )
    for _ in range(2):
        (reply,) = grid.send_and_receive([Message(content, NODE, MessageType.TRAIN)])
        assert dict(reply.content["metrics"]) == {"num-examples": 1, "round": 1}
    assert "pncs-client-fn" in grid.contexts[NODE].state


@pytest.mark.parametrize("message_type", ["query", "train.sgd"])
def test_client_fn_app_is_handed_what_it_has_no_name_for(message_type):
    content = RecordDict({"arrays": client_fn_app.initial_arrays(), "config": ConfigRecord()})
    content["config"]["server-round"] = 1

    def reasons(first: str | None) -> str:
        grid = InProcessGrid(client_fn_app.make_app(summary_mod), 1)
        if first:
            grid.send_and_receive([Message(content, NODE, first)])
        (reply,) = grid.send_and_receive([Message(content, NODE, message_type)])
        return reply.error.reason

    assert reasons(MessageType.TRAIN) == reasons(
        None
    )  # Flower's own word, which says what is wrong


def test_key_error_of_an_ordinary_app_stays_an_error():
    def broken(message, context, call_next):
        raise KeyError("lr")

    grid = InProcessGrid(numpy_app.make_app(summary_mod, broken), 1)
    assert "<class 'KeyError'>" in ask(grid, None).error.reason


def test_loss_is_that_of_the_apps_evaluate_function_and_trains_nobody():
    grid = federation()
    summary = ask_loss(grid).content[SUMMARY]
    expected = sum(float((numpy_app.target(0, n) ** 2).sum()) / 2 for n in numpy_app.LAYERS)
    assert summary["loss"].numpy() == pytest.approx([expected], rel=1e-6)
    assert summary["num-examples"].numpy().tolist() == [1]
    assert trained(grid) == 0


def test_loss_of_few_examples_is_a_wish_in_the_evaluations_config():
    seen = []

    def spy(message, context, call_next):
        seen.append(dict(message.content["config"]))
        return call_next(message, context)

    ask_loss(InProcessGrid(numpy_app.make_app(summary_mod, spy), 1), max_examples=32)
    assert seen == [{"pncs-max-examples": 32}]


def test_evaluate_function_without_a_loss_is_an_error_reply_that_says_what_is_missing():
    def no_loss(message, context, call_next):
        reply = call_next(message, context)
        del reply.content["metrics"]["loss"]
        return reply

    grid = InProcessGrid(numpy_app.make_app(summary_mod, no_loss), 1)
    assert "must return the metrics 'loss' and 'num-examples'" in ask_loss(grid).error.reason


def test_introduction_tells_the_number_of_examples_where_the_app_does():
    grid = federation(SummaryMod(num_examples=lambda context: 12))
    assert ask(grid, "introduce").content[MARKER]["num-examples"] == 12


@pytest.mark.parametrize("name", ["gradient", "num_examples", "evaluate"])
@pytest.mark.parametrize("given", [5, True, "app", {}])
def test_what_must_be_a_function_is_refused_if_it_is_none(name, given):
    with pytest.raises(TypeError, match=rf"{name} is .* must be a function or None"):
        SummaryMod(**{name: given})
