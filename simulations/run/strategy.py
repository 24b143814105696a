"""Which selection strategy the settings name, and with which of them it is made."""

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from flwr.serverapp.strategy import FedAvg

from pncs_flower.strategies import SelectionRule, SelectionStrategy, timeouts
from pncs_flower.strategies.rule import parameters
from pncs_flower.strategies.rules import STRATEGIES

from ..config import Config
from ..machine.logs import errors_only

__all__ = ["build_strategy", "parameter_names"]

_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def build_strategy(config: Config, checkpoint: Path | None = None) -> SelectionStrategy:
    """Return the selection strategy of the settings, around Flower's FedAvg.

    Parameters
    ----------
    config : Config
        The settings.
    checkpoint : Path, optional (default: None)
        Folder in which the run is saved after each round; not saved if None.

    Raises
    ------
    ValueError
        If a setting does not suit the strategy, or its import path leads to no rule.
    """
    weights = {"examples": "num-examples", "uniform": "uniform-weight"}
    with errors_only():  # that clients do not evaluate: the server does
        base = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_available_nodes=1,
            weighted_by_key=weights[config.aggregation],
        )
    options: dict[str, Any] = {
        "seed": config.seed,
        "checkpoint": checkpoint,
        "wait_timeout": timeouts.WAIT_IN_APP,
    }
    if config.queue_length >= 0:
        options["queue_length"] = config.queue_length
    if ":" in config.strategy:
        rule = _make_rule(config.strategy, config.num_selected, config.rule_parameters)
        return SelectionStrategy(base, rule, **options)
    make = STRATEGIES[config.strategy]
    given = _defaults(config) | _checked(config.strategy, make.rule_type, config.rule_parameters)
    try:
        return make(base, num_selected=config.num_selected, **given, **options)
    except TypeError as error:
        raise ValueError(
            f"strategy = {config.strategy!r}, rule = {config.rule!r}: {error}"
        ) from error


def parameter_names(config: Config) -> list[str]:
    """Return the parameters that the rule of the settings has besides how many it selects."""
    path = config.strategy
    known = parameters(_import_rule(path) if ":" in path else STRATEGIES[path].rule_type)
    return [name for name in known if name != "num_selected"]


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
    """Return the parameters given for a rule, or refuse what it does not have."""
    known = parameters(rule)
    known.pop("num_selected", None)  # a setting of its own
    hints = get_type_hints(rule)
    for key, value in given.items():
        if key == "num_selected":
            raise ValueError("rule.num_selected is the setting num-selected: use that")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            there = f"there are {', '.join(known)}" if known else "it has none"
            hint = f"did you mean rule.{near[0]}?" if near else there
            raise ValueError(f"strategy = {strategy!r} has no parameter rule.{key}: {hint}")
        kind = hints[known[key].name]
        whole = kind is float and type(value) is int
        if kind in _KINDS and type(value) is not kind and not whole:
            raise ValueError(
                f"rule.{key} = {value!r} of strategy = {strategy!r} must be {_KINDS[kind]}, not "
                f"{type(value).__name__}"
            )
    return {key: _of_kind(hints[known[key].name], value) for key, value in given.items()}


def _of_kind(kind: Any, value: Any) -> Any:
    """Return a list as a tuple; also one that is written as in other settings: "fc1, fc2"."""
    if isinstance(value, str) and tuple[str, ...] in (kind, *get_args(kind)):
        value = [name.strip() for name in value.split(",") if name.strip()]
    return tuple(value) if isinstance(value, list) else value


def _make_rule(path: str, num_selected: int, given: dict[str, Any]) -> SelectionRule:
    kind = _import_rule(path)
    values = _checked(path, kind, given)
    known = parameters(kind)
    try:
        rule: SelectionRule = kind(
            num_selected=num_selected, **{known[key].name: values[key] for key in values}
        )
    except Exception as error:  # whatever somebody else's class raises
        raise ValueError(
            f"strategy = {path!r}: {kind.__name__}(num_selected={num_selected}) raised "
            f"{type(error).__name__}: {error}. Other fields of a rule need defaults or rule.KEY"
        ) from error
    return rule


def _import_rule(path: str) -> "type[Any]":
    module_name, _, name = path.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever a module raises when it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == module_name:
            raise ValueError(
                f"strategy = {path!r}: {error}. Install the module where the server runs, or put "
                "its folder on PYTHONPATH"
            ) from None
        raise ValueError(
            f"strategy = {path!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    rule = getattr(module, name, None)
    if not (isinstance(rule, type) and issubclass(rule, SelectionRule)):
        raise ValueError(
            f"strategy = {path!r}: {module_name} has no selection rule {name!r}; name a subclass "
            "of pncs_flower.strategies.SelectionRule"
        )
    return rule
