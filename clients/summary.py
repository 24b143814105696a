"""The one line on the client: a mod that answers the pre-round for any ClientApp."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from functools import cache, partial
from logging import ERROR, INFO
from typing import get_args

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import log

from pncs_flower import protocol
from pncs_flower.layers import choose_vectors, local_change
from pncs_flower.messages.arrays import read_array
from pncs_flower.messages.joint import join, part
from pncs_flower.messages.records import make_message, of_kind, own_copy
from pncs_flower.protocol import (
    LOSS,
    MARKER,
    NUM_EXAMPLES,
    SUMMARIZE,
    SUMMARY,
    SummaryRequest,
)
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.tags import Tags, check_tags

from .client_fn import App, call_app
from .form import check_form
from .kept import drop_kept, keep, restored, take_kept
from .privacy import SketchNoise

_ENGINES = ("ray", "pncs_flower.simulations.run.in_process")  # a SuperNode loads none of them

GradientFunction = Callable[[Message, Context], ArrayRecord]


def client_key(context: Context) -> str:
    """Return a client's key: its node config's ``partition-id``, else ``name``, else its node id.

    Node ids are drawn anew in every run, so they can neither seed a client nor name it in a result.
    """
    for name in ("partition-id", "name"):
        if name in context.node_config:
            return str(context.node_config[name])
    return str(context.node_id)


class SummaryMod:
    """Answer the pre-round of a selection strategy on behalf of a ClientApp.

    Put it first among the app's mods, ``ClientApp(mods=[summary_mod])``, so that a summary is that
    of the update as it leaves the client, after clipping or noise. Messages of other strategies
    pass through.

    Every client that is asked trains, and keeps its update in ``context.state`` under names that
    begin with ``pncs-kept`` until it is chosen or hears of the next round. A simulation, which
    holds the states of all its clients, so holds a model for each one that was asked: 64 MB of all
    in memory, and what is more, on Linux, in files without a name in the folder for temporary ones.

    Parameters
    ----------
    gradient : callable, optional (default: None)
        ``gradient(message, context) -> ArrayRecord``: the gradient of the client's loss at the
        weights in the message, which is that of the train function, under the names of the weights
        (both, of tied weights). Needed only where a strategy asks for it (``summary="gradient"``).
    num_examples : callable, optional (default: None)
        ``num_examples(context) -> int``: how many training examples the client has, for rules that
        weigh clients by size from the first round on; else they learn it from the replies.
    tags : callable, optional (default: None)
        ``tags(context) -> dict``: what else the server is to know of the client for who chooses,
        such as ``{"site": context.node_config["site"]}``; at most 20, each a short text, a number,
        or True or False. Nothing else of the node config leaves the client.
    epochs : callable, optional (default: None)
        ``epochs(context) -> float``: how often the app goes through its training examples when it
        trains. Told only to a strategy with simulated devices, whose clock it is for.
    noise : SketchNoise, optional (default: None)
        Clip each summary and add noise to it before it leaves.
    restore_state : bool (default: False)
        For an app that keeps something in ``context.state``: after a pre-round it is put back to
        what it was, and a client that is chosen then has the state that its training left. So only
        the chosen count as having trained, as they would without a pre-round. False leaves the
        state as the pre-round's training left it, also on clients that are not chosen.
    evaluate : callable, optional (default: None)
        ``evaluate(message, context) -> Message``: how the app evaluates. With it, an evaluation and
        the request for the next round's summary come as one message, where there would be two:
        a mod can call only the one function of the app that a message is for. An error in one of
        them costs only that; a client that hangs has answered neither. The app's mods are called
        too if it is the app itself that is given::

            app = ClientApp(
                mods=[SummaryMod(evaluate=lambda message, context: app(message, context))]
            )
    """

    def __init__(
        self,
        gradient: GradientFunction | None = None,
        num_examples: Callable[[Context], int] | None = None,
        noise: SketchNoise | None = None,
        restore_state: bool = False,
        evaluate: App | None = None,
        tags: Callable[[Context], Tags] | None = None,
        epochs: Callable[[Context], float] | None = None,
    ) -> None:
        if isinstance(gradient, Message):
            raise TypeError(
                "the mod is summary_mod, or SummaryMod(...), not the class itself: "
                "ClientApp(mods=[summary_mod])"
            )
        functions: dict[str, object] = {
            "gradient": gradient,
            "num_examples": num_examples,
            "evaluate": evaluate,
            "tags": tags,
            "epochs": epochs,
        }
        for name, given in functions.items():
            if given is not None and not callable(given):
                raise TypeError(f"{name} is {given!r}, but must be a function or None")
        self._gradient = gradient
        self._num_examples = num_examples
        self._tags = tags
        self._epochs = epochs
        self._noise = noise
        self._restore_state = restore_state
        self._evaluate = evaluate
        self._noise_told = False

    def __call__(self, message: Message, context: Context, call_next: App) -> Message:
        """Answer a message of the library; hand on any other to the app."""
        marker = message.content.get(MARKER)
        if not isinstance(marker, ConfigRecord):
            return call_app(message, context, call_next)

        # The app sees the message that its strategy built, without our record in it.
        message.content = message.content.copy()
        del message.content[MARKER]
        phase = str(marker["phase"])
        if phase == protocol.INTRODUCE:
            drop_kept(context.state)  # a run may hold several strategies, each with a round 1
            return self._introduce(message, context, bool(marker.get(protocol.EPOCHS)))
        if phase == SUMMARIZE:
            drop_kept(context.state)
            message.content, evaluation = part(message.content)
            summarize = partial(self._summarize, call_next=call_next, marker=marker)
            if evaluation and self._evaluate is not None:
                return _answer_both(message, context, evaluation, self._evaluate, summarize)
            return summarize(message, context)
        if phase == protocol.TRAIN:
            kept = take_kept(context.state, str(marker.get(protocol.TICKET, "")))
            if kept is None and marker.get(protocol.KEPT):
                kept = RecordDict({MARKER: ConfigRecord({protocol.LOST: True})})
            if kept is None:
                return call_app(message, context, call_next)
            return Message(kept, reply_to=message)
        raise ValueError(
            f"unknown phase {phase!r}: this client knows {', '.join(get_args(protocol.Phase))}; "
            "do the server and the client have the same release of pncs-flower?"
        )

    def _summarize(
        self, message: Message, context: Context, call_next: App, marker: ConfigRecord
    ) -> Message:
        """Answer a request for a summary."""
        with restored(context.state) if self._restore_state else nullcontext():
            return self._summary(message, context, call_next, marker)

    def _summary(
        self, message: Message, context: Context, call_next: App, marker: ConfigRecord
    ) -> Message:
        request = SummaryRequest.from_config(marker)
        if self._noise is not None:
            self._noise.check_request(request)
        if request.kind == "loss":
            return _loss(message, context, call_next, request)
        # The records are the app's, which may put its update in place of the weights in them.
        weights = _only_arrays(message.content, "the training message").copy()
        wanted = {
            record: (parse_sketch(part.sketch), choose_vectors(weights, part.layers, part.whole))
            for record, part in request.parts.items()
        }
        if request.kind == "gradient":
            if self._gradient is None:
                raise ValueError(
                    "the strategy asks for the gradient at the current weights, which this app "
                    "cannot give: use SummaryMod(gradient=...) in place of summary_mod, or "
                    "summary='update' on the server"
                )
            given = self._gradient(message, context)
            if not isinstance(given, ArrayRecord):
                raise TypeError(
                    f"the gradient function returned {type(given).__name__}, but must return an "
                    "ArrayRecord with the names of the model's arrays"
                )
            _, layers = wanted[SUMMARY]
            names = [name for arrays in layers.values() for name in arrays]
            check_form(given, weights, names, "the gradient function's result")
        else:
            reply = call_app(message, context, call_next)
            if reply.has_error():
                return reply
            what = "the reply of the app's train function"
            given = _only_arrays(reply.content, what)
            check_form(given, weights, {**weights, **given}, what)
            # For the round that this pre-round leads to: the state may outlive that, and the same
            # round may have asked before with another message.
            ticket = str(marker.get(protocol.TICKET, ""))
            keep(context.state, ticket, reply.content, _num_clients_here(context))

        def values(name: str) -> np.ndarray:
            value = read_array(given[name])
            if request.kind == "gradient":
                return value
            return local_change(read_array(weights[name]), value)

        if request.besides:  # each array is read for both of its sketches
            values = cache(values)
        seed, server_round = int(marker["seed"]), int(marker["round"])  # type: ignore[arg-type]
        summary = {
            record: {
                layer: sketch.encode(
                    np.concatenate([values(name).ravel() for name in names]),
                    seed=seed,
                    round=server_round,
                    layer=layer,
                )
                for layer, names in vectors.items()
            }
            for record, (sketch, vectors) in wanted.items()
        }
        if self._noise is not None:
            if not self._noise_told:
                self._noise_told = True
                log(INFO, self._noise.describe())
            summary = self._noise.apply(summary, server_round, client_key(context))
        content = RecordDict(
            {
                record: ArrayRecord({layer: Array(encoded) for layer, encoded in sketches.items()})
                for record, sketches in summary.items()
            }
        )
        return Message(content, reply_to=message)

    def _introduce(self, message: Message, context: Context, clocked: bool) -> Message:
        answer = ConfigRecord({"key": client_key(context)})
        if self._evaluate is not None:
            answer[protocol.JOINT] = True
        if (num_clients := _num_clients(context)) is not None:
            answer["num-clients"] = num_clients
        asked = "num_examples"
        try:
            if self._num_examples is not None:
                answer[NUM_EXAMPLES] = int(self._num_examples(context))
            asked = "tags"
            if self._tags is not None:
                for name, value in check_tags(self._tags(context)).items():
                    answer[f"{protocol.TAG}{name}"] = value
            asked = "epochs"
            if clocked and self._epochs is not None:
                answer[protocol.EPOCHS] = _checked_epochs(self._epochs(context))
        # An error reply would look like that of an app without the mod.
        except Exception as error:
            log(ERROR, "%s(context) failed.", asked, exc_info=error)
            problem = f"{asked}(context) raised {type(error).__name__}: {error}"
            answer = ConfigRecord({protocol.PROBLEM: problem})
        return Message(RecordDict({MARKER: answer}), reply_to=message)


summary_mod = SummaryMod()
"""The mod as most apps need it: ``ClientApp(mods=[summary_mod])``."""


def _checked_epochs(epochs: float) -> float:
    """Return a number of epochs, or raise ValueError for one that cannot be."""
    if not 0 < float(epochs) <= protocol.MOST_EPOCHS:
        most = protocol.MOST_EPOCHS
        raise ValueError(f"it returned {epochs}, but must return above 0 and at most {most:g}")
    return float(epochs)


def _num_clients(context: Context) -> int | None:
    """Return how many clients there are, if the client was told."""
    found = context.node_config.get("num-partitions")
    return found if isinstance(found, int) else None


def _num_clients_here(context: Context) -> int:
    """Return how many clients there are in one place: in a simulation, all, and else this one."""
    simulated = any(engine in sys.modules for engine in _ENGINES)
    return (simulated and _num_clients(context)) or 1


def _loss(message: Message, context: Context, call_next: App, request: SummaryRequest) -> Message:
    if request.max_examples:  # in records of our own: a grid may hand one to many clients
        for record_name, config in of_kind(message.content, ConfigRecord).items():
            wanted = ConfigRecord({**config, protocol.MAX_EXAMPLES: request.max_examples})
            message.content[record_name] = wanted
    reply = call_app(message, context, call_next)
    if reply.has_error():
        return reply
    metrics = {
        name: value
        for record in of_kind(reply.content, MetricRecord).values()
        for name, value in record.items()
        if not isinstance(value, list)
    }
    losses = [name for name in metrics if LOSS in name.lower()]
    name = LOSS if LOSS in losses else losses[0] if len(losses) == 1 else None
    if name is None or NUM_EXAMPLES not in metrics:
        raise ValueError(
            f"the strategy asks for the loss: the app's evaluate function must return the metrics "
            f"{LOSS!r} and {NUM_EXAMPLES!r}, but returns {', '.join(metrics) or 'none'}"
        )
    answer = {LOSS: metrics[name], NUM_EXAMPLES: metrics[NUM_EXAMPLES]}
    summary = ArrayRecord({key: Array(np.array([value])) for key, value in answer.items()})
    return Message(RecordDict({SUMMARY: summary}), reply_to=message)


def _answer_both(
    message: Message, context: Context, evaluation: RecordDict, evaluate: App, summarize: App
) -> Message:
    """Answer an evaluation and the request for a summary, each as if it had come alone."""
    answers, problems = dict[str, RecordDict](), ConfigRecord()
    for what, content, answer in (
        (MessageType.EVALUATE, evaluation, evaluate),
        (SUMMARIZE, message.content, summarize),
    ):
        metadata = copy(message.metadata)
        if answer is evaluate:
            metadata.message_type = MessageType.EVALUATE
        before = own_copy(context.state)
        try:
            reply = answer(make_message(metadata, content), context)
            if not isinstance(reply, Message):
                raise TypeError(f"it returned {type(reply).__name__}, but must return a Message")
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        # As Flower does with it, but the other half of the message is not to blame.
        except Exception as error:
            log(ERROR, "A client failed to %s.", what, exc_info=error)
            problems[what] = f"{type(error)}:<'{error}'>"
            context.state = before
        else:
            answers[what] = reply.content
    nothing = RecordDict()
    content = join(answers.get(SUMMARIZE, nothing), answers.get(MessageType.EVALUATE, nothing))
    if problems:
        content[MARKER] = problems
    return Message(content, reply_to=message)


def _only_arrays(content: RecordDict, what: str) -> ArrayRecord:
    records = of_kind(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(
            f"{what} has {len(records)} array records, but a summary needs exactly one: the model"
        )
    return next(iter(records.values()))
