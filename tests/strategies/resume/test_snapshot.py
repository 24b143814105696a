"""What is written to a checkpoint comes back as it was, with its type, or is refused by name."""

import collections
import io
import itertools
import json
import logging
import math
import random
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from fractions import Fraction
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from pncs_flower.strategies.errors import UnsavableError
from pncs_flower.strategies.resume.snapshot import Decoder, Encoder

torch = pytest.importorskip("torch")


class Point(NamedTuple):
    x: float
    y: Any


Older = namedtuple("Older", "a b")


class Names(list):
    pass


class Table(dict):
    pass


class Pair(tuple):
    pass


class Ring(deque):
    pass


class Bag(set):
    pass


class Meters(float):
    pass


class Ordered(OrderedDict):
    pass


class Fallback(defaultdict):
    pass


class Colour(Enum):
    RED = "r"


class Level(IntEnum):
    HIGH = 3


class Access(Flag):
    READ = 1
    WRITE = 2


class Made(Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> "Made":
        made = object.__new__(cls)
        made._name_, made._value_ = "TWO", value
        return made


class Tracker:
    def __init__(self) -> None:
        raise AssertionError("a constructor must not run when an object is read")


class Slotted:
    __slots__ = ("__hidden", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.__hidden = value

    @property
    def hidden(self) -> Any:
        return self.__hidden


@dataclass
class Best:
    accuracy: float = 0.0
    arrays: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


def tracker(**attributes: Any) -> Tracker:
    made = Tracker.__new__(Tracker)
    vars(made).update(attributes)
    return made


def with_attribute(value: Any) -> Any:
    value.more = [1, {2}]
    return value


def encoded(value: Any, outside: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    encoder = Encoder(outside)
    node = encoder.encode(value, "value")
    encoder.check()
    return node, encoder.arrays


def through_a_file(value: Any, outside: dict[str, Any] | None = None) -> Any:
    """Write a value and read it, as a checkpoint does."""
    node, written = encoded(value, outside)
    text = json.dumps(node)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **written)
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return Decoder(arrays, outside).decode(json.loads(text))


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are of the same type and content, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
            and one.flags.writeable == other.flags.writeable
        )
    if isinstance(one, np.generic):
        text = isinstance(one, (str, bytes)) and len(one) != len(other)
        bits = [np.asarray(scalar).tobytes() for scalar in (one, other)]
        return one.dtype == other.dtype and bits[0] == bits[1] and not text
    if isinstance(one, torch.Tensor):
        whole = [tensor.detach().contiguous().reshape(-1) for tensor in (one, other)]
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.stride() == other.stride()
            and one.requires_grad == other.requires_grad
            and torch.equal(*(tensor.view(torch.uint8) for tensor in whole))
        )
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state["state"] == other.bit_generator.state["state"]
    if isinstance(one, (set, frozenset)):
        found = all(any(same(a, b) for b in other) for a in one)
        return found and len(one) == len(other) and vars_of(one, other)
    if isinstance(one, (list, tuple, deque)):
        whole = len(one) == len(other) and all(map(same, one, other))
        limits = getattr(one, "maxlen", 0) == getattr(other, "maxlen", 0)
        return whole and limits and vars_of(one, other)
    if isinstance(one, dict):
        order = all(map(same, one, other)) and len(one) == len(other)
        factory = getattr(one, "default_factory", 0) is getattr(other, "default_factory", 0)
        return (
            order
            and factory
            and all(map(same, one.values(), other.values()))
            and vars_of(one, other)
        )
    if isinstance(one, (Tracker, Best)):
        return vars_of(one, other)
    if isinstance(one, Slotted):
        return same(one.value, other.value) and same(one.hidden, other.hidden)
    return bool(one == other)


def vars_of(one: Any, other: Any) -> bool:
    return same(getattr(one, "__dict__", None), getattr(other, "__dict__", None))


