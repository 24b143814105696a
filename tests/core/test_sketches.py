"""What sketches keep, and what they refuse."""

import numpy as np
import pytest

from pncs_flower import pairwise_cosine
from pncs_flower.randomness import generator
from pncs_flower.sketches.base import Sketch
from pncs_flower.sketches.kinds import (
    Coordinates,
    CoordinateShare,
    Count,
    Layers,
    Norm,
    _drawn,
    parse_sketch,
)
from pncs_flower.sketches.packed import ClientSketches, Packed
from pncs_flower.sketches.power_moments import PowerMoments
from pncs_flower.sketches.wire import Wire

SKETCHES: tuple[Sketch, ...] = (
    Layers(),
    Coordinates(30),
    CoordinateShare(10),
    Count(30),
    PowerMoments(30),
)
WIRED: tuple[Sketch, ...] = tuple(
    parse_sketch(f"{sketch.spec}@{wire}") for sketch in SKETCHES for wire in ("float16", "int8")
)
ALL = SKETCHES + WIRED


def sketched(sketch: Sketch, values: np.ndarray, seed: int = 0, round: int = 1) -> np.ndarray:
    """The numbers that the server has of a layer."""
    return sketch.decode(sketch.encode(values, seed=seed, round=round, layer="fc"), values.size)


def sample(num_rows: int, num_values: int) -> np.ndarray:
    random = np.random.default_rng(5)
    return (random.standard_normal((num_rows, num_values)) + 0.5).astype(np.float32)


@pytest.mark.parametrize("sketch", ALL, ids=lambda sketch: sketch.spec)
def test_a_spec_is_read_back(sketch: Sketch) -> None:
    assert parse_sketch(sketch.spec) == sketch


def test_a_sketch_is_parsed_to_itself() -> None:
    sketch = Count(7)
    assert parse_sketch(sketch) is sketch


@pytest.mark.parametrize(
    "spec", ["", "count", "count:", "count:-3", "count:3.5", "layers:3", "median:3", "count:3@int4"]
)
def test_an_unknown_sketch_is_told_which_there_are(spec: str) -> None:
    with pytest.raises(ValueError, match=r"'layers', .*'coordinates:SIZE', 'count:SIZE'"):
        parse_sketch(spec)


@pytest.mark.parametrize(
    ("num_values", "drawn"),
    [(1, 1), (99, 99), (100, 100), (260, 100), (261, 100), (1000, 396), (10**6, 399996)],
)
def test_a_share_of_a_layer_by_itself_is_of_its_bytes_but_at_least_a_hundred(
    num_values: int, drawn: int
) -> None:
    values = np.arange(1, num_values + 1, dtype=np.float32)
    sketch = CoordinateShare(10, "int8")
    sent = sketch.encode(values, seed=0, round=1, layer="fc")
    assert len(sent) == sketch.num_bytes(num_values) == drawn + 4
    assert len(sketch.decode(sent, num_values)) == drawn


@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
@pytest.mark.parametrize("value_bytes", [2, 4, 8])
@pytest.mark.parametrize(
    "sizes", [[5000], [4160, 650], [64] * 40 + [10**5], [700, 10**6, 20, 3 * 10**5]]
)
def test_a_share_of_a_model_is_the_largest_that_fits(
    sizes: list[int], value_bytes: int, wire: Wire
) -> None:
    update, framing = value_bytes * sum(sizes), 10 * len(sizes)
    fitted = CoordinateShare(10, wire).of_model(sizes, update, framing)
    room = update // 10 - framing

    def taken(count: int) -> int:
        return sum(Coordinates(count, wire).num_bytes(size) for size in sizes)

    assert fitted.wire == wire
    assert fitted.size == 100 or taken(fitted.size) <= room
    assert taken(fitted.size + 1) > room


def test_a_share_of_a_model_without_layers_or_values_is_a_hundred() -> None:
    for sizes in ([], [0], [3, 0]):
        assert CoordinateShare(5).of_model(sizes, 4 * sum(sizes)) == Coordinates(100)


