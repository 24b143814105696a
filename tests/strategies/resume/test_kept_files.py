"""The files of a store's updates, beside the checkpoints that refer to them."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from apps.storing_run import FORGOTTEN_AFTER, STORE, run, start, stored

from pncs_flower.strategies import PNCS, RoundRobin, SketchedMean, UniformSelection, kept_arrays
from pncs_flower.strategies.combinations.store import UpdateStore
from pncs_flower.strategies.kept_arrays import FOLDER, KeptArray
from pncs_flower.strategies.resume import checkpoint
from pncs_flower.strategies.resume.checkpoint import Checkpoint, CheckpointFolder
from pncs_flower.strategies.resume.snapshot import Decoder, Encoder

ROUNDS = 8


@pytest.fixture(scope="module")
def expected() -> str:
    return run(None, ROUNDS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    run(folder, ROUNDS - 1)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "run")


def manifest(path: Path) -> dict:
    found = CheckpointFolder(path.parent)._read(path).manifest
    return {key: {KeptArray(*kept).name for kept in found[key]} for key in found if "file" in key}


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / FOLDER).iterdir()}


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "cut off":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    else:
        data = bytearray(path.read_bytes())
        data[-3] ^= 4
        path.write_bytes(data)


DAMAGES = ["missing", "cut off", "empty", "another bit", "a folder"]


@pytest.mark.parametrize(
    ("kind", "combine", "options"),
    [
        (SketchedMean, STORE, {}),
        (SketchedMean, "sketched-mean:store=300B", {"candidates": 3}),
        (PNCS, "sketched-mean", {"queue_length": 2, "ride_along": True}),
        (RoundRobin, "fedvarp", {}),
        (UniformSelection, "surrogates:0.5,store=3,dtype=float16", {}),
        (RoundRobin, "mifa:store=4", {"weighted_by": "weight"}),
    ],
)
def test_stopping_after_each_round_and_going_on_changes_nothing(tmp_path, kind, combine, options):
    whole, expected = start(None, ROUNDS, kind, combine, **options)
    assert stored(whole)
    for rounds in range(1, ROUNDS + 1):
        resumed, found = start(tmp_path, rounds, kind, combine, **options)
        assert {entry.kept.name for entry in stored(resumed)} <= files(tmp_path)
    assert found == expected


def test_files_are_those_of_the_two_checkpoints_and_written_once(tmp_path):
    written: dict[str, int] = {}
    for rounds in range(1, ROUNDS):
        strategy, _ = start(tmp_path, rounds)
        newest, *before = [manifest(path)["files"] for path in reversed(checkpoints(tmp_path))]
        assert newest == {entry.kept.name for entry in stored(strategy)} != set()
        assert files(tmp_path) == newest.union(*before)
        for path in (tmp_path / FOLDER).iterdir():
            assert written.setdefault(path.name, path.stat().st_ino) == path.stat().st_ino


@pytest.mark.parametrize("how", DAMAGES)
def test_checkpoint_with_a_damaged_file_gives_way_to_the_one_before(folder, expected, caplog, how):
    before, newest = [manifest(path)["files"] for path in checkpoints(folder)]
    (name, *_) = newest - before
    damage(folder / FOLDER / name, how)
    assert run(folder, ROUNDS) == expected
    assert f"updates/{name} " in caplog.text
    assert "Going on from" in caplog.text


@pytest.mark.parametrize("how", DAMAGES)
def test_file_that_both_checkpoints_need_is_an_error_that_names_it(folder, how):
    before, newest = [manifest(path)["files"] for path in checkpoints(folder)]
    (name, *_) = newest & before
    damage(folder / FOLDER / name, how)
    there = files(folder)
    with pytest.raises(ValueError, match=rf"{name}.*Remove that folder to start from the first"):
        run(folder, ROUNDS)
    assert files(folder) == there  # for whoever can repair it


def test_damaged_newest_checkpoint_gives_way_to_the_one_before_and_its_files(folder, expected):
    before, newest = checkpoints(folder)
    needed = manifest(before)["files"]
    assert needed - manifest(newest)["files"]
    there = files(folder)
    newest.write_bytes(newest.read_bytes()[:-1])
    kept = CheckpointFolder(folder)
    assert {file.name for file in kept.load().files} == needed
    assert files(folder) >= needed
    only_newest = there - needed
    assert only_newest
    assert not only_newest & files(folder)
    assert run(folder, ROUNDS) == expected


def test_loading_twice_keeps_the_files_of_the_one_before(folder, expected):
    for _ in range(2):
        CheckpointFolder(folder).load()
    newest = checkpoints(folder)[1]
    newest.write_bytes(b"")
    assert run(folder, ROUNDS) == expected


def test_what_a_killed_run_wrote_of_a_round_is_removed_at_the_start(folder, expected):
    there = files(folder)
    left = [f"{'0123456789abcdef' * 2}.npy", f"{'0' * 32}.npy.4711.partial"]
    others = ["mine.npy", "notes.partial"]
    for name in [*left, *others]:
        (folder / FOLDER / name).write_bytes(b"half")
    assert run(folder, ROUNDS - 1)  # nothing is left to do
    assert files(folder) == there | {*others}
    assert run(folder, ROUNDS) == expected


def test_files_of_a_run_that_never_came_to_a_checkpoint_are_removed(tmp_path, expected):
    store = UpdateStore(folder=tmp_path / FOLDER)
    store.add("a", 1, np.ones(4))
    assert files(tmp_path)
    assert CheckpointFolder(tmp_path).load() is None
    assert not files(tmp_path)
    assert run(tmp_path, ROUNDS) == expected


def test_what_is_forgotten_is_in_no_file_after_two_rounds(tmp_path):
    strategy, _ = start(tmp_path, FORGOTTEN_AFTER - 1)
    client = strategy.history[-1].delivered[0]
    gone = {e.kept.name for e in stored(strategy) if e.client == client}
    assert gone <= files(tmp_path)
    for rounds, there in ((FORGOTTEN_AFTER, True), (FORGOTTEN_AFTER + 1, False)):
        run(tmp_path, rounds)
        assert (gone <= files(tmp_path)) is there
    assert gone
    assert not gone & files(tmp_path)


def test_full_disk_puts_the_updates_into_the_checkpoint(tmp_path, monkeypatch, expected):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(kept_arrays, "write_whole", full)
        strategy, _ = start(tmp_path, 2)
    assert not files(tmp_path)
    assert "kept in memory and in no file: [Errno 28]" in strategy.history[0].notes[0]
    assert run(tmp_path, ROUNDS) == expected


def test_full_disk_in_a_checkpoint_keeps_the_files_of_those_before(tmp_path, monkeypatch, expected):
    run(tmp_path, 2)
    needed = [manifest(path)["files"] for path in checkpoints(tmp_path)]

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", full)
        run(tmp_path, 6)
    assert [path.name for path in checkpoints(tmp_path)][1] == "round-00000002.checkpoint"
    assert [manifest(path)["files"] for path in checkpoints(tmp_path)] == needed
    assert files(tmp_path) >= set().union(*needed)
    assert run(tmp_path, ROUNDS) == expected


def test_second_run_in_the_folder_is_refused_and_removes_nothing(folder):
    (folder / FOLDER / f"{'0' * 32}.npy").write_bytes(b"of the round that the first is in")
    there = files(folder)
    with (
        CheckpointFolder(folder).held(),
        pytest.raises(ValueError, match="another process still writes"),
    ):
        run(folder, ROUNDS)
    assert files(folder) == there


def test_a_file_that_cannot_be_removed_costs_nothing(tmp_path, monkeypatch, expected):
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        if path.suffix == ".npy":
            raise PermissionError(13, "is mapped", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert run(tmp_path, ROUNDS) == expected
    assert len(files(tmp_path)) > 7
    CheckpointFolder(tmp_path).load()
    assert len(files(tmp_path)) <= 7


def test_state_names_its_files_once_each_and_reads_them_back(tmp_path):
    kept = KeptArray("0" * 32)
    encoder = Encoder()
    node = encoder.encode({"store": [kept, kept, KeptArray("1" * 32)]}, "state")
    assert encoder.files == {KeptArray("0" * 32), KeptArray("1" * 32)}
    assert not encoder.arrays
    found = Decoder({}).decode(node)
    assert found == {"store": [kept, kept, KeptArray("1" * 32)]}
    assert type(found["store"][0]) is KeptArray


def test_pickle_in_a_file_with_the_right_checksum_is_not_read(tmp_path):
    content = tmp_path / "made.npy"
    np.save(content, np.array([{}], object), allow_pickle=True)
    checksum = kept_arrays._blake2b(content.read_bytes()).hexdigest()
    content.rename(tmp_path / f"{checksum}.npy")
    KeptArray(checksum).check(tmp_path)
    with pytest.raises(ValueError, match=r"[Oo]bject|pickle"):
        KeptArray(checksum).map(tmp_path)


def test_a_checkpoint_without_files_makes_no_folder(tmp_path):
    CheckpointFolder(tmp_path).save(1, Checkpoint({}, {}, []))
    assert not (tmp_path / FOLDER).exists()
