"""Every array of an update is checked, whatever its kind, and every honest kind works."""

from itertools import product

import numpy as np
import pytest
from apps import kinds_app, numpy_app
from culprits import culprit_sends, with_update
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)

from pncs_flower.clients import summary_mod
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientMemory, RoundRobin, UniformSelection

ONLY_TRAIN = {"fraction_evaluate": 0.0}
pytestmark = pytest.mark.usefixtures("quick_collection")
BASES = {
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedAvgM": lambda **options: FedAvgM(server_momentum=0.9, **options),
    "FedYogi": FedYogi,
    "FedProx": lambda **options: FedProx(proximal_mu=0.1, **options),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "Krum": Krum,
    "MultiKrum": lambda **options: MultiKrum(num_nodes_to_select=2, **options),
    "Bulyan": lambda **options: Bulyan(num_malicious_nodes=0, **options),
}


def run(strategy, answer=None, rounds: int = 2, app=kinds_app, arrays=None):
    mods = [] if answer is None else [culprit_sends("train", answer)]
    grid = InProcessGrid(app.make_app(*mods, summary_mod), 4)
    return strategy.start(grid, arrays or app.initial_arrays(), num_rounds=rounds)


def changed(name, change):
    """Return an update in which one array is another."""

    def replace(content):
        arrays = content["arrays"]
        content["arrays"] = ArrayRecord(
            {n: Array(change(a.numpy())) if n == name else a for n, a in arrays.items()}
        )

    return with_update(replace)


def to(dtype):
    return lambda values: np.asarray(values).astype(dtype)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_a_model_of_every_kind_keeps_its_kinds_over_many_rounds(base):
    strategy = RoundRobin(base(**ONLY_TRAIN), num_selected=3)
    result = run(strategy, rounds=12)
    assert all(len(record.delivered) == 3 for record in strategy.history)
    assert not any(record.rejected for record in strategy.history)
    kinds_app.assert_same_kinds(result.arrays)
    for name in kinds_app.UNCHANGED:
        np.testing.assert_array_equal(result.arrays[name].numpy(), kinds_app.ARRAYS[name])
    if base in (FedAvg, FedMedian):
        assert result.arrays["norm.num_batches_tracked"].numpy() > 12 * 3


@pytest.mark.parametrize("name", BASES)
def test_a_model_of_arrays_without_dimensions_is_aggregated(name):
    always = ("FedAvg", "FedProx", "Krum", "MultiKrum")
    if name not in always and not kinds_app.TAKES_SCALARS:
        pytest.skip(f"{name} of Flower takes arrays without dimensions only since 1.28")
    scalars = {"temperature": np.array(1.5, "f4"), "norm.num_batches_tracked": np.array(0)}
    arrays = ArrayRecord({key: Array(values) for key, values in scalars.items()})
    strategy = RoundRobin(BASES[name](**ONLY_TRAIN), num_selected=4)
    result = run(strategy, arrays=arrays)
    assert all(record.delivered == ["0", "1", "2", "3"] for record in strategy.history)
    for key, values in scalars.items():
        after = result.arrays[key].numpy()
        assert (after.shape, after.dtype) == ((), values.dtype)
    assert result.arrays["temperature"].numpy() != 1.5


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}], ids=["as sent", "clipped"])
@pytest.mark.parametrize("base", [FedAvg, FedMedian], ids=lambda kind: kind.__name__)
def test_values_that_are_not_finite_in_the_model_may_come_back(base, options):
    strategy = RoundRobin(base(**ONLY_TRAIN), num_selected=3, **options)
    result = run(strategy, rounds=4, arrays=kinds_app.with_infinite())
    assert all(len(record.delivered) == 3 for record in strategy.history)
    assert not any("not finite" in note for r in strategy.history for note in r.notes)
    np.testing.assert_array_equal(result.arrays["infinite"].numpy(), kinds_app.INFINITE)
    kinds_app.assert_same_kinds(result.arrays)


