"""What clients of a simulation keep: in memory up to a bound, on disk beyond, until decided."""

import gc
import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from apps import numpy_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod, stored, summary_mod
from pncs_flower.clients.kept import drop_kept, keep, take_kept, ticket_of
from pncs_flower.clients.stored import StoredArray
from pncs_flower.protocol import MARKER
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientMemory

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have everything that is kept be on disk, in this folder."""
    monkeypatch.setattr(stored, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def update() -> RecordDict:
    arrays = ArrayRecord(
        {"w": Array(VALUES), "counter": Array(np.array(7)), "none": Array(VALUES[:0])}
    )
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"a": 1})})


def file_of(record: ArrayRecord) -> str:
    """Return what the system says of the file that a stored record is in."""
    (descriptor,) = {array.file.descriptor for array in record.values()}
    return os.readlink(f"/proc/self/fd/{descriptor}")


def kept_of(state: RecordDict) -> ArrayRecord:
    return state.array_records["pncs-kept/arrays"]


def test_what_is_kept_on_disk_has_no_name_and_comes_back_as_it_was(no_memory: Path) -> None:
    state = RecordDict()
    keep(state, "t", update(), 3)
    where = file_of(kept_of(state))
    assert where.startswith(str(no_memory))
    assert where.endswith(" (deleted)")
    assert list(no_memory.iterdir()) == []  # so nothing is left, however the process ends
    assert ticket_of(state) == "t"
    assert take_kept(state, "t") == update()
    assert dict(state) == {}
    before = len(os.listdir("/proc/self/fd"))
    keep(state, "t", update(), 3)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    drop_kept(state)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_on_disk_is_in_memory_no_more(no_memory: Path) -> None:
    """At once, and not when the garbage is collected: a round makes many updates until then."""
    given, state = update(), RecordDict()
    array = weakref.ref(given["arrays"]["w"])
    gc.disable()
    try:
        keep(state, "t", given, 3)
        del given
        assert array() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("num_clients", "on_disk"), [(1, False), (2, False), (3, True)])
def test_a_client_has_its_share_of_memory(
    monkeypatch: pytest.MonkeyPatch, num_clients: int, on_disk: bool
) -> None:
    size = sum(len(array.data) for array in update().array_records["arrays"].values())
    monkeypatch.setattr(stored, "IN_MEMORY", 2 * size)
    state = RecordDict()
    keep(state, "t", update(), num_clients)
    kinds = {isinstance(array, StoredArray) for array in kept_of(state).values()}
    assert kinds == {on_disk}


def test_where_files_have_names_it_stays_in_memory(
    no_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")  # as on Windows and macOS
    state = RecordDict()
    keep(state, "t", update(), 3)
    assert {type(array) for array in kept_of(state).values()} == {Array}


def test_clients_beyond_half_of_the_open_files_keep_theirs_in_memory(
    no_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others of the process, such as a checkpoint's, still find room."""
    gc.collect()  # or files of other tests are closed meanwhile
    room = len(os.listdir("/proc/self/fd")) + 2
    monkeypatch.setattr(stored, "allow_many_files", lambda: 2 * room)
    states = [RecordDict() for _ in range(room)]
    for state in states:
        keep(state, "t", update(), 3)
    kinds = [type(kept_of(state)["w"]) for state in states]
    assert kinds[0] is StoredArray
    assert kinds[-1] is Array
    assert len(os.listdir("/proc/self/fd")) <= room + 2
    assert all(take_kept(state, "t") == update() for state in states)


def test_a_state_goes_to_another_process_and_back_as_with_ray(no_memory: Path) -> None:
    """Its arrays in one file, which nobody reads but to send it on."""
    state = RecordDict()
    keep(state, "t", update(), 3)
    for _ in range(2):
        state = pickle.loads(pickle.dumps(state))
        assert file_of(kept_of(state)).startswith(str(no_memory))
    delivered = pickle.loads(pickle.dumps(take_kept(state, "t")))
    assert delivered == update()
    assert {type(array) for array in delivered.array_records["arrays"].values()} == {Array}


