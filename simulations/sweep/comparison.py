"""The sweep that holds rules side by side in one setting, as `pncs run` would run each of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pncs_flower.plain_text import first_of

from ..config import Config, Scalar, check_selected, default_run_config, merged
from ..validation import in_plain_words
from .plan import Report
from .sweep import REFUSED_OF_A_RULE, Sweep, network_keys

# What the keys of a sweep say in their place.
_OF_KEYS = ("num-selected", "partition", "shards-per-client", "dirichlet-alpha")
_OF_NETWORK = ("model", "trainable-layers")
# What no run of a comparison can be given, and what to do in place of it.
_OF_NO_RUN = {
    "strategy": "name the rule itself, as in pncs compare pncs uniform",
    "seed": "say with --seeds how many there are; they begin at 0",
    "output-dir": "say with --output where the results go",
    **dict.fromkeys(
        ("tensorboard", "checkpoint", "resume"),
        "that is for one run alone: pncs run has it, and the report has its command for each rule",
    ),
}
_MOST_NAMES = 6  # of rules in a title


def comparison(
    rules: Mapping[str, Mapping[str, Scalar]],
    settings: Mapping[str, Scalar],
    *,
    clients: int,
    seeds: int,
    targets: Sequence[float],
) -> Sweep:
    """Return a sweep of rules, each with settings of its own, all else as the app has it.

    ``settings`` are those for all runs, with the partition and the network among them.
    """
    _refuse(settings, "")
    for rule, own in rules.items():
        _refuse({key: value for key, value in own.items() if key != "strategy"}, f'"{rule}": ')
        for key in own:
            if key in (*_OF_KEYS, *REFUSED_OF_A_RULE):
                raise ValueError(
                    f'"{rule}": {key} must be the same for all rules: give it to all of them, with '
                    f"--set {key}={own[key]}"
                )
    config = Config.from_run_config(merged(default_run_config(), settings))
    check_selected(config, clients)
    partitions: dict[str, dict[str, Any]] = {
        "shards": {"shards": (config.shards_per_client,)},
        "dirichlet": {"shards": (), "dirichlet": (config.dirichlet_alpha,)},
        "natural": {"shards": (), "natural": True},
        "iid": {"shards": (), "iid": True},
    }
    network = network_keys(config.to_run_config())
    said = {*_OF_KEYS, *(_OF_NETWORK if network else ())}
    with in_plain_words(kind=Report):
        report = Report(targets=tuple(targets))
    with in_plain_words(kind=Sweep):
        sweep = Sweep(
            title=f"{first_of(list(rules), _MOST_NAMES)} on {config.dataset}",
            rules=tuple(rules),
            clients=clients,
            selected=(config.num_selected,),
            seeds=seeds,
            settings={key: value for key, value in settings.items() if key not in said},
            rule={rule: own for rule, own in rules.items() if own},
            report=report,
            **partitions[config.partition],
            **network,
        )
        sweep.check_parameters()
    return sweep


def _refuse(settings: Mapping[str, Scalar], where: str) -> None:
    for key, remedy in _OF_NO_RUN.items():
        if key in settings:
            raise ValueError(f"{where}{key} = {settings[key]} is no setting here: {remedy}")
