"""One client of four that answers a phase in a way of its own, for the tests of faults."""

import numpy as np
from apps import numpy_app
from flwr.app import Array, ArrayRecord, Message, RecordDict

from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER, SUMMARY
from pncs_flower.simulations.run.in_process import InProcessGrid

CULPRIT = 1


def culprit_sends(phase, answer):
    """Return a mod that lets one client answer a phase in its own way."""

    def mod(message, context, call_next):
        marker = message.content.config_records.get(MARKER, {})
        if marker.get("phase") == phase and context.node_config["partition-id"] == CULPRIT:
            return answer(message, call_next(message, context))
        return call_next(message, context)

    return mod


def run(phase, answer, strategy, rounds: int = 2):
    app = numpy_app.make_app(culprit_sends(phase, answer), summary_mod)
    return strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=rounds)


def boom(message, reply):
    raise RuntimeError("\x1b[31mboom\x1b[0m")


def with_summary(change):
    def answer(message, reply):
        summary = ArrayRecord(dict(reply.content[SUMMARY].items()))
        change(summary)
        return Message(RecordDict({SUMMARY: summary}), reply_to=message)

    return answer


def filled(value):
    return with_summary(lambda s: s.update(head=Array(np.full(8, value, np.float32))))


def with_update(change):
    def answer(message, reply):
        content = RecordDict({name: record.copy() for name, record in reply.content.items()})
        change(content)
        return Message(content, reply_to=message)

    return answer