def test_a_state_is_written_as_flower_does_in_a_deployment(no_memory: Path) -> None:
    state = RecordDict()
    keep(state, "t", update(), 3)
    array = kept_of(state)["w"]
    again = context_from_proto(context_to_proto(Context(1, 2, {}, state, {})))
    assert take_kept(again.state, "t") == update()
    keep(state, "t", update(), 3)
    array = kept_of(state)["w"]
    assert Array.inflate(array.deflate(), array.children) == Array(VALUES)


def test_without_room_on_disk_it_is_in_memory(
    no_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        if not os.readlink(f"/proc/self/fd/{arguments[0]}").startswith("/memfd"):
            raise OSError(28, "No space left on device")
        return write(*arguments)  # type: ignore[arg-type]

    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    state = RecordDict()
    keep(state, "t", update(), 3)
    assert file_of(kept_of(state)).startswith("/memfd")
    assert take_kept(state, "t") == update()


class Watching(InProcessGrid):
    """Notes how many clients keep an update at each exchange, and where."""

    def __init__(self, *arguments: object, **options: int) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.keeping: list[tuple[str, int]] = []
        self.places: set[str] = set()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        states = [context.state for context in self.contexts.values()]
        kept = [kept_of(state) for state in states if ticket_of(state)]
        marker = messages[-1].content.get(MARKER) if messages else None
        phase = str(marker["phase"]) if isinstance(marker, ConfigRecord) else "evaluate"
        self.keeping.append((phase, len(kept)))
        self.places |= {
            file_of(record) if isinstance(record["body.bias"], StoredArray) else "here"
            for record in kept
        }
        return replies


def run(kind=PNCS, mod=summary_mod, workers=1, **options):
    app = numpy_app.make_app(mod)
    with Watching(app, 6, workers=workers) as grid:
        strategy = kind(FedAvg(), num_selected=2, seed=3, **options)
        result = strategy.start(grid, numpy_app.initial_arrays(), num_rounds=4)
    return [record.chosen for record in strategy.history], result.arrays, grid


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mod", [summary_mod, SummaryMod(restore_state=True)])
def test_bits_are_the_same_on_disk(no_memory: Path, workers: int, mod: SummaryMod) -> None:
    chosen, arrays, grid = run(mod=mod, workers=workers)
    assert grid.places
    assert all(place.startswith(str(no_memory)) for place in grid.places)
    stored.IN_MEMORY = 1 << 30  # as before, when the test is over
    again, same, in_memory = run(mod=mod, workers=workers)
    assert not any(place.startswith(str(no_memory)) for place in in_memory.places)
    assert chosen == again
    assert arrays == same


@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_dropped_when_the_chosen_have_delivered(workers: int) -> None:
    """Also by clients that are not asked again for long."""
    _, _, grid = run(GradientMemory, candidates=4, ride_along=False, workers=workers)
    assert [phase for phase, _ in grid.keeping[1:4]] == ["summarize", "train", "evaluate"]
    for phase, keeping in grid.keeping[1:]:
        assert keeping in {"summarize": {4}, "train": {2, 3, 4}, "evaluate": {0}}[phase]


def test_a_supernode_which_has_one_client_keeps_it_in_memory(
    no_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the node config says how many clients there are."""
    monkeypatch.setattr(stored, "IN_MEMORY", 2000)  # room for one
    assert "here" not in run()[2].places
    monkeypatch.delitem(sys.modules, InProcessGrid.__module__)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert run()[2].places == {"here"}


def test_it_is_there_for_all_that_are_chosen_if_they_are_asked_one_by_one() -> None:
    class OneByOne(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return [r for m in messages for r in super(OneByOne, self).send_and_receive([m])]

    grid = OneByOne(numpy_app.make_app(summary_mod), 6)
    strategy = PNCS(FedAvg(), num_selected=3, seed=3)
    strategy.start(grid, numpy_app.initial_arrays(), num_rounds=3)
    assert not any("lost" in note for record in strategy.history for note in record.notes)
    assert sum(map(numpy_app.times_trained, grid.contexts.values())) == sum(
        len(record.asked) for record in strategy.history
    )
