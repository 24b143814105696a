"""What goes up in a round: little beside full participation by default, and told in the log."""

import logging
import re
from dataclasses import dataclass

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import (
    PNCS,
    DivFL,
    GradientMemory,
    RoundRobin,
    SelectionStrategy,
    SketchedMean,
    UniformSelection,
    rules,
)

Shapes = dict[str, tuple[int, ...]]


def dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def residual(widths: tuple[int, ...]) -> Shapes:
    """Return a small residual network: many normalisation layers with few values each."""
    shapes: Shapes = {}
    before = 3
    for block, width in enumerate(widths):
        for part, inputs in (("1", before), ("2", width)):
            shapes |= {f"{block}.conv{part}.weight": (width, inputs, 3, 3)}
            norm = f"{block}.bn{part}"
            shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
            shapes |= {f"{norm}.running_mean": (width,), f"{norm}.running_var": (width,)}
        before = width
    return shapes | dense("fc", before, 10)


MODELS = {
    "MLP of 4,810 weights": dense("fc1", 64, 64) | dense("fc2", 64, 10),
    "CNN": {
        "conv1.weight": (16, 1, 3, 3),
        "conv1.bias": (16,),
        "conv2.weight": (32, 16, 3, 3),
        "conv2.bias": (32,),
        **dense("fc1", 1568, 64),
        **dense("fc2", 64, 10),
    },
    "residual network": residual((16, 32, 64)),
    "one layer": dense("fc", 200, 100),
}


def play(strategy: SelectionStrategy, shapes: Shapes, dtype: str = "float32") -> None:
    app = ClientApp(mods=[summary_mod])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        weights = message.content["arrays"]
        arrays = {
            n: Array((w.numpy() + rng.normal(size=w.shape)).astype(dtype))
            for n, w in weights.items()
        }
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    initial = ArrayRecord({n: Array(np.zeros(shape, dtype)) for n, shape in shapes.items()})
    strategy.start(InProcessGrid(app, 10), initial, num_rounds=1)


def base() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


def widths_of(dtype: str) -> list[str]:
    """In half precision an MLP of 4,810 weights is too small beside its arrays' headers."""
    return [model for model in MODELS if dtype != "float16" or "4,810" not in model]


@pytest.mark.parametrize(
    ("model", "dtype"),
    [(model, kind) for kind in ("float32", "float64", "float16") for model in widths_of(kind)],
)
def test_two_of_ten_send_a_quarter_of_all_updates_with_their_summaries(model, dtype):
    strategy = PNCS(base(), num_selected=2, queue_length=0)
    play(strategy, MODELS[model], dtype)
    record = strategy.history[0]
    assert len(record.asked) == 10
    of_all = 10 * record.bytes_up["training"] / len(record.delivered)
    share = (record.bytes_up["pre-round"] + record.bytes_up["training"]) / of_all
    assert share <= 0.25
    # And not much less: what may be sent is, unless the values are all there are.
    assert share > 0.24


def test_a_sketch_by_share_is_asked_for_as_what_it_is_of_the_model():
    """Clients, also those of an older release, are told a number of coordinates."""
    asked = []
    app = ClientApp(
        mods=[
            lambda message, context, call_next: (
                asked.extend(
                    record["sketch"]
                    for record in message.content.config_records.values()
                    if "sketch" in record
                ),
                summary_mod(message, context, call_next),
            )[1]
        ]
    )
    app.train()(numpy_app.train)
    strategy = PNCS(base(), num_selected=2)
    strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=1)
    assert asked == ["coordinates:100@int8"] * 4


def test_a_layer_smaller_than_its_sketch_is_sent_as_it_is():
    """In int8: of 23 weights, the arrays' headers take most of the bytes."""
    strategy = PNCS(base(), num_selected=2)
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=1)
    layers = [15, 8]
    values = sum(size + 4 for size in layers)
    headers = len(layers) * 128
    assert 4 * values <= strategy.history[0].bytes_up["pre-round"] <= 4 * (values + headers + 200)


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "went up" in record.getMessage()]


