"""What is not the model that was sent is refused on the client, before any arithmetic."""

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.protocol import LOSS, MARKER, SUMMARY, SummaryRequest
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientMemory, NoSummariesError

NODE = 1000
MODEL = {
    "body.weight": np.ones((12, 1), np.float32),
    "body.bias": np.ones(12, np.float32),
    "lora.a": np.ones((4, 2), np.float32),
    "norm.num_batches_tracked": np.array(3),
    "mask": np.array([True, False]),
    "scale": np.float32(2.0).reshape(()),
    "trees": np.zeros(5, np.uint8),
}


def record(arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def app_that_returns(arrays, mod=None) -> ClientApp:
    app = ClientApp(mods=[mod or SummaryMod()])

    @app.train()
    def train(message: Message, context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=message)

    return app


def summarize(app: ClientApp, kind: str = "update", model=None, layers=None) -> Message:
    request = SummaryRequest(kind, "layers", layers)
    marker = {"phase": "summarize", "round": 1, "seed": 5, "ticket": "a", **request.to_config()}
    content = {
        "arrays": record(MODEL if model is None else model),
        "config": ConfigRecord(),
        MARKER: ConfigRecord(marker),
    }
    grid = InProcessGrid(app, 1)
    message = Message(RecordDict(content), NODE, MessageType.TRAIN)
    (reply,) = grid.send_and_receive([message])
    return reply


def gradient_mod(arrays) -> SummaryMod:
    return SummaryMod(gradient=lambda message, context: record(arrays))


ODD_SHAPES = {
    "column for row": ("body.bias", np.ones((12, 1), np.float32)),
    "row for column": ("body.weight", np.ones((1, 12), np.float32)),
    "flat for column": ("body.weight", np.ones(12, np.float32)),
    "one for many": ("body.bias", np.ones(1, np.float32)),
    "scalar for many": ("body.bias", np.float32(1)),
    "one for a scalar": ("scale", np.ones(1, np.float32)),
    "empty": ("body.bias", np.ones(0, np.float32)),
    "rank 1 for 2": ("lora.a", np.ones((4, 1), np.float32)),
    "transposed": ("lora.a", np.ones((2, 4), np.float32)),
    "whole numbers": ("body.bias", np.ones(12, np.int64)),
    "bytes": ("body.bias", np.ones(12, np.uint8)),
    "bools": ("body.bias", np.ones(12, bool)),
    "complex": ("body.bias", np.ones(12, np.complex64)),
}
OTHER_KINDS = {
    "counter of another shape": ("norm.num_batches_tracked", np.ones(3, np.int64)),
    "floating counter": ("norm.num_batches_tracked", np.array(3.0)),
    "mask of floats": ("mask", np.ones(2, np.float32)),
    "mask of bytes": ("mask", np.ones(2, np.uint8)),
    "table of bytes": ("trees", np.zeros((5, 1), np.uint8)),
}


@pytest.mark.parametrize(("name", "odd"), [*ODD_SHAPES.values(), *OTHER_KINDS.values()])
def test_an_update_of_another_shape_or_kind_is_refused_with_its_name_and_both_shapes(name, odd):
    reply = summarize(app_that_returns({**MODEL, name: odd}))
    assert f"'{name}' is {odd.dtype} of shape {np.shape(odd)}" in reply.error.reason
    assert f"in the model {MODEL[name].dtype} of {MODEL[name].shape}" in reply.error.reason


@pytest.mark.parametrize(("name", "odd"), ODD_SHAPES.values(), ids=ODD_SHAPES)
def test_a_gradient_of_another_shape_or_kind_is_refused_with_its_name_and_both_shapes(name, odd):
    app = app_that_returns(MODEL, gradient_mod({**MODEL, name: odd}))
    reply = summarize(app, "gradient")
    assert f"'{name}' is {odd.dtype} of shape {np.shape(odd)}" in reply.error.reason
    assert f"in the model {MODEL[name].dtype} of {MODEL[name].shape}" in reply.error.reason


def test_an_array_that_is_said_to_have_another_shape_than_it_has_is_refused():
    false = Array(np.ones((12, 1), np.float32))
    false.shape = (12,)
    app = ClientApp(mods=[SummaryMod()])

    @app.train()
    def train(message: Message, context) -> Message:
        arrays = ArrayRecord({**message.content["arrays"], "body.bias": false})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    assert "of shape (12,) came back with shape (12, 1)" in summarize(app).error.reason


def test_names_that_are_missing_or_new_are_told():
    fewer = {name: values for name, values in MODEL.items() if name != "mask"}
    reason = summarize(app_that_returns({**fewer, "extra": np.ones(1)})).error.reason
    assert "it lacks 'mask' and 'extra' is new" in reason


def test_shapes_are_refused_before_anything_is_computed_of_them():
    """A column beside a row of 200,000 values would take 160 GB."""
    model = {"w": np.ones(200_000, np.float32)}
    reply = summarize(app_that_returns({"w": np.ones((200_000, 1), np.float32)}), model=model)
    assert "(200000, 1)" in reply.error.reason


def test_other_precisions_and_longer_tables_of_bytes_are_summarised():
    after = {**MODEL, "body.bias": np.zeros(12, np.float64), "trees": np.zeros(9, np.uint8)}
    summary = summarize(app_that_returns(after)).content[SUMMARY]
    assert list(summary) == ["body", "lora", "scale"]
    np.testing.assert_array_equal(summary["body"].numpy(), [0] * 12 + [1] * 12)


def test_a_gradient_may_have_the_chosen_layers_alone():
    app = app_that_returns(MODEL, gradient_mod({"lora.a": MODEL["lora.a"]}))
    assert list(summarize(app, "gradient", layers=("lora",)).content[SUMMARY]) == ["lora"]


def test_a_gradient_that_is_no_record_is_told():
    app = app_that_returns(MODEL, SummaryMod(gradient=lambda message, context: dict(MODEL)))
    assert (
        "returned dict, but must return an ArrayRecord" in summarize(app, "gradient").error.reason
    )


def test_a_change_beyond_the_range_of_half_precision_is_a_number():
    model = {"w": np.array([60_000.0, 1.0], np.float16)}
    after = {"w": np.array([-60_000.0, 0.5], np.float16)}
    summary = summarize(app_that_returns(after), model=model).content[SUMMARY]
    assert summary["w"].numpy().tolist() == [120_000.0, 0.5]


def test_an_honest_client_in_half_precision_is_not_taken_for_a_liar():
    app = app_that_returns({"w": np.array([-200.0, 50_000.0], np.float16)})
    strategy = PNCS(FedAvg(fraction_evaluate=0.0), verify_sketches=True)
    strategy.start(
        InProcessGrid(app, 3), record({"w": np.array([200.0, -50_000.0], np.float16)}), num_rounds=1
    )
    assert strategy.history[0].rejected == {}


def test_an_app_that_puts_its_update_in_place_of_the_weights_it_was_sent():
    app = ClientApp(mods=[SummaryMod()])

    @app.train()
    def train(message: Message, context) -> Message:
        arrays = message.content["arrays"]
        arrays["w"] = Array(arrays["w"].numpy() - 1)
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    summary = summarize(app, model={"w": np.zeros(3, np.float32)}).content[SUMMARY]
    assert summary["w"].numpy().tolist() == [1, 1, 1]


def test_a_client_of_another_lora_rank_is_left_out_before_it_can_be_chosen():
    class Ranked(InProcessGrid):
        def _handle(self, message):
            rank = 1 if message.metadata.dst_node_id == NODE else 2
            self._app = app_that_returns({"lora.a": np.full((4, rank), rank, np.float32)})
            return super()._handle(message)

    strategy = GradientMemory(FedAvg(fraction_evaluate=0.0), num_selected=2)
    grid = Ranked(app_that_returns({}), 4)
    strategy.start(grid, record({"lora.a": np.zeros((4, 2), np.float32)}), num_rounds=2)
    assert "shape (4, 1), in the model float32 of (4, 2)" in strategy.history[0].rejected["0"]
    assert not any("0" in taken.chosen for taken in strategy.history)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_left_out_and_the_servers_records_stay_as_they_are(loss):
    app = ClientApp(mods=[SummaryMod()])
    config = ConfigRecord({"lr": 0.5})

    @app.evaluate()
    def evaluate(message: Message, context) -> Message:
        assert message.content["config"]["pncs-max-examples"] == 8
        metrics = MetricRecord({"num-examples": 4, LOSS: loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    request = SummaryRequest("loss", max_examples=8)
    marker = {"phase": "summarize", "round": 1, "seed": 5, "ticket": "a", **request.to_config()}
    content = {"config": config, MARKER: ConfigRecord(marker)}
    context = InProcessGrid(app, 1).contexts[NODE]
    message = Message(RecordDict(content), NODE, MessageType.EVALUATE)
    summary = app(message, context).content[SUMMARY]  # a grid that hands over the records as such
    assert str(summary[LOSS].numpy().item()) == str(loss)
    assert dict(config) == {"lr": 0.5}


def test_a_mod_that_renames_arrays_before_the_mod_is_told_in_the_first_pre_round():
    def renames(message, context, call_next):
        for name, arrays in message.content.array_records.items():
            message.content[name] = ArrayRecord({f"model.{n}": a for n, a in arrays.items()})
        reply = call_next(message, context)
        if "arrays" in reply.content:
            arrays = reply.content["arrays"]
            reply.content["arrays"] = ArrayRecord({n[6:]: a for n, a in arrays.items()})
        return reply

    def app(*mods) -> ClientApp:
        made = ClientApp(mods=list(mods))

        @made.train()
        def train(message: Message, context) -> Message:
            arrays = {n: Array(a.numpy() - 1) for n, a in message.content["arrays"].items()}
            content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
            return Message(RecordDict(content), reply_to=message)

        return made

    def run(*mods):
        strategy = PNCS(FedAvg(fraction_evaluate=0.0))
        strategy.start(
            InProcessGrid(app(*mods), 3),
            record({"a.w": np.zeros(2, np.float32), "b.w": np.zeros(3, np.float32)}),
            num_rounds=1,
        )
        return strategy

    with pytest.raises(NoSummariesError, match="put summary_mod before it"):
        run(renames, SummaryMod())
    assert run(SummaryMod(), renames).history[0].rejected == {}
