"""Settings: one source of defaults, and errors that say what to do."""

import tomllib
from pathlib import Path

import pytest

from pncs_flower.simulations import choices
from pncs_flower.simulations.config import (
    APP_DIRECTORY,
    Config,
    default_run_config,
    merged,
    parse_rule,
)
from pncs_flower.simulations.data.datasets import DATASETS

ROOT = Path(__file__).parents[2]


def test_defaults_are_valid() -> None:
    defaults = default_run_config()
    assert Config.from_run_config(defaults).to_run_config() == defaults


def test_both_apps_have_the_same_settings() -> None:
    apps = []
    for folder in (ROOT, APP_DIRECTORY):
        with (folder / "pyproject.toml").open("rb") as file:
            app = tomllib.load(file)["tool"]["flwr"]["app"]
        apps.append((app["config"], app["components"]))
    assert apps[0] == apps[1]


def test_both_apps_say_the_same_of_their_settings() -> None:
    """Word for word: a comment is all the documentation that a setting has."""
    head = "[tool.flwr.app.config]\n"
    texts = []
    for folder in (ROOT, APP_DIRECTORY):
        _, found, rest = (folder / "pyproject.toml").read_text(encoding="utf-8").partition(head)
        assert found
        texts.append(rest.partition("\n[")[0].strip())
    assert texts[0] == texts[1], "make format copies them from simulations/pyproject.toml"


def test_a_bundle_has_no_file_of_the_defaults_and_is_told_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = dict(default_run_config())
    monkeypatch.setattr(choices, "APP_DIRECTORY", Path("nowhere"))
    default_run_config.cache_clear()
    try:
        assert Config.from_run_config(given).to_run_config() == given
        with pytest.raises(ValueError, match=r"lr = -1 must be above 0 and finite$"):
            Config.from_run_config({**given, "lr": -1})
    finally:
        monkeypatch.undo()
        default_run_config.cache_clear()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("strategy", "pnsc", r"strategy = 'pnsc' must be one of active-fl, .*mean 'pncs'"),
        ("dataset", "mnist", f"must be one of {', '.join(DATASETS)}"),
        ("num-selected", 0, "num-selected = 0 must be at least 1; the default is 2"),
        ("lr", 0.0, "lr = 0.0 must be above 0 and finite; the default is 0.1"),
        ("lr", float("nan"), "lr = nan must be above 0 and finite; the default is 0.1"),
        ("momentum", 1.0, "momentum = 1.0 must be at least 0 and below 1; the default is 0"),
        ("queue-length", -2, "queue-length = -2 must be at least 0, or -1 for the rule's"),
        ("rest-rounds", -2, "rest-rounds = -2 must be at least 0, or -1"),
        ("strategy", "my.rules:", "strategy = 'my.rules:' must be one of active-fl"),
        ("num-rounds", 2.5, "num-rounds = 2.5 must be a whole number, not float"),
        ("seed", True, "seed = True must be a whole number, not bool"),
        ("model", "resnet", "model = 'resnet' must be one of linear, mlp, cnn, resnet8, resnet18"),
        ("partition", "shard", "partition = 'shard' must be one of shards, dirichlet, iid"),
        ("model", 3, "model = 3 must be text, not int"),
        ("seed", -1, "seed = -1 must be at least 0"),
        ("seed", 2**63, r"seed = 9223372036854775808 must be below 2\*\*63"),
        ("seed", 2**2000, r"must be below 2\*\*63"),
        ("num-rounds", 2**63, r"must be below 2\*\*63"),
        ("lr", 10**400, r"lr = 10+\.\.\. must be a number"),
        (
            "output-dir",
            "runs/\udcff",
            "output-dir = .* must be text that UTF-8 has",
        ),
        ("output-dir", "a\0b", "must not have a zero character"),
    ],
)
def test_a_wrong_value_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config.from_run_config(default_run_config() | {key: value})  # type: ignore[dict-item]


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="unknown setting 'num-select': did you mean 'num-selected'"
    ):
        Config.from_run_config(default_run_config() | {"num-select": 2})


def test_a_missing_setting_is_named() -> None:
    settings = dict(default_run_config())
    del settings["lr"]
    with pytest.raises(ValueError, match="missing: lr"):
        Config.from_run_config(settings)


def test_a_whole_number_will_do_for_a_real_one() -> None:
    assert Config.from_run_config(default_run_config() | {"lr": 1}).lr == 1.0


@pytest.mark.parametrize(
    ("layers", "names"), [("", ()), ("fc1", ("fc1",)), (" fc1, fc2 ,", ("fc1", "fc2"))]
)
def test_layers_are_a_list_with_commas(layers: str, names: tuple[str, ...]) -> None:
    config = Config.from_run_config(default_run_config() | {"trainable-layers": layers})
    assert config.trainable_layer_names == names


@pytest.mark.parametrize("key", ["p", "sketch", "candidates", "loss-key", "sharpness"])
def test_a_rules_parameter_is_not_a_setting_of_its_own(key: str) -> None:
    wanted = f"unknown setting {key!r}: did you mean rule.{key.replace('-', '_')}"
    with pytest.raises(ValueError, match=wanted):
        Config.from_run_config(default_run_config() | {key: 1})


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("inf", float("inf")),
        ("[-inf, 1.5]", [float("-inf"), 1.5]),
        ("2026-12-01", "2026-12-01"),  # no rule has a date: each refuses a text by its name
    ],
)
def test_a_rules_parameter_may_be_whatever_toml_has(text: str, read: object) -> None:
    settings = merged({"rule": f"p = {text}"}, {"rule.form": "printed"})
    assert parse_rule(settings["rule"]) == {"p": read, "form": "printed"}


def test_defaults_are_read_once_and_cannot_be_changed_by_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TypeError, match="assignment"):
        default_run_config()["lr"] = 77.0  # type: ignore[index]

    def again(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(tomllib, "load", again)
    Config.from_run_config(default_run_config())
