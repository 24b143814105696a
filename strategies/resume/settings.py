"""What a run must have in common with one that it takes up, by name."""

import re
import reprlib
from collections.abc import Container, Mapping
from importlib.metadata import PackageNotFoundError, version
from logging import WARNING
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from pncs_flower.devices import as_fleet

from ..base_strategy import unwrap
from ..options import SelectionOptions
from ..record import RoundRecord
from ..rule import SelectionRule
from .kinds import CHANGING
from .remembered import SKIP, encoded
from .snapshot import Encoder

MAY_DIFFER = frozenset(
    {
        *("wait_timeout", "start_timeout", "summary_timeout"),  # how long, not what
        *("history_path", "checkpoint", "on_record"),  # where
        *("min_clients", "eligible"),  # who is there: a run goes on with those who are
        *("max_summary_bytes", "max_empty_rounds"),  # only when to stop
        "ride_along",  # the same summaries, in another exchange
    }
)
"""The options that may be others when a run is taken up; so may num_rounds, and evaluate_fn."""

_CHIEF = ("rule", "base")  # if it is another, so is all that it was made with
_MOST = 5
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


class Resumable(Protocol):
    """What a run is taken up with: a strategy's settings, history and state."""

    base: Strategy
    rule: SelectionRule
    options: SelectionOptions
    history: list[RoundRecord]

    def state(self) -> dict[str, Any]:
        """Return all that later choices depend on."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""

    def restore_history(self, records: list[RoundRecord]) -> None:
        """Take up the records of the rounds already done."""


def settings_of(
    strategy: Resumable, arrays: ArrayRecord, configs: Mapping[str, ConfigRecord]
) -> dict[str, Any]:
    """Return what decides a run's result, but for the attributes of base and rule, by name."""
    options = vars(strategy.options).copy()
    del options["rest_rounds"]  # which is one way to say how long the queue is
    options["queue_length"] = strategy.options.clients_in_queue(strategy.rule.num_selected)
    found = {
        "release of pncs-flower": installed_version("pncs-flower"),
        "base": " of ".join(type(base).__qualname__ for base in unwrap(strategy.base)),
        "rule": type(strategy.rule).__qualname__,
        **{name: value for name, value in options.items() if name not in MAY_DIFFER},
        "combine": _ADDRESS.sub("", str(strategy.options.combine)),
    }
    if strategy.options.devices is not None:
        found["devices"] = _ADDRESS.sub("", str(as_fleet(strategy.options.devices)))
    for name, config in configs.items():
        found |= {f"{name}[{key!r}]": value for key, value in config.items()}
    for name, array in arrays.items():
        found[f"the model's {name}"] = f"{array.dtype} {tuple(array.shape)}"
    return found


def survey(values: Mapping[str, Any], there: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return values as a run is made with them, and add the functions and the like to `there`."""
    # Settings are the value as a person reads it and a checksum of all of it. A run may begin
    # with other arrays, random generators, times and paths: those with arrays alone have a
    # checksum.
    found: dict[str, dict[str, Any]] = {"settings": {}, "made": {}}
    for name, value in values.items():
        encoder = Encoder(there, survey=True)
        checksum = encoder.digest(encoded(encoder, value, name))
        there |= encoder.found
        changing = encoder.kinds & CHANGING
        if not changing:
            found["settings"][name] = [_ADDRESS.sub("", _SHORT.repr(value)), checksum]
        elif changing <= {"array", "tensor"}:
            found["made"][name] = checksum
    return found


def check_same(
    saved: Mapping[str, Any], given: Mapping[str, Any], folder: str | Path, own: Container[str]
) -> None:
    """Refuse a run of other settings, of which `own` are attributes; warn of other arrays."""
    nothing = ["nothing", ""]
    found = {}
    for name in saved["settings"] | given["settings"]:
        before, now = (side["settings"].get(name, nothing) for side in (saved, given))
        if before[1] != now[1]:
            same = " (another one)" if before[0] == now[0] else ""
            found[name] = f"{name}: saved {before[0]}, given {now[0]}{same}"
    found = {name: found[name] for name in _CHIEF if name in found} or found
    if found:
        words = "; ".join([*found.values()][:_MOST])
        more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
        has_own = any(name in own for name in found)
        hint = f". {SKIP} of its class names attributes that may differ" if has_own else ""
        raise ValueError(
            f"the run in {folder} had other settings ({words}{more}): go on with the same, or use "
            f"another folder{hint}"
        )
    # No reason to refuse, for a model may be drawn at random.
    made = [saved["made"], given["made"]]
    names = [name for name in made[0] | made[1] if made[0].get(name) != made[1].get(name)]
    if names:
        log(
            WARNING,
            "%s %s made otherwise than in the run that is taken up: what was saved is used. To "
            "change %s, use another folder.",
            *(", ".join(names), *(("was", "it") if len(names) == 1 else ("were", "them"))),
        )


def installed_version(package: str) -> str:
    """Return the version of a package, or that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:  # the library runs from a bundle or a checkout
        return "not installed"
