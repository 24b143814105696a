"""The strategy of one rule: what it takes follows from the fields of the rule."""

from inspect import Parameter, Signature
from typing import Any, ClassVar, get_type_hints

from flwr.serverapp.strategy import Strategy

from .options import SelectionOptions
from .rule import SelectionRule, parameters
from .selection import SelectionStrategy


class RuleStrategy(SelectionStrategy):
    """A strategy that makes its own rule: from ``rule_type`` alone follows what it takes.

    Parameters
    ----------
    base : Strategy
        Any message-based Flower strategy.
    num_selected : int (default: 2)
        Clients that train, and send their full update, in a round.
    **arguments
        The other fields of the rule, and `SelectionOptions`.
    """

    rule_type: ClassVar[type[SelectionRule]]
    queue_length: ClassVar[int | None] = 0
    """The length of the queue where none is given; None: see `SelectionOptions`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        own = cls.__dict__.get("rule_type")
        if own is not None:
            cls.__signature__ = _signature(own, cls.queue_length)  # type: ignore[attr-defined]
        elif "__init__" in cls.__dict__:
            cls.__signature__ = None  # type: ignore[attr-defined]

    def __init__(self, base: Strategy, **arguments: Any) -> None:
        known = parameters(self.rule_type)
        own = {known[key].name: arguments.pop(key) for key in known if key in arguments}
        options = arguments
        if arguments.get("rest_rounds") is None:
            options = {"queue_length": self.queue_length, **arguments}
        SelectionOptions.of(options, type(self))  # an unknown name is told before a wrong value
        super().__init__(base, self.rule_type(**own), **options)


def _signature(rule: type[SelectionRule], queue_length: int | None) -> Signature:
    """Return what a strategy takes, for ``help()`` and for errors."""
    hints = get_type_hints(rule)
    given = [
        Parameter(key, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for key, field in parameters(rule).items()
    ]
    base = Parameter("base", Parameter.POSITIONAL_OR_KEYWORD, annotation=Strategy)
    queue = Parameter(
        "queue_length", Parameter.KEYWORD_ONLY, default=queue_length, annotation=int | None
    )
    return Signature([base, *given, queue, Parameter("options", Parameter.VAR_KEYWORD)])
