"""Files are replaced whole or not at all."""

import os
from pathlib import Path

import pytest

from pncs_flower.files import PARTIAL, replacing, write_whole


def test_text_and_bytes_are_written(tmp_path: Path) -> None:
    write_whole(tmp_path / "text", "größer\n")
    write_whole(tmp_path / "bytes", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "größer\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "text"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_was_there_stays_if_writing_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    write_whole(path, "before")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half of wh")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert path.read_text() == "before"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", [None, "other"])
def test_error_names_the_file(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(OSError, match=name or str(tmp_path / "file")), replacing(tmp_path / "file"):
        raise OSError(28, "No space left on device", name)


def test_nothing_has_the_name_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as file:
        file.write(b"half")
        assert not path.exists()
        (partial,) = tmp_path.iterdir()
        assert partial.name == f"file.{os.getpid()}{PARTIAL}"
    assert path.read_text() == "half"


def test_an_absent_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "absent" / "file", "")