@pytest.mark.parametrize("change", [np.negative, np.flip, lambda v: np.full_like(v, np.nan)])
def test_other_values_that_are_not_finite_may_not(change):
    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4)
    result = run(strategy, changed("infinite", change), arrays=kinds_app.with_infinite())
    assert all(record.delivered == ["0", "2", "3"] for record in strategy.history)
    assert all("not finite" in record.rejected["1"] for record in strategy.history)
    np.testing.assert_array_equal(result.arrays["infinite"].numpy(), kinds_app.INFINITE)


WRONG = {
    "counter with a dimension": ("norm.num_batches_tracked", lambda v: np.full(3, v), "shape (3,)"),
    "counter of one value": ("norm.num_batches_tracked", lambda v: v[None], "shape (1,"),
    "counter of none": ("norm.num_batches_tracked", lambda v: np.zeros(0, v.dtype), "shape (0,)"),
    "counter of floats": ("norm.num_batches_tracked", to("f8"), "dtype float64, not int64"),
    "counter without sign": ("norm.num_batches_tracked", to("u8"), "dtype uint64, not int64"),
    "table of another shape": ("table", lambda v: v[:1], "shape (1, 2)"),
    "table that is flat": ("table", np.ravel, "shape (4,)"),
    "index that is too wide": ("index", lambda v: v + np.int64(2**40), "int32 goes from"),
    "bytes that grow in a model of floats": ("bytes", lambda v: np.tile(v, 2), "shape (12,)"),
    "bytes with a sign": ("bytes", to("i1"), "dtype int8, not uint8"),
    "mask of another length": ("mask", lambda v: v[:2], "shape (2,)"),
    "mask of bytes": ("mask", to("u1"), "dtype uint8, not bool"),
    "mask of floats": ("mask", to("f4"), "dtype float32, not bool"),
    "flag with a dimension": ("flag", lambda v: np.full((2,), v), "shape (2,)"),
    "scalar with a dimension": ("temperature", lambda v: np.full(3, v), "shape (3,)"),
    "scalar that is NaN": ("temperature", lambda v: np.full_like(v, np.nan), "not finite"),
    "empty that is not": ("unused.weight", lambda v: np.zeros((1, 3), "f4"), "shape (1, 3)"),
    "half that is too large": ("half.weight", lambda v: np.full(5, 1e6, "f4"), "at most 6.6e+04"),
    "half that is infinite": ("half.weight", lambda v: np.full(5, np.inf, "f2"), "not finite"),
    "a whole number in place of floats": ("conv.weight", to("i4"), "dtype int32, not float32"),
    "complex numbers": ("conv.weight", to("c8"), "not that of a number"),
    "texts": ("mask", to("U5"), "not that of a number"),
}


@pytest.mark.parametrize("base", [FedAvg, FedMedian], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("name", "change", "reason"), WRONG.values(), ids=WRONG)
def test_an_array_of_any_kind_that_is_not_the_models_is_left_out(base, name, change, reason):
    strategy = RoundRobin(base(**ONLY_TRAIN), num_selected=4)
    result = run(strategy, changed(name, change))
    for record in strategy.history:
        assert record.delivered == ["0", "2", "3"]
        assert reason in record.rejected["1"]
        assert repr(name) in record.rejected["1"]
    kinds_app.assert_same_kinds(result.arrays)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("norm.num_batches_tracked", "i4"),
        ("table", ">i8"),
        ("index", "i8"),
        ("half.weight", "f8"),
        ("temperature", "f2"),
        ("swapped.weight", "f4"),
        ("double.weight", ">f4"),
    ],
)
def test_numbers_of_another_width_or_byte_order_are_given_the_models(name, dtype):
    change = to(dtype) if name != "table" else lambda values: values.astype(dtype)
    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4)
    result = run(strategy, changed(name, change))
    assert [record.delivered for record in strategy.history] == [["0", "1", "2", "3"]] * 2
    kinds_app.assert_same_kinds(result.arrays)


