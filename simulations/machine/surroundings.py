"""What Flower and Ray need of the environment: no proxy before it, short paths, free ports."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

__all__ = ["LONGEST", "free_ports", "short_folder", "without_proxy_here"]

LONGEST = 39
"""Bytes of a folder's path in which Ray can work: 68 more make its sockets', which may have 107."""

_HERE = ("127.0.0.1", "localhost", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def without_proxy_here(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which this machine's own addresses are reached directly.

    A proxy of another kind than Flower's HTTP library knows, for which it would not start at all,
    is left out.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name.lower() not in _PROXIES or _is_known(value)
    }
    hosts = [
        host.strip()
        for name in ("no_proxy", "NO_PROXY")
        for host in kept.get(name, "").split(",")
        if host.strip()
    ]
    # Of the two the one in small letters counts, where both are read.
    exempt = ",".join(dict.fromkeys([*hosts, *_HERE]))
    return {**kept, "no_proxy": exempt, "NO_PROXY": exempt}


def _is_known(proxy: str) -> bool:
    scheme, there, _ = proxy.partition("://")
    if scheme.lower() in ("socks5", "socks5h"):
        return find_spec("socksio") is not None
    return not there or scheme.lower() in ("http", "https")


def short_folder() -> Path:
    """Make a folder that is for this process alone and whose path is short enough for Ray."""
    given = os.environ.get("RAY_TMPDIR")
    tried = [*([given] if given else []), tempfile.gettempdir(), "/tmp", "/var/tmp"]
    for parent in dict.fromkeys(tried):
        # The prefix, eight letters and a slash come after it.
        if len(os.fsencode(parent)) + len("/pncs-12345678") <= LONGEST and _may_write(parent):
            return Path(tempfile.mkdtemp(prefix="pncs-", dir=parent))
    raise ValueError(
        f"no folder for Ray's sockets: of {', '.join(dict.fromkeys(tried))} none can be written to "
        f"and has at most {LONGEST - len('/pncs-12345678')} bytes: set RAY_TMPDIR to a short path"
    )


def _may_write(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as opened:
        # All at once, so that they differ.
        sockets = [
            opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [int(each.getsockname()[1]) for each in sockets]
