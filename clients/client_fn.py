"""Lets an app of the older kind, `ClientApp(client_fn)`, answer message-based strategies.

Such an app expects records under fixed names (``fitins.parameters``, ...), which only the older
strategies send. What comes back is renamed in the same way.
"""

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from pncs_flower.messages.records import of_kind

# What a mod calls to hand a message on: the mods behind it, and at last the app.
App = Callable[[Message, Context], Message]

_STATE = "pncs-client-fn"
# What the older kind of app calls an instruction and its result, by message type.
_NAMES = {"train": ("fitins", "fitres"), "evaluate": ("evaluateins", "evaluateres")}


def call_app(message: Message, context: Context, app: App) -> Message:
    """Call an app of either kind with a message of a message-based strategy."""
    names = _NAMES.get(message.metadata.message_type)
    if names is None:
        return app(message, context)
    if _STATE not in context.state:
        try:
            return app(message, context)
        except KeyError as error:
            # Only the handler of `client_fn` looks for this name, before it calls the client.
            if error.args != (f"{names[0]}.parameters",):
                raise
            # The next message may meet a new process.
            context.state[_STATE] = ConfigRecord({"detected": True})
    return _call_client_fn(message, context, app, *names)


def _call_client_fn(
    message: Message, context: Context, app: App, instruction: str, result: str
) -> Message:
    (name, weights), *more = of_kind(message.content, ArrayRecord).items()
    configs = list(of_kind(message.content, ConfigRecord).values())
    if more or len(configs) > 1:
        raise ValueError(
            "a client_fn app takes one array record and one config record, but the message has "
            f"{1 + len(more)} and {len(configs)}"
        )
    message.content = RecordDict(
        {
            f"{instruction}.parameters": weights,
            f"{instruction}.config": configs[0] if configs else ConfigRecord(),
        }
    )
    reply = app(message, context)
    if reply.has_error():
        return reply
    arrays, numbers = of_kind(reply.content, ArrayRecord), of_kind(reply.content, MetricRecord)
    texts = of_kind(reply.content, ConfigRecord)
    status = texts[f"{result}.status"]
    if status["code"] != 0:  # not OK
        raise RuntimeError(
            f"the client answered with status {status['code']!s}: {status['message']!s}"
        )
    metrics = MetricRecord(
        {
            key: value
            for key, value in texts.get(f"{result}.metrics", ConfigRecord()).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
    )
    metrics["num-examples"] = numbers[f"{result}.num_examples"]["num_examples"]
    records = RecordDict({"metrics": metrics})
    if f"{result}.loss" in numbers:
        metrics["loss"] = numbers[f"{result}.loss"]["loss"]
    if f"{result}.parameters" in arrays:
        records[name] = named(weights, list(arrays[f"{result}.parameters"].values()))
    return Message(records, reply_to=message)


def named(weights: ArrayRecord, arrays: list[Array]) -> ArrayRecord:
    """Return what fit() returned under the model's names, which the older kind does not know."""
    if len(arrays) != len(weights):
        raise ValueError(f"fit() returned {len(arrays)} arrays, but the model has {len(weights)}")
    return ArrayRecord(dict(zip(weights, arrays, strict=True)))
