"""Downloads are checked before they are kept; from a server on loopback, not from the internet."""

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.cli import data as data_commands
from pncs_flower.simulations.data.download import SOURCES, Source, download

CONTENT = b"some examples" * 1000


class Quiet(SimpleHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *arguments: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "x.gz").write_bytes(CONTENT)
    Quiet.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def source(content: bytes = CONTENT) -> Source:
    return Source("http://127.0.0.1:1/", {"x.gz": hashlib.md5(content).hexdigest()}, "A/raw")


def test_a_file_is_fetched_once_and_again_if_it_is_damaged(server: str, tmp_path: Path) -> None:
    def fetch() -> bytes:
        download(source(), tmp_path / "data", lambda name, size: None, server)
        return (tmp_path / "data" / "A" / "raw" / "x.gz").read_bytes()

    assert fetch() == CONTENT == fetch()
    assert Quiet.asked == ["/x.gz"]
    (tmp_path / "data" / "A" / "raw" / "x.gz").write_bytes(CONTENT[:-1])
    assert fetch() == CONTENT
    assert len(Quiet.asked) == 2


def test_a_file_that_is_not_the_published_one_is_not_kept(server: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has MD5 .*, but the published file has"):
        download(source(b"other"), tmp_path / "data", lambda name, size: None, server)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_without_a_network_it_says_what_else_can_be_done(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot be fetched .*a mirror with --from"):
        download(source(), tmp_path, lambda name, size: None)


def test_the_command_takes_a_mirror_and_says_how_to_use_what_it_got(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data_commands.SOURCES, "cifar10", source())
    command = ["data", "get", "cifar10", "--from", server, "--data-dir", str(tmp_path / "data")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"--data-dir {tmp_path / 'data'}" in done.output.replace("\n", "")


def test_sources_are_those_that_torchvision_knows() -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    cifar, fashion = SOURCES["cifar10"], SOURCES["fashion-mnist"]
    assert {cifar.address + name: md5 for name, md5 in cifar.files.items()} == {
        datasets.CIFAR10.url: datasets.CIFAR10.tgz_md5
    }
    assert fashion.files == dict(datasets.FashionMNIST.resources)