def test_the_log_tells_once_what_goes_up_beside_all_updates(caplog):
    strategy = PNCS(base(), num_selected=2)
    app = numpy_app.make_app(summary_mod)
    strategy.start(InProcessGrid(app, 6), numpy_app.initial_arrays(), num_rounds=3)
    (line,) = told(caplog)
    record = strategy.history[0]
    up = record.bytes_up["pre-round"] + record.bytes_up["training"]
    share = up / (record.bytes_up["training"] / 2 * 6)
    assert f"went up, {share:.0%} of what the updates of all (6 clients)" in line.getMessage()


def test_more_than_full_participation_is_a_warning_that_says_what_to_do(caplog):
    play(PNCS(base(), num_selected=2, queue_length=0, sketch="layers"), MODELS["CNN"])
    (line,) = told(caplog)
    assert line.levelno == logging.WARNING
    assert "120% of what" in line.getMessage()
    assert "sketch='coordinates:5%@int8' or fewer layers" in line.getMessage()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PNCS, {"sketch": "layers"}),
        (PNCS, {"combine": "sketched-mean"}),
        (PNCS, {"combine": "sketched-mean:sketch=layers"}),
        (PNCS, {"sketch": "power-moments:80"}),
        (GradientMemory, {}),
        (GradientMemory, {"sketch": "layers"}),
        (DivFL, {"sketch": "layers"}),
        (SketchedMean, {}),
        (SketchedMean, {"sketch": "layers"}),
    ],
)
def test_what_the_warning_recommends_is_accepted_and_asks_for_less(kind, options, caplog):
    shapes = MODELS["one layer"] if "layers" in str(options) else {"w": (7, 40)}
    strategy = kind(base(), num_selected=2, queue_length=0, **options)
    play(strategy, shapes)
    (line,) = told(caplog)
    assert line.levelno == logging.WARNING
    found = re.findall(r"sketch='(.*?)'( of the combination)?", line.getMessage())
    assert len(found) == 1 + ("combine" in options)
    assert ("layers=[" in line.getMessage()) == (kind is not SketchedMean)
    less = dict(options)
    for sketch, of_combination in found:
        name = "combine" if of_combination else "sketch"
        less[name] = f"sketched-mean:sketch={sketch}" if of_combination else sketch
    smaller = kind(base(), num_selected=2, queue_length=0, **less)
    play(smaller, shapes)
    before, after = (each.history[0].bytes_up["pre-round"] for each in (strategy, smaller))
    assert after < before


@dataclass(frozen=True)
class Demanding(rules.PNCSRule):
    """A rule that compares no fewer than 80 values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if int(self.sketch.partition(":")[2]) < 80:
            raise ValueError("80 values are the least")


class OwnArguments(rules.PNCSRule):
    """A rule of which nobody knows how it is made."""

    def __init__(self, *, values: int) -> None:
        super().__init__(num_selected=2, sketch=f"power-moments:{values}")


@pytest.mark.parametrize(
    ("rule", "advised"),
    [
        (Demanding(sketch="power-moments:160"), ["power-moments:80"]),
        (Demanding(sketch="power-moments:80"), []),
        (OwnArguments(values=80), []),
    ],
)
def test_no_sketch_is_advised_that_the_rule_refuses(rule, advised, caplog):
    play(SelectionStrategy(base(), rule), {"w": (7, 40)})
    (line,) = told(caplog)
    assert line.levelno == logging.WARNING
    assert re.findall(r"sketch='(.*?)'", line.getMessage()) == advised
    assert "fewer layers=[...]" in line.getMessage()


@pytest.mark.parametrize("kind", [RoundRobin, UniformSelection])
def test_rules_that_ask_nothing_send_their_share(kind, caplog):
    play(kind(base(), num_selected=2), MODELS["one layer"])
    (line,) = told(caplog)
    assert line.levelno == logging.INFO
    assert "of updates went up, 20% of what" in line.getMessage()


def test_a_resumed_run_does_not_tell_again_what_went_up(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    told = []
    for rounds in (2, 3):
        caplog.clear()
        strategy = UniformSelection(base(), num_selected=2, checkpoint=tmp_path)
        grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
        strategy.start(grid, numpy_app.initial_arrays(), num_rounds=rounds)
        told.append([r.getMessage() for r in caplog.records if "went up" in r.getMessage()])
    assert len(strategy.history) == 3
    assert list(map(len, told)) == [1, 0]
