"""What a run must have in common with one that it takes up, by name."""

from collections.abc import Container, Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy

from ..base_strategy import unwrap
from ..options import SelectionOptions
from .remembered import SKIP, Setting, setting

__all__ = ["MAY_DIFFER", "check_same", "settings_of"]

MAY_DIFFER = frozenset(
    {
        *("wait_timeout", "start_timeout", "summary_timeout"),  # how long, not what
        *("history_path", "checkpoint"),  # where
        *("min_clients", "eligible"),  # who is there: a run goes on with those who are
        *("max_summary_bytes", "max_empty_rounds"),  # only when to stop
        "ride_along",  # the same summaries, in another exchange
    }
)
"""The options that may be others when a run is taken up; so may num_rounds, and evaluate_fn."""

_CHIEF = ("rule", "base")  # if it is another, so is all that it was made with
_MOST = 5


def settings_of(
    rule: object,
    base: Strategy,
    options: SelectionOptions,
    arrays: ArrayRecord,
    configs: Mapping[str, ConfigRecord],
) -> dict[str, Setting]:
    """Return what decides a run's result, but for the attributes of base and rule, by name."""
    found = {
        "release of pncs-flower": setting(_release()),
        "base": setting(" of ".join(type(strategy).__qualname__ for strategy in unwrap(base))),
        "rule": setting(type(rule).__qualname__),
    }
    for field in fields(options):
        if field.name not in MAY_DIFFER:
            found[field.name] = setting(getattr(options, field.name))
    for name, config in configs.items():
        found |= {f"{name}[{key!r}]": setting(value) for key, value in config.items()}
    for name, array in arrays.items():
        found[f"the model's {name}"] = setting(f"{array.dtype} {tuple(array.shape)}")
    return found


def check_same(
    saved: Mapping[str, Setting],
    given: Mapping[str, Setting],
    folder: str | Path,
    attributes: Container[str],
) -> None:
    """Refuse a run of other settings, of which some are attributes of the base and the rule."""
    nothing = ["nothing", ""]
    found = {}
    for name in dict.fromkeys([*saved, *given]):
        before, now = saved.get(name, nothing), given.get(name, nothing)
        if before[1] != now[1]:
            same = " (another one)" if before[0] == now[0] else ""
            found[name] = f"{name}: saved {before[0]}, given {now[0]}{same}"
    found = {name: found[name] for name in _CHIEF if name in found} or found
    if found:
        words = "; ".join([*found.values()][:_MOST])
        more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
        named = any(name in attributes for name in found)
        hint = f". {SKIP} of its class names attributes that may differ" if named else ""
        raise ValueError(
            f"the run in {folder} had other settings ({words}{more}): go on with the same, or use "
            f"another folder{hint}"
        )


def _release() -> str:
    try:
        return version("pncs-flower")
    except PackageNotFoundError:  # from a bundle or a checkout
        return "not installed"
