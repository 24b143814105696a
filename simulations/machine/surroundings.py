"""What Flower and Ray need here: their programs, a cluster, no proxy, short paths, free ports."""

import os
import re
import shlex
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ..timeouts import CLUSTER_ANSWERS
from .scratch import scratch_folder

LONGEST = 39
"""Bytes of a folder's path in which Ray can work: 68 more make its sockets', which may have 107."""

OF_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",  # its report wants the network
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its warning is about machines with GPUs
    # What its processes call themselves is not to be written over their environment, by which a
    # watchdog knows them.
    "SPT_NOENV": "1",
}
"""Environment variables for whatever starts Ray."""

_HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_HERE = ("127.0.0.1", "localhost", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def cluster_address() -> str | None:
    """Return ``RAY_ADDRESS`` if it answers, or None if Ray is to be started here."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        return None
    if address == "auto":
        return address  # Ray looks for one on this machine
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        raise ValueError(
            f"RAY_ADDRESS = {address} is no address of a cluster: give HOST:PORT, such as "
            "127.0.0.1:6379, or unset RAY_ADDRESS to compute on this machine"
        )
    try:  # Ray itself would try for minutes
        host = found["host"].strip("[]")
        with socket.create_connection((host, int(found["port"])), timeout=CLUSTER_ANSWERS):
            return address
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"RAY_ADDRESS = {address} does not answer ({error}): start the cluster, or unset "
            "RAY_ADDRESS to compute on this machine"
        ) from None


def without_proxy_here(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which this machine's own addresses are reached directly."""
    kept = {
        name: value
        for name, value in environment.items()
        if name.lower() not in _PROXIES or _is_known(value)
    }
    # Of the two the one in small letters counts, where both are read.
    hosts = (kept.get("no_proxy"), kept.get("NO_PROXY"), *_HERE)
    exempt = ",".join(filter(None, hosts))
    return {**kept, "no_proxy": exempt, "NO_PROXY": exempt}


def _is_known(proxy: str) -> bool:
    """Tell whether Flower's HTTP library knows this kind of proxy; else it would not start."""
    scheme, there, _ = proxy.partition("://")
    if scheme.lower() in ("socks5", "socks5h"):
        return find_spec("socksio") is not None
    return not there or scheme.lower() in ("http", "https")


def search_path() -> str:
    """Return where programs are looked for: first among those of this Python."""
    scripts = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    return os.pathsep.join(dict.fromkeys((*scripts, os.environ.get("PATH", ""))))


def find_programs(names: Iterable[str], path: str, instead: str = "") -> None:
    """Refuse to go on where a program of Flower's is nowhere on a path; say how to have it."""
    for name in names:
        if shutil.which(name, path=path) is None:
            python = Path(sys.executable)
            again = ("-m", "pip", "install", "--force-reinstall", "--no-deps")
            command = shlex.join([str(python), *again, f"flwr=={version('flwr')}"])
            raise FileNotFoundError(
                f"Flower's program {name} is neither in {python.parent} nor on the PATH. "
                f"Install it there: {command}{f'. Or {instead}' if instead else ''}"
            )


@contextmanager
def short_folder() -> Iterator[Path]:
    """Have a folder that is for this process alone and whose path is short enough for Ray."""
    room = LONGEST - len("/pncs-12345678")
    tried = [os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), "/tmp", "/var/tmp"]
    parents = list(dict.fromkeys(filter(None, tried)))
    with ExitStack() as stack:
        for parent in parents:
            if len(os.fsencode(parent)) <= room:
                with suppress(OSError):
                    folder = stack.enter_context(scratch_folder(parent=parent))
                    break
        else:
            raise ValueError(
                f"no folder for Ray's sockets: of {', '.join(parents)} none can be written to and "
                f"has at most {room} bytes: set RAY_TMPDIR to a short path"
            )
        yield folder


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    with ExitStack() as opened:
        # All at once, so that they differ.
        servers = (socket.create_server(("127.0.0.1", 0)) for _ in range(count))
        return [int(opened.enter_context(each).getsockname()[1]) for each in servers]
