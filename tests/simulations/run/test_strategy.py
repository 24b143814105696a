"""What the settings make of a strategy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pncs_flower.simulations.config import Config, default_run_config, merged, unused_settings
from pncs_flower.simulations.run.strategy import build_strategy
from pncs_flower.strategies import SelectionStrategy

OWN = "pncs_flower.strategies.rules.active_fl:ActiveFLRule"


def build(**settings: Any) -> SelectionStrategy:
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    return build_strategy(Config.from_run_config(default_run_config() | given))


@pytest.mark.parametrize(
    ("strategy", "queue_length", "expected"),
    [("pncs", -1, None), ("uniform", -1, 0), ("fedcor", -1, 0), ("pncs", 0, 0), ("divfl", 6, 6)],
)
def test_queue(strategy: str, queue_length: int, expected: int | None) -> None:
    built = build(strategy=strategy, queue_length=queue_length)
    assert built.options.queue_length == expected


def test_a_rest_in_rounds_takes_the_place_of_the_queue() -> None:
    built = build(strategy="pncs", num_selected=3, rest_rounds=4)
    assert built.options.clients_in_queue(3) == 12
    with pytest.raises(ValueError, match="both say how long a client rests"):
        build(strategy="pncs", queue_length=4, rest_rounds=4)


@pytest.mark.parametrize(
    ("settings", "record"),
    [
        ({"strategy": "power-of-choice", "num_selected": 3}, "num_candidates=6, variant='pow-d'"),
        ({"strategy": "power-of-choice", "rule.candidates": 5}, "num_candidates=5"),
        ({"strategy": "pncs", "rule.candidates": 7}, "num_candidates=7"),
        ({"strategy": "pncs"}, "num_candidates=None"),
        ({"strategy": "fedcor", "rule.schedule": "cifar-10"}, "Schedule(warm_up=20, interval=50"),
        ({"strategy": "active-fl", "rule.unseen": "uniform"}, "unseen='uniform'"),
        ({"strategy": "divfl", "rule.layers": " fc1, fc2 ,"}, "layers=('fc1', 'fc2')"),
        ({"strategy": "gradient-norm", "rule.summary": "gradient"}, "summary='gradient'"),
        ({"strategy": "gradient-memory", "aggregation": "uniform"}, "weights='uniform'"),
    ],
)
def test_settings_reach_the_rule(settings: dict[str, Any], record: str) -> None:
    assert record in str(build(**settings).rule)


@pytest.mark.parametrize(
    ("strategy", "combine", "expected"),
    [
        ("pncs", "", "mean"),
        ("sketched-mean", "", "sketched-mean"),
        ("sketched-mean", "sketched-mean:store=5,dtype=float16", None),
        ("uniform", "mifa:store=2GB", None),
        ("pncs", "surrogates:0.5", None),
    ],
)
def test_the_combination_is_that_of_the_setting(
    strategy: str, combine: str, expected: str | None
) -> None:
    built = build(strategy=strategy, combine=combine)
    assert built.options.combine == (combine if expected is None else expected)


@pytest.mark.parametrize(
    ("strategy", "combine", "reason"),
    [
        ("pncs", "fedvrap", "did you mean 'fedvarp'"),
        ("uniform", "sketched-mean", 'or combine="fedvarp", which needs no sketches'),
        ("sketched-mean", "mean", "use combine='sketched-mean'"),
        ("pncs", "surrogates:2", "beta is 2, but must be a share"),
    ],
)
def test_a_combination_that_cannot_be_is_told(strategy: str, combine: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build(strategy=strategy, combine=combine)


def test_ray_has_more_than_a_minute_to_start() -> None:
    assert build().options.wait_timeout > 60


def test_building_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    build()
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Rule", "No module named 'no_such_module'. Install .* or put its folder"),
        ("json:Rule", "json has no selection rule 'Rule'"),
        (
            "pncs_flower.strategies.rules.oort:Oort",
            "such as pncs_flower.strategies.rules.oort:OortRule",
        ),
        ("pncs_flower.strategies:PNCS", "has no selection rule 'PNCS'; name a subclass"),
        ("broken_rules:Rule", "importing broken_rules raised ZeroDivisionError: division by zero"),
        ("needy_rules:Rule", "importing needy_rules raised ModuleNotFoundError: .*'no_such'"),
        ("picky_rules:Picky", r"Picky\(num_selected=2\) raised TypeError: .*'how'.*need defaults"),
    ],
)
def test_import_path_that_leads_to_no_rule_is_refused(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_rules.py").write_text("1 / 0")
    (tmp_path / "needy_rules.py").write_text("import no_such")
    (tmp_path / "picky_rules.py").write_text(
        "from pncs_flower.strategies import UniformSelection\n"
        "from pncs_flower.strategies.rules.uniform import UniformRule\n"
        "class Picky(UniformRule):\n"
        "    def __init__(self, num_selected, how): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message):
        build(strategy=path)


def test_settings_that_nothing_reads_are_told() -> None:
    config = Config.from_run_config(default_run_config())
    assert unused_settings(config) == {}
    changed = replace(config, data_dir="x", weights="w", dirichlet_alpha=1.0, shards_per_client=1)
    assert unused_settings(changed) == {
        "digits": ["data-dir"],
        "shards": ["dirichlet-alpha"],
        "mlp": ["weights"],
    }
    assert unused_settings(replace(changed, dataset="cifar10", partition="dirichlet")) == {
        "dirichlet": ["shards-per-client"],
        "mlp": ["weights"],
    }
    for model in ("vgg16", "torchvision/resnet18"):
        assert unused_settings(replace(config, model=model, weights="w", resize=224)) == {}


@pytest.mark.parametrize(
    ("settings", "record"),
    [
        ({"rule.p": 2, "rule.form": "printed"}, "p=2, form='printed'"),
        ({"rule": "p = 2, per_layer = true"}, "p=2"),
        ({"rule": "p = 2", "rule.per_layer": True}, "per_layer=True"),
        ({"rule.layers": ["fc1"], "rule.candidates": 3}, "layers=('fc1',)"),
        ({"rule.layers": ["a"], "rule.layer_weights": {"a": 2.0}}, "layer_weights=(('a', 2.0),)"),
        ({"strategy": "oort", "rule.penalty": 3}, "penalty=3"),
        ({"strategy": "divfl", "rule.stale": True}, "stale=True"),
        ({"strategy": "active-fl", "rule.sharpness": 0.5}, "sharpness=0.5"),
        ({"strategy": OWN, "rule.unseen": "first"}, "unseen='first'"),
    ],
)
def test_every_parameter_of_a_rule_can_be_set(settings: dict[str, Any], record: str) -> None:
    config = Config.from_run_config(merged(default_run_config(), settings))
    assert record in str(build_strategy(config).rule)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rule.perlayer": True},
            "'pncs' has no parameter rule.perlayer: did you mean rule.per_layer",
        ),
        ({"strategy": "uniform", "rule.p": 2}, "'uniform' has no parameter rule.p: it has none"),
        ({"rule.p": "two"}, "strategy = 'pncs': rule.p = 'two' must be a number"),
        ({"rule.per_layer": 1}, "'pncs': rule.per_layer = 1 must be true or false"),
        ({"rule.p": 0.5}, "p is 0.5"),
        ({"rule.form": "print"}, "form"),
        ({"rule.candidates": -1}, "candidates is -1"),
        ({"strategy": OWN, "rule.loss": "x"}, f"{OWN}.* did you mean rule.loss_key"),
        ({"rule.num_selected": 3}, "is the setting num-selected"),
        ({"rule": "p is 2"}, "rule = 'p is 2' must be TOML, such as"),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_there_is(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_strategy(Config.from_run_config(merged(default_run_config(), settings)))
