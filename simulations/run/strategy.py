"""Which selection strategy the settings name, and with which of them it is made."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from flwr.serverapp.strategy import FedAvg

from pncs_flower.protocol import SummaryKind
from pncs_flower.similarity import Form
from pncs_flower.strategies import (
    PNCS,
    ActiveFL,
    DivFL,
    FedCor,
    GradientMemory,
    GradientNorm,
    Oort,
    PowerOfChoice,
    RoundRobin,
    SelectionRule,
    SelectionStrategy,
    UniformSelection,
    timeouts,
)
from pncs_flower.strategies.rules.active_fl import Unseen
from pncs_flower.strategies.rules.power_of_choice import Variant

from ..config import Config
from ..machine.logs import errors_only

__all__ = ["build_strategy"]

Make = Callable[..., SelectionStrategy]


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
        rule = _make_rule(config.strategy, config.num_selected)
        return SelectionStrategy(base, rule, **options)
    make, settings = _named(config)
    return make(base, num_selected=config.num_selected, **settings, **options)


def _named(config: Config) -> tuple[Make, dict[str, Any]]:
    """Return a strategy of the library and the settings that are its own."""
    compared: dict[str, Any] = {
        **({"sketch": config.sketch} if config.sketch else {}),
        "layers": config.layer_names,
        "summary": cast(SummaryKind, config.summary),
    }
    candidates = config.candidates or None
    choices: dict[str, tuple[Make, dict[str, Any]]] = {
        "pncs": (
            PNCS,
            {**compared, "p": config.p, "form": cast(Form, config.form), "candidates": candidates},
        ),
        "gradient-memory": (
            GradientMemory,
            {**compared, "weights": config.aggregation, "candidates": candidates},
        ),
        "uniform": (UniformSelection, {}),
        "round-robin": (RoundRobin, {}),
        "active-fl": (ActiveFL, {"unseen": cast(Unseen, config.unseen)}),
        "power-of-choice": (
            PowerOfChoice,
            {
                "candidates": candidates or 2 * config.num_selected,
                "variant": cast(Variant, config.variant),
                "batch_size": config.batch_size or 32,
            },
        ),
        "fedcor": (FedCor, {"schedule": config.schedule}),
        "divfl": (DivFL, compared),
        "oort": (Oort, {}),
        "gradient-norm": (
            GradientNorm,
            {"layers": config.layer_names, "summary": cast(SummaryKind, config.summary)},
        ),
    }
    return choices[config.strategy]


def _make_rule(path: str, num_selected: int) -> SelectionRule:
    kind = _import_rule(path)
    try:
        return kind(num_selected=num_selected)
    except Exception as error:  # whatever somebody else's class raises
        raise ValueError(
            f"strategy = {path!r}: {kind.__name__}(num_selected={num_selected}) raised "
            f"{type(error).__name__}: {error}. All other fields of a rule need defaults"
        ) from error


def _import_rule(path: str) -> Callable[..., SelectionRule]:
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
