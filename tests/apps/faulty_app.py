"""The NumPy app with clients that fail at random, in the same places in every engine."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from apps import numpy_app
from pncs_flower.clients import summary_mod
from pncs_flower.protocol import MARKER
from pncs_flower.randomness import generator

SHARE = 0.05  # of all summaries and updates


def initial_arrays() -> ArrayRecord:
    """Return a model of one layer: in a long run, most time goes into the arrays' headers."""
    return ArrayRecord({"head.weight": numpy_app.initial_arrays()["head.weight"]})


def fault(message: Message, context: Context) -> str | None:
    """Return what is wrong with a client in a phase of a round, if anything is."""
    marker = message.content.config_records.get(MARKER, ConfigRecord())
    if "round" not in marker:
        return None
    client = int(context.node_config["partition-id"])
    rng = generator("fault", str(marker["phase"]), int(str(marker["round"])), client)
    return str(rng.choice(["raises", "NaN", "wrong shape"])) if rng.random() < SHARE else None


def fails(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Raise, or spoil every array of the reply, where `fault` says so."""
    what = fault(message, context)
    if what == "raises":
        raise OSError("no data")
    reply = call_next(message, context)
    if what is None:
        return reply
    content = RecordDict({name: record.copy() for name, record in reply.content.items()})
    for record in content.array_records.values():
        for name, array in record.items():
            values = array.numpy()
            bad = np.full_like(values, np.nan) if what == "NaN" else values.ravel()[1:]
            record[name] = Array(bad)
    return Message(content, reply_to=message)


def make_app() -> ClientApp:
    """Return the app of every client."""
    return numpy_app.make_app(fails, summary_mod)