def header_says(shape, size=0):
    """Return a change to an array of float32 whose header says any shape, as no NumPy does."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(size)
    return lambda array: Array(array.dtype, array.shape, array.stype, data)


def with_bytes(end):
    return lambda a: Array(a.dtype, a.shape, a.stype, a.data[: -len(end)] + end)


FORGED = {
    "a length that is a bool": ("temperature", header_says("(True,)", 4)),
    "a length that is too large": ("unused.weight", header_says(f"(0, {10**30})")),
    "a length below zero": ("unused.weight", header_says("(-1, 0)")),
    "two lengths below zero": ("half.weight", header_says("(-1, -1)", 4)),
    "too many lengths": ("unused.weight", header_says("(" + "1," * 70 + "0)")),
    "bools that are neither 0 nor 1": ("mask", with_bytes(b"\x07")),
    "a bool that is neither 0 nor 1": ("flag", with_bytes(b"\xff")),
}


@pytest.mark.parametrize(("name", "change"), FORGED.values(), ids=FORGED)
def test_an_array_whose_bytes_are_none_of_numpys_is_left_out(name, change):
    def replace(content):
        content["arrays"] = ArrayRecord(
            {n: change(a) if n == name else a for n, a in content["arrays"].items()}
        )

    strategy = RoundRobin(Krum(**ONLY_TRAIN), num_selected=4)
    run(strategy, with_update(replace))
    for record in strategy.history:
        assert record.delivered == ["0", "2", "3"]
        assert f"array {name!r}" in record.rejected["1"]


class OfFloats:
    """The app on those arrays that all of Flower's strategies can take."""

    make_app = staticmethod(kinds_app.make_app)

    @staticmethod
    def initial_arrays():
        return ArrayRecord({n: Array(kinds_app.ARRAYS[n].copy()) for n in kinds_app.FLOATS})


BY_PLACE = {
    **BASES,
    "QFedAvg": lambda **o: QFedAvg(client_learning_rate=0.5, train_loss_key="loss", **o),
    "clipping": lambda **o: DifferentialPrivacyServerSideFixedClipping(FedAvg(**o), 0.0, 1e3, 4),
}


@pytest.mark.parametrize("base", BY_PLACE.values(), ids=BY_PLACE)
def test_arrays_in_another_order_are_put_in_the_models(base):
    """Some of Flower's strategies go by the places of arrays."""

    def turn(content):
        content["arrays"] = ArrayRecord(dict(reversed(content["arrays"].items())))

    results = []
    for answer in (with_update(turn), None):
        strategy = RoundRobin(base(**ONLY_TRAIN), num_selected=4)
        results.append(run(strategy, answer, rounds=3, app=OfFloats).arrays)
        assert not any(record.rejected for record in strategy.history)
    assert results[0] == results[1]
    assert list(results[0]) == list(kinds_app.FLOATS)


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_whole_numbers_at_their_limit_stay_whole(base, value):
    """As floating point, the largest is one more than there is."""
    limit = changed("norm.num_batches_tracked", lambda v: np.full_like(v, value))
    strategy = RoundRobin(base(**ONLY_TRAIN), num_selected=4)
    result = run(strategy, limit, rounds=3)
    kinds_app.assert_same_kinds(result.arrays)
    assert all(record.delivered == ["0", "1", "2", "3"] for record in strategy.history)


LARGEST = {"conv.weight": [4.6e18, 1.8e19], "half.weight": [250, 65000], "double.weight": [4.6e18]}
ADAPTIVE = {name: BASES[name] for name in ("FedAdam", "FedYogi", "FedAvgM")}