VALUES: dict[str, Any] = {
    "nothing": None,
    "plain": [True, 1, 2.5, "text", "\ud800", b"\x00\xff", b"long" * 100],
    "numbers": [-0.0, math.inf, math.nan, 2**64, -(10**5000)],
    "nested": (1, {"a": (2,), 3: [4], None: {}, (1, "x"): [()]}),
    "namedtuple": Point(1.0, [2]),
    "older namedtuple": Older(1, Older(2, None)),
    "list of namedtuples": [Point(1.0, "a"), Point(2.0, Point(3.0, ()))],
    "list subclass": with_attribute(Names([1, [2]])),
    "dict subclass": with_attribute(Table({1: "a"})),
    "tuple subclass": with_attribute(Pair((1, [2]))),
    "set subclass": with_attribute(Bag({1, 2})),
    "deque subclass": with_attribute(Ring([1, 2], maxlen=2)),
    "subclass of OrderedDict": with_attribute(Ordered(b=1, a=2)),
    "subclass of defaultdict": with_attribute(Fallback(list, {1: [2]})),
    "OrderedDict": OrderedDict(b=1, a=[2]),
    "defaultdict": defaultdict(list, {"a": [1]}),
    "defaultdict without": defaultdict(None, {"a": 1}),
    "Counter": Counter("abca"),
    "deque": deque([1, [2]], maxlen=3),
    "deque without end": deque([1]),
    "set": {1, "a", (2, 3), None},
    "frozenset": frozenset({1, frozenset({2})}),
    "enum": [Colour.RED, Level.HIGH, Access.READ | Access.WRITE, Access(0)],
    "times": [datetime(2026, 2, 28, 12, 0, 0, 7, fold=1), datetime(2026, 2, 28, tzinfo=UTC)],
    "path": Path("a/b"),
    "object": tracker(best=0.5, seen={"a"}, inner=tracker(rows=[np.ones(2)])),
    "slots": Slotted([1]),
    "dataclass": Best(0.5, [np.zeros(2)]),
    "frozen dataclass with slots": Frozen((1, 2)),
    "array": np.arange(6, dtype=np.float16).reshape(2, 3),
    "array without dimensions": np.array(3.5),
    "empty array": np.zeros((0, 3), np.int8),
    "arrays in other orders": [np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0)] * 2,
    "big-endian, text, time": [np.array([1], ">f4"), np.array(["é"]), np.array(["2026"], "M8[D]")],
    "booleans and complex": [np.array([True]), np.array([1j], np.complex64)],
    "scalars": [np.float32(0.1), np.longlong(-3), np.bool_(True), np.float64(math.nan)],
    "scalars of complex numbers and text": [np.complex128(1j), np.str_("a\0")],
    "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "tensor in another order": torch.arange(6.0).reshape(2, 3).t(),
    "tensors": [
        torch.tensor(True),
        torch.tensor(2 + 1j),
        torch.zeros(0, 3),
        torch.ones(2).requires_grad_(),
    ],
    "parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "module": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict(),
    "Flower's records": [
        ArrayRecord({"w": Array(np.ones((2, 2), np.float32))}),
        ConfigRecord({"b": b"\x01", "l": ["x"], "f": True}),
        MetricRecord({"m": [1.5, 2.5]}),
        RecordDict({"m": MetricRecord({"a": 1})}),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_value_comes_back_as_it_was(name):
    assert same(through_a_file(VALUES[name]), VALUES[name])


@pytest.mark.parametrize("other", [2**63, -(2**70), (1,), np.float32(1.0), [1]], ids=repr)
def test_dict_is_written_part_by_part_if_one_of_them_is_not_plain(other):
    plain = {"a": 1, "b": 0.5, "c": None, 3: True}
    written = ["a", 1, "b", 0.5, "c", None, 3, True]
    assert Encoder().encode(plain, "p") == {"dict": written}
    mixed = Encoder().encode({**plain, "d": other}, "p")["dict"]
    assert mixed[:-1] == [*written, "d"]
    assert isinstance(mixed[-1], dict)


def test_network_of_torch_comes_back_with_what_it_shares():
    one = torch.nn.Conv2d(3, 3, 1)
    network = torch.nn.Sequential(one, torch.nn.BatchNorm2d(3), torch.nn.Dropout(), one)
    network(torch.randn(4, 3, 2, 2))
    network.eval()
    again = through_a_file(network)
    assert again[0] is again[3]
    assert again.training is False
    inputs = torch.randn(5, 3, 2, 2)
    assert torch.equal(again(inputs), network(inputs))
    assert [name for name, _ in again.named_buffers()] == [n for n, _ in network.named_buffers()]


def test_read_only_array_stays_so():
    value = np.arange(3)
    value.flags.writeable = False
    assert same(through_a_file(value), value)


atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=400)
    | st.datetimes()
    | st.sampled_from([*Colour, *Level, *Access])
)
hashable = st.recursive(
    atoms,
    lambda inner: (
        st.tuples(inner, inner).map(tuple)
        | st.lists(inner, max_size=3).map(Pair)
        | st.frozensets(inner, max_size=3)
        | st.builds(Point, st.floats(), inner)
    ),
    max_leaves=4,
)
dtypes = st.sampled_from(["?", "<i2", ">f4", "<f8", "<c8", "S3", "<U2", "M8[s]", "m8"])
arrays = st_numpy.arrays(
    dtypes.map(np.dtype), st_numpy.array_shapes(min_dims=0, min_side=0, max_side=3)
)
anything = st.recursive(
    hashable | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(Names)
        | st.lists(inner, max_size=3).map(partial(deque, maxlen=4))
        | st.lists(inner, max_size=3).map(Pair)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3).map(Table)
        | st.dictionaries(hashable, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(hashable, inner, max_size=3).map(partial(defaultdict, list))
        | st.sets(hashable, max_size=3)
        | st.builds(Best, st.floats(), st.lists(inner, max_size=2))
        | st.dictionaries(st.sampled_from("ab"), inner).map(lambda values: tracker(**values))
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(anything)
def test_whatever_is_written_can_be_read_and_is_the_same(value):
    assert same(through_a_file(value), value)


@pytest.mark.parametrize(
    "made",
    [
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.MT19937(4)),
        lambda: np.random.Generator(np.random.Philox(4)),
        lambda: np.random.Generator(np.random.SFC64(4)),
        lambda: np.random.RandomState(5),
    ],
)
def test_generator_of_numpy_goes_on_where_it_was(made):
    generator = made()
    generator.normal(size=3)
    if isinstance(generator, np.random.RandomState):
        generator.normal()  # keeps a second number
    again = through_a_file(generator)
    assert type(again) is type(generator)
    draw = "integers" if isinstance(generator, np.random.Generator) else "randint"
    assert generator.normal(size=5).tolist() == again.normal(size=5).tolist()
    assert getattr(generator, draw)(9, size=7).tolist() == getattr(again, draw)(9, size=7).tolist()


