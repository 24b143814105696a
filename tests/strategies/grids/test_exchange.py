"""Replies are told apart by the message they answer."""

import pytest
from apps import numpy_app
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.server.superlink.linkstate.utils import MESSAGE_UNAVAILABLE_ERROR_REASON

from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies.grids.exchange import content_bytes, sort_replies


def sent_messages(count: int) -> list[Message]:
    InProcessGrid(numpy_app.make_app(), 1)  # gives this process the identity that messages need
    messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in range(10, 10 + count)]
    for index, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"m{index}"
    return messages


def content(number: int) -> RecordDict:
    return RecordDict({"c": ConfigRecord({"number": number})})


def test_server_made_error_counts_for_the_node_that_was_asked():
    (message,) = sent_messages(1)
    error = Message(Error(5, "Node Unavailable"), reply_to=message)
    error.metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own id
    replies = sort_replies([message], [error], "missing")
    assert replies.failures == {10: "Node Unavailable"}


def test_second_reply_and_foreign_reply_are_ignored():
    messages = sent_messages(2)
    first, second = (Message(content(n), reply_to=messages[0]) for n in (1, 2))
    foreign = Message(content(3), reply_to=messages[1])
    foreign.metadata.__dict__["_reply_to_message_id"] = "of another round"
    replies = sort_replies(messages, [first, second, foreign], "no reply")
    assert list(replies.contents) == [10]
    assert replies.contents[10]["c"]["number"] == 1
    assert replies.failures == {11: "no reply"}


def test_reason_is_the_last_line_without_colours():
    (message,) = sent_messages(1)
    reason = (
        "\x1b[36mray::actor()\x1b[39m\nTraceback ...\n  File x\nValueError: \x1b[1mbad\x1b[0m\n\n"
    )
    error = Message(Error(2, reason), reply_to=message)
    assert sort_replies([message], [error], "").failures == {10: "ValueError: bad"}


def test_a_reason_cannot_pass_for_another_line_or_write_to_the_terminal():
    (message,) = sent_messages(1)
    error = Message(Error(2, "no\x1b]0;title\x07 disk\x08\x08\rleft\x00"), reply_to=message)
    (reason,) = sort_replies([message], [error], "").failures.values()
    assert reason.isprintable()


def test_message_whose_time_is_up_counts_as_not_answered():
    (message,) = sent_messages(1)
    error = Message(Error(3, MESSAGE_UNAVAILABLE_ERROR_REASON), reply_to=message)
    error.metadata.__dict__["_src_node_id"] = 1
    assert sort_replies([message], [error], "no reply in time").failures == {10: "no reply in time"}


def test_a_node_that_talks_like_the_server_is_quoted():
    (message,) = sent_messages(1)
    error = Message(Error(3, f"Sorry. {MESSAGE_UNAVAILABLE_ERROR_REASON}"), reply_to=message)
    (reason,) = sort_replies([message], [error], "no reply in time").failures.values()
    assert reason.startswith("Sorry. ")


@pytest.mark.parametrize("code", range(-1, 10))
def test_no_error_of_a_node_is_more_than_that_node_s(code):
    (message,) = sent_messages(1)
    error = Message(Error(code, "ray\nActorDiedError: the actor died"), reply_to=message)
    ((node_id, reason),) = sort_replies([message], [error], "").failures.items()
    assert node_id == 10
    assert reason.endswith("ActorDiedError: the actor died")


def test_text_that_is_not_unicode_is_counted_all_the_same():
    record = ConfigRecord({"\ud800": "\udfff"})
    assert content_bytes(RecordDict({"c": record})) == 6


def test_bytes_are_those_of_names_and_values():
    record = ConfigRecord({"a": "", "bc": "é", "n": 1, "f": True, "l": [1.0, 2.0], "b": b"123"})
    assert content_bytes(RecordDict({"c": record})) == 7 + 0 + 2 + 8 + 1 + 16 + 3
