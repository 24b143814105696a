"""Updates that are kept: their bits, their order, their budget, and where they are."""

import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from pncs_flower.strategies.combinations import store as module
from pncs_flower.strategies.combinations.store import UpdateStore, norm, weighted_sum

PLACES = ["memory", "file without a name", "checkpoint"]


def vectors(count: int, size: int = 40_000) -> list[np.ndarray]:
    numbers = np.random.default_rng(size)
    return [numbers.standard_normal(size, dtype=np.float32) * 10.0**-n for n in range(count)]


def clients(store: UpdateStore) -> list[str]:
    return [entry.client for entry in store.entries]


@pytest.fixture(params=PLACES)
def place(request, tmp_path, monkeypatch):
    if request.param == "file without a name":
        monkeypatch.setattr(module, "IN_MEMORY", 0)
    return tmp_path / "updates" if request.param == "checkpoint" else None


@pytest.mark.parametrize(
    "odd",
    [
        np.array([1.5, -2.0, 0.0, 1e-30, 3e38], np.float32),
        np.array([3, -4, 0]),
        np.array([True, False]),
        np.array([0.1, 1e-300]),
        np.array([0.5, 0.25], np.float16),
        np.zeros(7, np.float32),
        np.zeros(0, np.float32),
        np.arange(20, dtype=np.float32)[::-2],
        np.array([1e-45, -0.0], np.float32),
        np.arange(5, dtype=">f4"),
    ],
)
def test_what_is_kept_has_the_same_bits_and_cannot_be_changed(place, odd):
    given, expected = odd.copy(), odd.astype(np.float32)
    store = UpdateStore(folder=place)
    sketch = np.ones(2)
    problem = store.add("a", 3, given, sketch)
    sketch[...] = 9
    (entry,) = store.entries
    if given.flags.writeable:
        given[...] = 1
    else:  # it is what is kept
        assert given.dtype == np.float32
    assert problem == ""
    assert entry.values.tobytes() == expected.tobytes()
    assert (entry.client, entry.round, entry.scale, [*entry.sketch]) == ("a", 3, 1.0, [1, 1])
    exact = sum(Fraction(float(value)) ** 2 for value in expected)
    assert Fraction(entry.norm) ** 2 == pytest.approx(exact, rel=1e-14)
    assert store.num_bytes == 4 * odd.size
    with pytest.raises(ValueError, match="read-only"):
        entry.values[...] = 0


def test_float16_keeps_every_size_of_update(place):
    updates = [
        np.array([size, -size / 3, size * 1e-7, 0.0], np.float32)
        for size in (3.4e38, 1.0, 1e-3, 1e-20, 1e-37)
    ]
    store = UpdateStore(dtype="float16", folder=place)
    for update in [*updates, np.zeros(4), np.array([1e-45, 0, 0, 0])]:
        store.add("a", 1, update)
    for entry, update in zip(store.entries[:5], updates, strict=True):
        assert entry.values.dtype == np.float16
        found = weighted_sum([entry], [1.0])
        np.testing.assert_allclose(found, update.astype(np.float64), rtol=2**-10)
        assert entry.norm == pytest.approx(norm(update.astype(np.float64)), rel=1e-7)
    assert not weighted_sum([store.entries[5]], [1.0]).any()
    assert weighted_sum([store.entries[6]], [1.0])[0] == np.float32(1e-45)
    assert store.num_bytes == 7 * 4 * 2


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        (None, "abcabc"),
        (6, "abcabc"),
        (4, "cabc"),
        (1, "c"),
        (0, ""),
        ("2", "bc"),
        ("480B", "cabc"),
        ("479 b", "abc"),
        ("0.48kB", "cabc"),
        ("0 MB", ""),
        ("2GB", "abcabc"),
    ],
)
def test_the_oldest_beyond_the_budget_are_dropped(budget, left):
    store = UpdateStore(budget)
    for number, client in enumerate("abcabc"):
        store.add(client, number, np.full(30, number))
    store.trim()
    assert "".join(clients(store)) == left
    assert [e.round for e in store.entries] == [*range(6)][6 - len(left) :]


@pytest.mark.parametrize("budget", ["", "much", "-1", "1.5", "MB", "5 PB", "1e3MB", "٣ apples"])
def test_a_text_that_is_no_budget_is_refused_with_what_would_be(budget):
    with pytest.raises(ValueError, match=r"must be a number of updates, such as 50, or an amount"):
        UpdateStore(budget)


@pytest.mark.parametrize(
    ("budget", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_number_that_is_no_budget_is_refused(budget, error):
    with pytest.raises(error, match="store is"):
        UpdateStore(budget)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match=r"dtype is 'int8', but must be float32|'float32' or"):
        UpdateStore(dtype="int8")


def test_a_client_that_is_forgotten_is_in_no_entry(place):
    store = UpdateStore(folder=place)
    for number, client in enumerate("abcab"):
        store.add(client, number, np.full(30, number))
    store.forget("a")
    store.forget("of nobody")
    assert clients(store) == ["b", "c", "b"]
    assert [entry.values[0] for entry in store.entries] == [1, 2, 4]


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 16_385, 40_000])
def test_sum_is_that_of_fresh_and_stored_updates(place, size):
    store = UpdateStore(folder=place)
    stored, fresh = np.split(np.stack(vectors(6, size)), 2)
    for vector in stored:
        store.add("a", 1, vector)
    coefficients = np.array([0.3, 0.0, -7.0, 1e-3, 2.5, 0.0])
    found = weighted_sum([*store.entries, *fresh], coefficients)
    expected = coefficients.astype(np.longdouble) @ np.concatenate([stored, fresh])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected.astype(np.float64), rtol=1e-9, atol=1e-15)