def test_generator_spawns_the_same_children_after_it_was_read():
    generator = np.random.default_rng(3)
    generator.spawn(2)
    again = through_a_file(generator)
    assert generator.spawn(1)[0].random() == again.spawn(1)[0].random()


def test_generator_of_python_goes_on_where_it_was():
    plain = random.Random(1)
    plain.gauss(0, 1)
    again = through_a_file(plain)
    assert [plain.gauss(0, 1), plain.random()] == [again.gauss(0, 1), again.random()]


def test_one_object_in_two_places_is_one_again():
    rows = [1]
    array, generator = np.zeros(2), np.random.default_rng(1)
    value = {"a": rows, "b": (rows, array), "c": array, "d": generator, "e": [generator]}
    again = through_a_file(value)
    assert again["a"] is again["b"][0]
    assert again["b"][1] is again["c"]
    assert again["d"] is again["e"][0]


def test_tensors_that_are_parts_of_one_another_are_so_again():
    whole = torch.arange(6.0)
    again = through_a_file([whole, whole[2:].reshape(2, 2).t(), torch.nn.Parameter(whole)])
    again[0][2] = 9
    assert again[1].tolist() == [[9, 4], [3, 5]]
    assert again[2].tolist() == again[0].tolist()


def test_what_is_outside_is_not_written():
    function, owner = (lambda: 1), tracker(a=1)
    value = {"call": partial(function, 2, k=3), "owner": [owner]}
    again = through_a_file(value, {"a function": function, "an owner": owner})
    assert again["owner"][0] is owner
    assert (again["call"].func, again["call"].args, again["call"].keywords) == (
        function,
        (2,),
        {"k": 3},
    )


def local_object() -> Any:
    class Local:
        pass

    return Local()


class Copied:
    def __reduce__(self) -> Any:
        return (print, ("code",))


class Restored:
    def __setstate__(self, state: Any) -> None:
        raise AssertionError


def itself() -> Any:
    value: Any = tracker(rows=[])
    value.rows.append(value)
    return value


def shared_arrays() -> Any:
    whole = np.zeros(4)
    return [whole, whole[1:3]]


def shared_transposed() -> Any:
    whole = np.zeros((2, 3))
    return [whole, whole.T[1:]]


def array_and_tensor() -> Any:
    array = np.zeros(4)
    return [array, torch.from_numpy(array)]


