"""Proxies and long paths of a batch system's environment do not come between a run and itself."""

import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import getproxies_environment, proxy_bypass_environment

import pytest

from pncs_flower.simulations.machine.surroundings import (
    LONGEST,
    cluster_address,
    short_folder,
    without_proxy_here,
)
from pncs_flower.simulations.run import flower as flower_run

PROXIES = ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
SOCKETS = "/ray/session_2026-11-29_00-29-45_123456_4194304/sockets/plasma_store"


@pytest.mark.parametrize("exempt", [{}, {"no_proxy": "a.org"}, {"NO_PROXY": "a.org, 127.0.0.1"}])
@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "proxy.org:3128", "socks5://[::1]:9"])
def test_this_machine_is_reached_without_a_proxy(
    proxy: str, name: str, exempt: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in (*PROXIES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(other, raising=False)
    for key, value in without_proxy_here({name: proxy, **exempt}).items():
        monkeypatch.setenv(key, value)
    known = getproxies_environment()
    hosts = ["127.0.0.1:9091", "localhost", "a.org"] if exempt else ["127.0.0.1", "localhost:80"]
    assert all(proxy_bypass_environment(host, known) for host in hosts)
    assert not proxy_bypass_environment("elsewhere.org", known)
    httpx = pytest.importorskip("httpx")
    httpx.Client().close()  # as Flower makes one: it must not raise


@pytest.mark.parametrize("name", PROXIES)
def test_proxy_stays_for_other_hosts(name: str) -> None:
    assert without_proxy_here({name: "http://proxy.org:3128"})[name] == "http://proxy.org:3128"


@pytest.mark.parametrize("proxy", ["socks4://a.org:1", "ftp://a.org"])
def test_proxy_that_would_keep_flower_from_starting_is_left_out(proxy: str) -> None:
    assert "ALL_PROXY" not in without_proxy_here({"ALL_PROXY": proxy})


def test_flower_is_started_without_a_proxy_to_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    environment = flower_run._prepare(tmp_path, False)["env"]
    assert "127.0.0.1" in environment["no_proxy"].split(",")


@pytest.mark.skipif(os.name != "posix", reason="where sockets have paths")
@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_folder_for_sockets_is_short_though_that_for_temporary_files_is_long(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv(variable, str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with short_folder() as folder:
        assert len(os.fsencode(folder)) <= LONGEST
        assert len(f"{folder}{SOCKETS}") <= 107
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_short_folder_that_is_given_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        monkeypatch.setenv("RAY_TMPDIR", parent)
        with short_folder() as folder:
            assert folder.parent == Path(parent)


def test_no_short_folder_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "absent"))

    def refused(prefix: str, dir: str) -> str:
        raise PermissionError(dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refused)
    told = r"no folder for Ray's sockets: .*set RAY_TMPDIR to a short"
    with pytest.raises(ValueError, match=told), short_folder():
        pass


def test_log_that_an_error_names_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower names its own, in a folder that is removed; what it says is put into the run's."""

    def start(flower: dict[str, Any], *_: object) -> None:
        log = flower["cwd"].parent / "local-superlink" / "superlink.log"
        log.parent.mkdir()
        log.write_text("the cause", encoding="utf-8")
        raise flower_run.RunFailedError(f"flwr run failed. See logs at {log}.")

    monkeypatch.setattr(flower_run, "_start", start)
    monkeypatch.setattr(flower_run, "stop_descendants", lambda **_: None)
    with pytest.raises(flower_run.RunFailedError) as failed:
        flower_run.run_in_flower(None, 1, None, tmp_path, lambda: None)  # type: ignore[arg-type]
    named = Path(str(failed.value).rpartition("at ")[2].rstrip("."))
    assert "the cause" in named.read_text(encoding="utf-8")


def test_nothing_is_left_where_the_log_cannot_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(flower_run, "_start", lambda flower, *_: started.append(flower["cwd"]))
    monkeypatch.setattr(flower_run, "_wait", lambda *_: None)
    monkeypatch.setattr(flower_run, "stop_descendants", lambda **_: None)
    monkeypatch.setattr(flower_run, "_complete", full)
    with pytest.raises(OSError, match="No space left"):
        flower_run.run_in_flower(None, 1, None, tmp_path, lambda: None)  # type: ignore[arg-type]
    assert not started[0].parent.exists()


@pytest.mark.parametrize("address", ["", "local"])
def test_no_address_of_a_cluster_is_this_machine(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert cluster_address() is None


@pytest.mark.parametrize("address", ["nonsense", ":x", ":6379", "127.0.0.1", "host:123456", " "])
def test_what_is_no_address_of_a_cluster_is_named_with_the_remedy(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=f"RAY_ADDRESS = {address} is no address .* unset"):
        cluster_address()
