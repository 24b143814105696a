"""What a base strategy must be like to be given a few chosen clients."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from logging import WARNING

from flwr.app import Message
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from .errors import SelectionError, named


def check_base(base: Strategy, num_selected: int) -> None:
    """Refuse a base strategy that could not work with the number of clients it is given."""
    if not isinstance(base, Strategy):
        raise TypeError(
            f"base is {type(base).__name__}, but must be a strategy of flwr.serverapp.strategy, "
            "such as FedAvg()"
        )
    for strategy in list(unwrap(base)):
        name = type(strategy).__name__
        if hasattr(strategy, "history") and hasattr(strategy, "rule"):
            raise ValueError(f"base is {name}, which selects clients itself: do not wrap it twice")
        if type(strategy).start is not Strategy.start:
            log(
                WARNING,
                "%s has a start() of its own, which is not called: the selection strategy's is. "
                "What it does after each round belongs into start(evaluate_fn=...), which gets the "
                "round and the model, or start(should_stop=...), which gets the round and all "
                "metrics so far (let it return False); what it does before or after all rounds "
                "belongs before or after start()",
                type(strategy).__name__,
            )
        check_limits(strategy, num_selected, ("min_train_nodes", "min_available_nodes"), "train")


def check_limits(
    strategy: object, num_selected: int, least_options: tuple[str, ...], phase: str
) -> None:
    """Refuse a strategy, of either of Flower's interfaces, whose limits do not suit its clients."""
    # ``least_options`` name its options that say how many it waits for; ``phase`` is what the
    # name of its fraction calls training, ``"train"`` or ``"fit"``.
    name = type(strategy).__name__
    limits = {option: getattr(strategy, option, 0) for option in least_options}
    above = {option: least for option, least in limits.items() if least > num_selected}
    if above:
        raise ValueError(
            f"{name} would wait for ever: its "
            f"{' and '.join(f'{option} is {least}' for option, least in above.items())}, but "
            f"it is given the {num_selected} chosen clients only. Use "
            f"{name}({', '.join(f'{option}={num_selected}' for option in above)}, ...)"
        )
    fraction = getattr(strategy, f"fraction_{phase}", 1.0)
    if fraction != 1.0:
        raise ValueError(
            f"fraction_{phase} of {name} is {fraction}, so it would leave out chosen clients: "
            f"num_selected says how many clients train, so use fraction_{phase}=1.0"
        )
    expected = getattr(strategy, "num_sampled_clients", num_selected)
    if expected != num_selected:
        raise ValueError(
            f"num_sampled_clients of {name} is {expected}, but num_selected is {num_selected}: "
            "its noise would be that of another number of clients. Make them equal"
        )


def least_evaluating(base: Strategy) -> int:
    """Return how many clients a base strategy wants for an evaluation; it would wait for them."""
    evaluating = [each for each in unwrap(base) if getattr(each, "fraction_evaluate", 0) > 0]
    return max((getattr(each, "min_evaluate_nodes", 0) for each in evaluating), default=0)


def evaluates(base: Strategy) -> bool:
    """Tell whether a base strategy evaluates on clients, as far as it says."""
    told = [getattr(each, "fraction_evaluate", None) for each in unwrap(base)]
    shares = [share for share in told if share is not None]
    return not shares or max(shares) > 0


def unwrap(strategy: object) -> Iterator[Strategy]:
    """Yield a strategy and those that it wraps; Flower's wrappers keep theirs in `strategy`."""
    while isinstance(strategy, Strategy):
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def unwrap_all(strategy: object) -> Iterator[object]:
    """Yield a strategy and those within it, also those of the older interface."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None) or getattr(strategy, "older", None)


def hint_at_attribute(base: object, name: str) -> str:
    """Return where an attribute of a base strategy is to be found from the strategy around it."""
    for depth, strategy in enumerate(unwrap(base)):
        if not name.startswith("__") and hasattr(strategy, name):
            where = ".".join(["base", *["strategy"] * depth])
            return f", but its {type(strategy).__name__} has: use strategy.{where}.{name}"
    return ""


def same_for_all(messages: list[Message], base: Strategy) -> Message:
    """Return the one training message of a base strategy, or say that it has several."""
    # The pre-round comes before the choice, so the message must not depend on who is chosen.
    first = messages[0]
    contents = [message.content for message in messages]
    if any(content is not first.content and content != first.content for content in contents):
        raise SelectionError(
            f"{type(base).__name__} makes a message of its own for each client. A rule that asks "
            "for summaries needs one message for all, because it is sent before the choice; and so "
            "do clients whose train functions all have names, as @app.train('name')"
        )
    return first


def named_base(function: str, base: Strategy, number: int) -> AbstractContextManager[None]:
    """Have an error in a base strategy's function tell whose it is, and in which round."""
    return named(function, f"the base strategy {type(base).__name__}", number)