def test_a_share_is_never_more_than_the_largest_layer() -> None:
    assert CoordinateShare(100, "int8").of_model([300, 5000], 4 * 5300) == Coordinates(5000, "int8")


@pytest.mark.parametrize("spec", ["coordinates:0%", "coordinates:101%"])
def test_a_share_is_from_one_to_a_hundred_percent(spec: str) -> None:
    with pytest.raises(ValueError, match="want 1% to 100%"):
        parse_sketch(spec)


@pytest.mark.parametrize(
    "spec", ["coordinates:%", "coordinates:1.5%", "count:3%", "coordinates:-1%"]
)
def test_a_share_that_cannot_be_read_is_told_which_there_are(spec: str) -> None:
    with pytest.raises(ValueError, match="'coordinates:PERCENT%'"):
        parse_sketch(spec)


@pytest.mark.parametrize("spec", ["coordinates:0", "count:0", "power-moments:0"])
def test_a_size_of_zero_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="is 0, want 1"):
        parse_sketch(spec)


@pytest.mark.parametrize("size", [2.5, True, np.int64(3)])
@pytest.mark.parametrize("kind", [Coordinates, CoordinateShare, Count, PowerMoments])
def test_a_size_that_no_text_could_say_is_refused(kind: type, size: float) -> None:
    with pytest.raises(ValueError, match="size of the sketch is"):
        kind(size)


@pytest.mark.parametrize("sketch", [*ALL, Norm("float16")], ids=lambda sketch: sketch.spec)
def test_values_below_those_of_float32_are_zeros(sketch: Sketch) -> None:
    assert not sketched(sketch, np.full(1000, 1e-60)).any()


@pytest.mark.parametrize("num_values", [1, 30, 31, 90, 91, 1000])
@pytest.mark.parametrize("sketch", ALL, ids=lambda sketch: sketch.spec)
def test_num_bytes_is_what_goes_over_the_wire(sketch: Sketch, num_values: int) -> None:
    wire = sketch.encode(sample(1, num_values)[0], seed=0, round=1, layer="fc")
    assert wire.ndim == 1
    assert wire.nbytes == sketch.num_bytes(num_values)


@pytest.mark.parametrize("sketch", ALL, ids=lambda sketch: sketch.spec)
def test_an_infinite_gradient_is_refused_by_the_server(sketch: Sketch) -> None:
    values = sample(1, 1000)[0]
    values[:] = np.inf
    with pytest.raises(ValueError, match="finite"):
        sketched(sketch, values)


@pytest.mark.parametrize("sketch", ALL, ids=lambda sketch: sketch.spec)
def test_the_sketch_of_another_layer_is_refused(sketch: Sketch) -> None:
    wire = sketch.encode(sample(1, 1000)[0], seed=0, round=1, layer="fc")
    with pytest.raises(ValueError, match="shape"):
        sketch.decode(wire, 20)


@pytest.mark.parametrize(
    ("spec", "packed"),
    [
        ("layers", False),  # floats as they came
        ("layers@float16", True),
        ("coordinates:5000@int8", True),
        ("coordinates:100@int8", False),  # few
        ("power-moments:5000@int8", False),  # of several parts
    ],
)
def test_many_numbers_stay_as_they_came_and_give_the_same_bits(spec: str, packed: bool) -> None:
    sketch, values = parse_sketch(spec), sample(3, 20_000)
    wires = [sketch.encode(row, seed=0, round=1, layer="fc") for row in values]
    rows = [sketch.read(wire, 20_000) for wire in wires]
    assert {isinstance(row, Packed) for row in rows} == {packed}
    decoded = [sketch.decode(wire, 20_000) for wire in wires]
    for row, expected in zip(rows, decoded, strict=True):
        np.testing.assert_array_equal(ClientSketches({"fc": row})["fc"], expected)
    np.testing.assert_array_equal(
        sketch.pairwise_cosine(rows), sketch.pairwise_cosine(np.stack(decoded))
    )


