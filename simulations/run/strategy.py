"""Which selection strategy the settings name, and with which of them it is made."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from flwr.serverapp.strategy import FedAvg
from pydantic import TypeAdapter

from pncs_flower.strategies import SelectionRule, SelectionStrategy, timeouts
from pncs_flower.strategies.rule import parameters
from pncs_flower.strategies.rules import STRATEGIES

from ..config import Config, check_parameters
from ..validation import in_plain_words
from .folder import CHECKPOINT, ROUNDS


def build_strategy(
    config: Config,
    folder: Path | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> SelectionStrategy:
    """Return the selection strategy of the settings, around FedAvg; it writes to a run's folder."""
    weighted_by = {"examples": "num-examples", "uniform": "uniform-weight"}[config.aggregation]
    base = FedAvg(min_train_nodes=1, min_available_nodes=1, weighted_by_key=weighted_by)
    # The server evaluates, not the clients; as arguments they make Flower warn of that.
    base.fraction_evaluate, base.min_evaluate_nodes = 0.0, 0
    options: dict[str, Any] = {"seed": config.seed, "wait_timeout": timeouts.WAIT_IN_APP}
    options |= {"max_weight": config.max_weight, "on_record": on_record}
    if folder is not None:
        options["history_path"] = folder / ROUNDS
        options["checkpoint"] = folder / CHECKPOINT if config.checkpoint else None
    if config.devices != "none":
        options["devices"], options["extra"] = config.devices, config.extra
        options["deadline"] = config.deadline or None
    if config.combine:
        options["combine"] = config.combine
    if config.queue_length >= 0:
        options["queue_length"] = config.queue_length
    if config.rest_rounds >= 0:
        options["rest_rounds"] = config.rest_rounds
    kind = _rule_type(config.strategy)
    check_parameters(config, _names(kind))
    given = _checked(config.strategy, kind, config.rule_parameters)
    if ":" in config.strategy:
        return SelectionStrategy(base, _make_rule(config, kind, given), **options)
    values = {"num_selected": config.num_selected, **_defaults(config), **given}
    try:
        return STRATEGIES[config.strategy](base, **values, **options)
    except TypeError as error:
        raise ValueError(
            f"strategy = {config.strategy!r}, rule = {config.rule!r}: {error}"
        ) from error


def imported_parameters(path: str) -> tuple[str, ...]:
    """Return the parameters that the rule of an import path has besides how many it selects."""
    return _names(_rule_type(path))


def _names(rule: type[SelectionRule]) -> tuple[str, ...]:
    return tuple(name for name in parameters(rule) if name != "num_selected")


def _defaults(config: Config) -> dict[str, Any]:
    """Return what the app has otherwise than the library: its runs are short."""
    of_strategy: dict[str, dict[str, Any]] = {
        "active-fl": {"unseen": "first"},
        "fedcor": {"schedule": "short"},
        "gradient-memory": {"weights": config.aggregation},
        "power-of-choice": {
            "candidates": 2 * config.num_selected,
            "batch_size": config.batch_size or 32,
        },
    }
    return of_strategy.get(config.strategy, {})


def _checked(strategy: str, rule: type[SelectionRule], given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters given for a rule, or refuse values of another kind."""
    known, hints = parameters(rule), get_type_hints(rule)
    checked: dict[str, Any] = {}
    for key, value in given.items():
        kind = hints[known[key].name]
        if kind in (bool, int, float, str):
            with in_plain_words(f"strategy = {strategy!r}: rule.{key}"):
                TypeAdapter(kind).validate_python(value, strict=True)
        # Names may be written as in other settings: "fc1, fc2".
        if isinstance(value, str) and tuple[str, ...] in (kind, *get_args(kind)):
            value = [name.strip() for name in value.split(",") if name.strip()]
        checked[key] = tuple(value) if isinstance(value, list) else value
    return checked


def _make_rule(config: Config, kind: type[Any], given: dict[str, Any]) -> SelectionRule:
    known, number = parameters(kind), config.num_selected
    try:
        rule: SelectionRule = kind(
            num_selected=number, **{known[key].name: value for key, value in given.items()}
        )
    except Exception as error:  # whatever somebody else's class raises
        raise ValueError(
            f"strategy = {config.strategy!r}: {kind.__name__}(num_selected={number}) raised "
            f"{type(error).__name__}: {error}. Other fields of a rule need defaults or rule.KEY"
        ) from error
    return rule


def _rule_type(strategy: str) -> type[SelectionRule]:
    """Return the rule of the library that has a name, or what an import path leads to."""
    module_name, is_path, name = strategy.partition(":")
    if not is_path:
        return STRATEGIES[strategy].rule_type
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever a module raises when it is imported
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):  # the module, or its package
            raise ValueError(
                f"strategy = {strategy!r}: {error}. Install the module where the server runs, or "
                "put its folder on PYTHONPATH"
            ) from None
        raise ValueError(
            f"strategy = {strategy!r}: importing {module_name} raised {type(error).__name__}: "
            f"{error}"
        ) from error
    rule = getattr(module, name, None)
    if not (isinstance(rule, type) and issubclass(rule, SelectionRule)):
        own = [
            each
            for each, kind in vars(module).items()
            if isinstance(kind, type)
            and issubclass(kind, SelectionRule)
            and kind.__module__ == module_name
        ]
        raise ValueError(
            f"strategy = {strategy!r}: {module_name} has no selection rule {name!r}; name a "
            "subclass of pncs_flower.strategies.SelectionRule"
            + (f", such as {module_name}:{own[0]}" if own else "")
        )
    return rule
