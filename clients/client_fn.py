"""Lets an app of the older kind, `ClientApp(client_fn)`, answer message-based strategies.

Such an app expects records under fixed names (``fitins.parameters``, ...), which only the older
strategies send. What comes back is renamed in the same way.
"""

from collections.abc import Callable, Iterable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

__all__ = ["App", "call_app", "named"]

App = Callable[[Message, Context], Message]
"""What a mod calls to hand a message on: the mods behind it, and at last the app."""

_STATE = "pncs-client-fn"
# What the older kind of app calls an instruction and its result, by message type.
_NAMES = {"train": ("fitins", "fitres"), "evaluate": ("evaluateins", "evaluateres")}
_STATUS_OK = 0


def call_app(message: Message, context: Context, app: App) -> Message:
    """Call an app of either kind with a message of a message-based strategy."""
    if message.metadata.message_type not in _NAMES:
        return app(message, context)
    instruction, _ = _NAMES[message.metadata.message_type]
    if _STATE not in context.state:
        try:
            return app(message, context)
        except KeyError as error:
            # Only the handler of `client_fn` looks for this name, before it calls the client.
            if error.args != (f"{instruction}.parameters",):
                raise
            # The next message may meet a new process.
            context.state[_STATE] = ConfigRecord({"detected": True})
    return _call_client_fn(message, context, app)


def _call_client_fn(message: Message, context: Context, app: App) -> Message:
    instruction, result = _NAMES[message.metadata.message_type]
    content = message.content
    (name, arrays), *more = content.array_records.items()
    configs = list(content.config_records.values())
    if more or len(configs) > 1:
        raise ValueError(
            "a client_fn app takes one array record and one config record, but the message has "
            f"{1 + len(more)} and {len(configs)}"
        )
    message.content = RecordDict(
        {
            f"{instruction}.parameters": arrays,
            f"{instruction}.config": configs[0] if configs else ConfigRecord(),
        }
    )
    reply = app(message, context)
    if reply.has_error():
        return reply
    answer = reply.content
    status = answer.config_records[f"{result}.status"]
    if status["code"] != _STATUS_OK:
        raise RuntimeError(
            f"the client answered with status {status['code']!s}: {status['message']!s}"
        )
    metrics = MetricRecord(
        {
            key: value
            for key, value in answer.config_records.get(f"{result}.metrics", {}).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
    )
    metrics["num-examples"] = answer.metric_records[f"{result}.num_examples"]["num_examples"]
    records = RecordDict({"metrics": metrics})
    if f"{result}.loss" in answer.metric_records:
        metrics["loss"] = answer.metric_records[f"{result}.loss"]["loss"]
    if f"{result}.parameters" in answer.array_records:
        update = answer.array_records[f"{result}.parameters"]
        records[name] = named(arrays, list(update.values()))
    return Message(records, reply_to=message)


def named(names: Iterable[str], arrays: list[Array]) -> ArrayRecord:
    """Return what fit() returned under the model's names, which the older kind does not know."""
    known = list(names)
    if len(arrays) != len(known):
        raise ValueError(f"fit() returned {len(arrays)} arrays, but the model has {len(known)}")
    return ArrayRecord(dict(zip(known, arrays, strict=True)))