@pytest.mark.parametrize("base", ADAPTIVE.values(), ids=ADAPTIVE)
@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in LARGEST.items() for v in vs])
def test_a_value_as_large_as_may_be_does_not_stop_an_adaptive_base_for_good(base, name, value):
    """Its memory holds squares of changes, in the precision of the model."""
    answers = []

    def extreme(message, reply):
        answers.append(reply)
        if len(answers) > 3:
            return reply
        sign = -1 if len(answers) % 2 else 1
        return changed(name, lambda v: np.full_like(v, sign * value))(message, reply)

    base = base(**ONLY_TRAIN)
    models = []
    strategy = RoundRobin(base, num_selected=4)
    strategy.start(
        InProcessGrid(kinds_app.make_app(culprit_sends("train", extreme), summary_mod), 4),
        kinds_app.initial_arrays(),
        num_rounds=6,
        evaluate_fn=lambda _, arrays: models.append(arrays["double.weight"].numpy()),
    )
    assert len(answers) == 6
    for kept in (getattr(base, "m_t", {}), getattr(base, "v_t", {})):
        assert all(np.isfinite(values).all() for values in kept.values())
    assert not (models[4] == models[3]).any()  # rounds of honest clients count again
    assert not (models[6] == models[5]).any()
    assert "1" in strategy.history[3].delivered


def test_a_rule_does_not_take_updates_for_applied_whose_model_is_not_used():
    """GradientMemory keeps what they would have brought, and nobody cools down for them."""
    huge = changed("half.weight", lambda v: np.full_like(v, 65000))
    strategy = GradientMemory(FedAdam(**ONLY_TRAIN), num_selected=4, queue_length=4)
    run(strategy, huge, rounds=1)
    (record,) = strategy.history
    assert any("the moments that FedAdam keeps" in note for note in record.notes)
    state = strategy._selector.state()
    assert not any(state["queue"].values())
    assert np.linalg.norm(state["rule"]["residual"]) > 1.0


@pytest.mark.parametrize("norm", [0.01, 1e9])
@pytest.mark.parametrize("name", ["temperature", "unused.weight", "half.weight", "swapped.weight"])
def test_clipping_takes_every_kind_of_array(norm, name):
    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=4, clip_norm=norm)
    result = run(strategy, rounds=2)
    assert all(len(record.delivered) == 4 for record in strategy.history)
    kinds_app.assert_same_kinds(result.arrays)
    before, after = kinds_app.ARRAYS[name], result.arrays[name].numpy()
    assert np.linalg.norm(after.astype("f8") - before) <= 2 * norm + 1e-3


def test_clipped_update_of_a_scalar_is_as_long_as_allowed():
    class App:
        make_app = staticmethod(kinds_app.make_app)

        @staticmethod
        def initial_arrays():
            return ArrayRecord({"temperature": Array(np.array(1.5, np.float32))})

    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=2, clip_norm=0.125, seed=3)
    arrays = run(strategy, rounds=1, app=App).arrays
    chosen = [int(client) for client in strategy.history[0].chosen]
    moves = {0: -0.125, 1: 0.125, 2: 0.125, 3: 0.125}  # 1 is below 1.5; 2, 3 and 4 are above
    mean = sum((k + 1) * moves[k] for k in chosen) / sum(k + 1 for k in chosen)
    np.testing.assert_allclose(arrays["temperature"].numpy(), 1.5 + mean, rtol=1e-6)


PRECISIONS = ["float16", "float32", "float64"]
PAIRS = [*product(PRECISIONS, PRECISIONS), (">f4", "float32"), ("float32", ">f4")]
SKETCHES = ["layers", "layers@float16", "layers@int8", "coordinates:9", "count:16", "count:16@int8"]