@pytest.mark.parametrize("sketch", ALL, ids=lambda sketch: sketch.spec)
def test_a_layer_must_be_flat(sketch: Sketch) -> None:
    with pytest.raises(ValueError, match=r"\(2, 50\)"):
        sketch.encode(sample(2, 50), seed=0, round=1, layer="fc")


@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.spec)
def test_a_small_layer_is_sent_as_it_is(sketch: Sketch) -> None:
    values = sample(1, 30)[0]
    np.testing.assert_array_equal(sketched(sketch, values), values)


@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.spec)
def test_similarities_of_small_layers_are_exact(sketch: Sketch) -> None:
    rows = sample(4, 30)
    similarity = sketch.pairwise_cosine(np.stack([sketched(sketch, row) for row in rows]), 2)
    np.testing.assert_array_equal(similarity, pairwise_cosine(rows, 2))


@pytest.mark.parametrize("sketch", [Layers(), Coordinates(5)], ids=lambda sketch: sketch.spec)
@pytest.mark.parametrize("p", [1, 2, 2.5, 4])
def test_values_keep_every_order(sketch: Sketch, p: float) -> None:
    sketch.check_order(p)


@pytest.mark.parametrize(("sketch", "p"), [(Count(5), 4), (PowerMoments(5), 3)])
def test_an_order_that_is_not_kept_is_refused_with_a_remedy(sketch: Sketch, p: float) -> None:
    with pytest.raises(ValueError, match="coordinates:5"):
        sketch.check_order(p)
    with pytest.raises(ValueError, match="coordinates:5"):
        sketch.pairwise_cosine(sample(2, 5), p)


@pytest.mark.parametrize(
    ("sketch", "p"), [(Count(5), 2), (PowerMoments(5), 2), (PowerMoments(5), 4)]
)
def test_an_order_that_is_kept_is_accepted(sketch: Sketch, p: float) -> None:
    sketch.check_order(p)


@pytest.mark.parametrize("size", [3, 60, 99])
def test_coordinates_are_distinct_coordinates_in_order(size: int) -> None:
    drawn = sketched(Coordinates(size), np.arange(100, dtype=np.float32))
    assert len(set(drawn.tolist())) == size
    assert (np.diff(drawn) > 0).all()


def test_coordinates_that_are_drawn_once_are_nobodys_to_change() -> None:
    values, place = np.arange(50.0), {"seed": 3, "round": 7, "layer": "w"}
    first = Coordinates(5).encode(values, **place)
    expected = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(Coordinates(5).encode(values, **place), expected)
    (indices,) = _drawn(3, 7).values()
    with pytest.raises(ValueError, match="read-only"):
        indices[0] = 1


def test_coordinates_change_with_the_round() -> None:
    values = np.arange(1000, dtype=np.float32)
    assert (
        sketched(Coordinates(9), values, round=1) != sketched(Coordinates(9), values, round=2)
    ).any()


@pytest.mark.parametrize("size", [3, 7])
def test_every_coordinate_is_drawn_equally_often(size: int) -> None:
    values = np.arange(10, dtype=np.float32)
    drawn = [sketched(Coordinates(size), values, round=round) for round in range(2000)]
    counts = np.bincount(np.concatenate(drawn).astype(int), minlength=10)
    # Binomial: standard deviation below 22; five of them.
    assert np.abs(counts - 200 * size).max() < 5 * np.sqrt(2000 * size / 10 * (1 - size / 10))


def test_coordinates_estimate_inner_products_without_bias() -> None:
    u, v = sample(2, 400)
    estimates = [
        400 / 50 * sketched(Coordinates(50), u, round=r) @ sketched(Coordinates(50), v, round=r)
        for r in range(400)
    ]
    assert_unbiased(np.array(estimates), float(u.astype(float) @ v.astype(float)))


def test_a_count_sketch_is_the_same_in_every_round() -> None:
    values = sample(1, 500)[0]
    np.testing.assert_array_equal(
        sketched(Count(50), values, round=1), sketched(Count(50), values, round=9)
    )


def test_count_sketches_add_up() -> None:
    u, v = sample(2, 5000)
    total = sketched(Count(50), u) - 2 * sketched(Count(50), v)
    np.testing.assert_allclose(sketched(Count(50), u - 2 * v), total, atol=2e-3)