def test_vector_without_weight_is_not_read():
    class Unread(np.ndarray):
        def __getitem__(self, key):
            raise AssertionError("was read")

    found = weighted_sum([np.ones(3), np.ones(3).view(Unread)], [2.0, 0.0])
    assert [*found] == [2.0, 2.0, 2.0]


def test_sum_needs_no_more_memory_than_itself():
    parts = [np.ones(1_000_000, np.float32) for _ in range(5)]
    tracemalloc.start()
    weighted_sum(parts, [1.0] * 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000 * 1.05


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_restored_is_the_same(place, dtype):
    store = UpdateStore(dtype=dtype, folder=place)
    for number, vector in enumerate(vectors(3)):
        store.add("abc"[number], number, vector, np.full(4, number) if number else None)
    other = UpdateStore(dtype=dtype, folder=place)
    other.restore(store.state())
    assert len(other.entries) == 3
    for one, two in zip(store.entries, other.entries, strict=True):
        assert one.values.tobytes() == two.values.tobytes()
        assert (one.client, one.round, one.norm, one.scale) == (
            *(two.client, two.round, two.norm, two.scale),
        )
        assert np.array_equal(one.sketch, two.sketch)
    assert other.state()[0]["kept"] == store.state()[0]["kept"]


def test_a_state_with_files_has_no_arrays(tmp_path):
    store = UpdateStore(folder=tmp_path)
    store.add("a", 1, np.ones(3))
    (saved,) = store.state()
    assert saved["values"] is None
    assert [path.name for path in tmp_path.iterdir()] == [saved["kept"].name]


@pytest.mark.parametrize("place", PLACES[1:])
def test_full_disk_keeps_the_update_in_memory_and_says_so(tmp_path, monkeypatch, place):
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    store = UpdateStore(folder=tmp_path if place == "checkpoint" else None)
    values = np.arange(30_000, dtype=np.float32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        problem = store.add("a", 7, values)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert problem.startswith("an update of round 7 is kept in memory and in no file: [Errno 27]")
    assert not [*tmp_path.iterdir()]
    (saved,) = store.state()
    assert saved["kept"] is None
    other = UpdateStore(folder=tmp_path)
    other.restore(store.state())
    assert np.array_equal(other.entries[0].values, values)


def test_memory_is_used_up_to_the_limit_also_by_later_updates(monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 48)
    store = UpdateStore(5)
    for number in range(20):
        store.take(number, {"a": np.full(2, number, np.float32)})
        assert [entry.values[0] for entry in store.entries] == [*range(number + 1)][-5:]
    assert store._file is None
    store = UpdateStore(7)
    for number in range(40):
        store.take(number, {"a": np.full(2, number, np.float32)})
        assert [entry.values[0] for entry in store.entries] == [*range(number + 1)][-7:]
        assert sum(entry._place is None for entry in store.entries) >= min(number + 1, 5)


linux = pytest.mark.skipif(sys.platform != "linux", reason="counts files in /proc")


@linux
def test_of_a_killed_process_no_file_is_left(tmp_path):
    code = """
import os, signal, sys
import numpy as np
from pncs_flower.strategies.combinations import store as module
module.IN_MEMORY = 1000
store = module.UpdateStore()
for number in range(5):
    store.add("a", 1, np.full(250, number))
there = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
print(sum(sys.argv[1] in name for name in there), [e.values[0] for e in store.entries], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.replace("np.float32", "") == "1 [(0.0), (1.0), (2.0), (3.0), (4.0)]\n"
    assert not [*tmp_path.iterdir()]


@linux
def test_many_updates_are_not_as_many_open_files(place):
    store = UpdateStore(folder=place)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        store.add("a", number, np.full(3, number))
    total = weighted_sum(store.entries, np.ones(100))
    assert [*total] == [4950, 4950, 4950]
    if place is not None:  # there is nothing to restore from without a checkpoint
        other = UpdateStore(folder=place)
        other.restore(store.state())
        assert [*weighted_sum(other.entries, np.ones(100))] == [*total]
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_room_of_what_was_dropped_is_used_again(monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    store = UpdateStore(3)
    for number in range(20):
        store.add("ab"[number % 2], number, np.full(5, number))
        store.trim()
        if number == 9:
            store.forget("a")
        assert [entry.values[0] for entry in store.entries] == [e.round for e in store.entries]
    assert os.fstat(store._file.fileno()).st_size <= 4 * 5 * 4


def test_update_of_another_size_is_refused():
    store = UpdateStore()
    store.add("a", 1, np.ones(3))
    with pytest.raises(ValueError, match="an update of 4 values is not of the size of those"):
        store.add("a", 1, np.ones(4))