def read_only_part() -> Any:
    whole = np.zeros(4)
    part = whole[1:]
    part.flags.writeable = False
    return [whole, np.ones(1), part]


def deep() -> Any:
    value: Any = 0
    for _ in range(2000):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "object": (object(), r"value\['a'\]\[0\]"),
    "generator": ((n for n in ()), "generator"),
    "iterator": (iter([1]), "list_iterator"),
    "count": (itertools.count(), "count"),
    "lock": (threading.Lock(), "not there when the run started"),
    "function": (lambda: 1, "function.*was not there when the run started"),
    "class": (Point, "type 'Point', which was not there"),
    "logger": (logging.getLogger("x"), "Logger"),
    "pattern": (re.compile("x"), "Pattern"),
    "module": (collections, "module"),
    "namespace": (SimpleNamespace(a=1), "SimpleNamespace"),
    "local class": (local_object(), "must stand outside of functions"),
    "reduce": (Copied(), "a __reduce__ of its own"),
    "setstate": (Restored(), "a __setstate__ of its own"),
    "error": (ValueError("x"), "ValueError"),
    "file": (io.BytesIO(), "BytesIO"),
    "array of objects": (np.array([None]), "dtype object"),
    "masked array": (np.ma.masked_array([1.0], mask=[True]), "MaskedArray"),
    "matrix": (np.matrix([1.0]), "matrix"),
    "record array": (np.rec.array([(1,)], dtype=[("a", int)]), "recarray"),
    "dtype with metadata": (np.zeros(1, np.dtype("f4", metadata={"a": 1})), "dtype float32"),
    "arrays that overlap": (shared_arrays(), "share memory"),
    "arrays that overlap crosswise": (shared_transposed(), "share memory"),
    "array and tensor that overlap": (array_and_tensor(), "share memory"),
    "array that overlaps itself": (
        np.lib.stride_tricks.as_strided(np.arange(4.0), (3, 2), (8, 8)),
        "has memory twice",
    ),
    "network that refers to its own weights": (torch.nn.LSTM(2, 2), r"_flat_weight_refs\[0\]"),
    "made member of an enumeration": (Made(7), "it is no member"),
    "read-only part of an array": (read_only_part(), "share memory"),
    "tensor of a computation": (torch.ones(2, requires_grad=True) * 2, "belongs to a computation"),
    "sparse tensor": (torch.eye(2).to_sparse(), "layout"),
    "optimizer": (torch.optim.SGD([torch.ones(1)], lr=0.1), "__getstate__|__setstate__"),
    "object in itself": (itself(), "contains itself"),
    "deep": (deep(), "nested more than 100 deep"),
    "time zone": (datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Rome")), "use UTC"),
    **{
        type(value).__name__: (value, rf"is a .*{type(value).__name__}, which .* cannot hold")
        for value in (
            *(1j, bytearray(b"a"), range(3), Decimal(1), Fraction(1, 3), UUID(int=5), Meters(0.1)),
            *(date(2026, 1, 1), timedelta(1), PurePosixPath("a"), np.datetime64("NaT")),
            *(torch.Size([2]), torch.float16, torch.device("cpu"), torch.Generator(), UTC),
        )
    },
    "structured array": (np.zeros(1, "i1,f8"), "has the dtype"),
    "structured scalar": (np.zeros(1, "i1,f8")[0], "void"),
    "partial with attributes": (with_attribute(partial(print)), "partial"),
    "bound method": (tracker().__init__, "function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_come_back_is_refused_with_its_name(name):
    value, reason = REFUSED[name]
    with pytest.raises(UnsavableError, match=reason) as caught:
        encoded({"a": [value]})
    assert "value['a'][0]" in str(caught.value)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"code": "print"}, "unknown kind of value 'code'"),
        ({"object": ["no.such.module", "A", 0]}, "import its module"),
        ({"object": ["builtins", "print", 0]}, "is not there"),
        ({"object": [__name__, "Copied", 0]}, "__reduce__"),
        ({"enum": ["os", "system", "ls"]}, "is not there"),
        ({"outside": ["print", "print"]}, "print.* is not there any more"),
        ({"bit-generator": ["system", None, None]}, "unknown bit generator"),
    ],
)
def test_what_nobody_wrote_is_not_made(node, reason):
    with pytest.raises(ValueError, match=reason):
        Decoder({}).decode(node)