def test_a_count_sketch_estimates_inner_products_without_bias() -> None:
    u, v = sample(2, 700)
    estimates = [
        sketched(Count(40), u, seed=s) @ sketched(Count(40), v, seed=s) for s in range(400)
    ]
    assert_unbiased(np.array(estimates), float(u.astype(float) @ v.astype(float)))


def test_the_variance_of_a_count_sketch_is_within_its_bound() -> None:
    u, v = sample(2, 700).astype(np.float64)
    estimates = [
        sketched(Count(40), u, seed=s) @ sketched(Count(40), v, seed=s) for s in range(400)
    ]
    bound = ((u @ u) * (v @ v) + (u @ v) ** 2) / 40
    # The relative error of a variance from 400 draws is about 7 %, more for heavy tails.
    assert np.var(estimates) < 1.4 * bound


def test_power_moments_estimate_their_sums_without_bias() -> None:
    u, v = sample(2, 700).astype(np.float64)
    x, y = u / np.sum(u**4) ** 0.25, v / np.sum(v**4) ** 0.25
    sketch = PowerMoments(40)
    cubes, squares = [], []
    for seed in range(400):
        of_u = np.split(sketched(sketch, u, seed=seed)[1:].astype(np.float64), 3)
        of_v = np.split(sketched(sketch, v, seed=seed)[1:].astype(np.float64), 3)
        cubes.append(of_u[2] @ of_v[0])
        squares.append(of_u[1] @ of_v[1])
    assert_unbiased(np.array(cubes), float((x**3) @ y))
    assert_unbiased(np.array(squares), float((x**2) @ (y**2)))


def assert_unbiased(estimates: np.ndarray, truth: float) -> None:
    """Within four standard errors, and these small enough to tell."""
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - truth) < 4 * error
    assert error < 0.1 * abs(truth)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_power_moments_carry_the_norm_at_any_scale(scale: float) -> None:
    values = (sample(1, 700)[0].astype(np.float64) * scale).astype(np.float32)
    expected = np.sum((values.astype(np.float64) / scale) ** 4) ** 0.25 * scale
    assert sketched(PowerMoments(40), values)[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
def test_large_power_moments_give_nearly_the_similarity(p: int, wire: str) -> None:
    rows = generator(3, "rows").standard_t(5, (5, 40_000)).astype(np.float32)
    rows[1:] += rows[0]
    rows[3] *= 1e6
    sketch = parse_sketch(f"power-moments:13000@{wire}")
    similarity = sketch.pairwise_cosine(np.stack([sketched(sketch, row) for row in rows]), p)
    # The standard deviation of an estimate at p = 4 is about .02.
    assert np.abs(similarity - pairwise_cosine(rows, p)).max() < 0.08


@pytest.mark.parametrize("p", [2, 4])
def test_a_zero_layer_is_like_nothing(p: int) -> None:
    rows = sample(3, 1000)
    rows[1] = 0
    sketch = PowerMoments(30)
    similarity = sketch.pairwise_cosine(np.stack([sketched(sketch, row) for row in rows]), p)
    assert not similarity[1].any()
    assert not similarity[:, 1].any()
    assert similarity[0, 0] == 1


def test_a_negative_norm_is_refused() -> None:
    wire = PowerMoments(5).encode(sample(1, 100)[0], seed=0, round=1, layer="fc")
    wire[0] = -1
    with pytest.raises(ValueError, match="norm -1"):
        PowerMoments(5).decode(wire, 100)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("coordinates:3", [4.0, 6.0, 7.0]),
        ("norm", [14.2828569412231445]),
        ("count:3", [8.0, 0.0, -2.0]),
    ],
)
def test_the_draw_is_pinned(spec: str, expected: list[float]) -> None:
    """A client and a server of different releases must agree: this may only change on purpose."""
    drawn = sketched(parse_sketch(spec), np.arange(1, 9, dtype=np.float32), seed=1, round=2)
    np.testing.assert_array_equal(drawn, expected)