@pytest.mark.parametrize("sketch", SKETCHES)
@pytest.mark.parametrize("step", [1e-2, 1e-6])
@pytest.mark.parametrize(("model", "reply"), PAIRS)
def test_verified_sketches_are_those_of_the_update_as_the_client_made_it(
    model, reply, step, sketch
):
    """Whatever precision the model has and the client answers in, and however small the step."""

    class App:
        @staticmethod
        def make_app(*mods):
            def small(message, context, call_next):
                answer = call_next(message, context)
                if "arrays" in answer.content:
                    answer.content["arrays"] = ArrayRecord(
                        {
                            name: Array(
                                (
                                    array.numpy().astype("f8")
                                    + step * numpy_app.target(context.node_id, name)
                                ).astype(reply)
                            )
                            for name, array in message.content["arrays"].items()
                        }
                    )
                return answer

            return numpy_app.make_app(*mods, small)

        @staticmethod
        def initial_arrays():
            rng = np.random.default_rng(5)
            return ArrayRecord(
                {n: Array(rng.normal(size=s).astype(model)) for n, s in numpy_app.LAYERS.items()}
            )

    kind = GradientMemory if sketch.startswith("count") else PNCS
    base = FedAvg(**ONLY_TRAIN)
    strategy = kind(base, num_selected=2, queue_length=2, sketch=sketch, verify_sketches=True)
    run(strategy, rounds=2, app=App)
    assert not any(record.rejected for record in strategy.history)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (Array(np.zeros(2, np.complex64)), "dtype complex64"),
        (Array("bfloat16", (1,), "numpy.ndarray", b"12"), "dtype bfloat16"),
        (Array("float32", (1,), "torch.tensor", b"1234"), "type 'torch.tensor'"),
    ],
)
def test_a_model_that_cannot_be_checked_is_told_of_before_anybody_trains(array, what):
    grid = InProcessGrid(numpy_app.make_app(summary_mod), 4)
    strategy = UniformSelection(FedAvg(**ONLY_TRAIN))
    arrays = ArrayRecord({"odd": array})
    with pytest.raises(ValueError, match=f"array 'odd' of the model .*{what}"):
        strategy.start(grid, arrays, num_rounds=1)
    assert sum(numpy_app.times_trained(context) for context in grid.contexts.values()) == 0


class HandsOn(FedAvg):
    """Makes the first update the model, as one that hands a model from client to client."""

    def aggregate_train(self, server_round, replies):
        (arrays,) = next(iter(replies)).content.array_records.values()
        return arrays, None


@pytest.mark.parametrize(
    ("dtype", "shape"), [("", ()), ("complex64", (3, 4)), ("float32", (9,)), ("no type", (1,))]
)
def test_what_a_client_says_of_an_array_does_not_pass_into_the_model(dtype, shape):
    """The bytes tell what an array is; `client_fn` apps say nothing, and others may lie."""

    def mislabel(content):
        content["arrays"] = ArrayRecord(
            {n: Array(dtype, shape, a.stype, a.data) for n, a in content["arrays"].items()}
        )

    strategy = RoundRobin(HandsOn(min_train_nodes=1, **ONLY_TRAIN), num_selected=2)
    result = run(strategy, with_update(mislabel), rounds=8)
    assert not any(record.rejected for record in strategy.history)
    for name, array in result.arrays.items():
        assert (array.dtype, tuple(array.shape)) == (
            str(kinds_app.ARRAYS[name].dtype),
            kinds_app.ARRAYS[name].shape,
        )


def test_a_model_whose_arrays_say_nothing_of_themselves_is_read():
    arrays = ArrayRecord(
        {n: Array("", (), a.stype, a.data) for n, a in kinds_app.initial_arrays().items()}
    )
    strategy = RoundRobin(FedAvg(**ONLY_TRAIN), num_selected=3)
    result = run(strategy, rounds=2, arrays=arrays, app=Described)
    assert all(len(record.delivered) == 3 for record in strategy.history)
    kinds_app.assert_same_kinds(result.arrays)


class Described:
    """The app on arrays whose dtype is read from their bytes."""

    @staticmethod
    def make_app(*mods):
        def describe(message, context, call_next):
            message.content["arrays"] = ArrayRecord(
                {n: Array(a.numpy()) for n, a in message.content["arrays"].items()}
            )
            return call_next(message, context)

        return kinds_app.make_app(*mods, describe)
