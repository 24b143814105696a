"""Downloads are checked before they are kept; from a server on loopback, not from the internet."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pncs_flower.simulations.cli import app
from pncs_flower.simulations.data import download as downloads
from pncs_flower.simulations.data.datasets import DATASETS
from pncs_flower.simulations.data.download import download
from pncs_flower.simulations.data.examples import Dataset

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


def source(content: bytes = CONTENT) -> Dataset:
    """Return a data set of one file, published where nobody listens."""

    def published(mirror: str) -> tuple[str, list[tuple[str, str]]]:
        address = mirror or "http://127.0.0.1:1/"
        return "A/raw", [(f"{address}x.gz", hashlib.md5(content).hexdigest())]

    return replace(DATASETS["cifar10"], download=published)


def test_a_file_is_fetched_once_and_again_if_it_is_damaged(server: str, tmp_path: Path) -> None:
    def fetch() -> bytes:
        download(source(), tmp_path / "data", lambda name, size: None, server)
        return (tmp_path / "data" / "A" / "raw" / "x.gz").read_bytes()

    assert fetch() == CONTENT
    once = len(Quiet.asked)  # torchvision asks twice: also where the address leads
    assert fetch() == CONTENT
    assert len(Quiet.asked) == once
    (tmp_path / "data" / "A" / "raw" / "x.gz").write_bytes(CONTENT[:-1])
    assert fetch() == CONTENT
    assert len(Quiet.asked) == 2 * once


def test_a_file_that_is_not_the_published_one_is_not_kept(server: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another MD5 than the published file"):
        download(source(b"other"), tmp_path / "data", lambda name, size: None, server)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_without_a_network_it_says_what_else_can_be_done(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot be fetched .*a mirror with --from"):
        download(source(), tmp_path, lambda name, size: None)


HEAD = b"HTTP/1.1 200 OK\r\n"
BROKEN = {
    "IncompleteRead": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    "TimeoutError": HEAD + b"Content-Length: 30\r\n\r\nab",
    "BadStatusLine": b"nonsense\r\n\r\n",
    "RemoteDisconnected": b"",
    "Not Found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_site_that_breaks_off_is_named_with_the_reason(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "DOWNLOAD_ANSWERS", 0.5)
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError):  # until nobody listens any more
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(BROKEN[reason])
                        if reason == "TimeoutError":
                            done.wait(2)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with pytest.raises(OSError, match=rf"{address}/x.gz cannot be fetched \({reason}\)"):
                download(source(), tmp_path / "data", lambda name, size: None, address)
        finally:
            done.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_the_command_takes_a_mirror_and_says_how_to_use_what_it_got(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "cifar10", source())
    command = ["data", "get", "cifar10", "--from", server, "--data-dir", str(tmp_path / "data")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"--data-dir {tmp_path / 'data'}" in done.output.replace("\n", "")


def test_each_site_is_the_one_that_torchvision_knows_and_a_mirror_takes_its_place() -> None:
    for name, files in (("cifar10", 1), ("fashion-mnist", 4)):
        download = DATASETS[name].download
        assert download is not None
        (_, usual), (_, mirrored) = download(""), download("http://mirror/")
        assert len(usual) == len(mirrored) == files
        assert [f"http://mirror/{url.rpartition('/')[2]}" for url, _ in usual] == [
            url for url, _ in mirrored
        ]
        assert [md5 for _, md5 in usual] == [md5 for _, md5 in mirrored]
