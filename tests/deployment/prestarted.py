"""Client app processes that need not import Flower first: forks of one that has.

Flower starts a process for each message, and importing Flower is nearly all that it does: some two
seconds of a core, times three clients, times each exchange. The program `flwr-clientapp` in the
folder made here asks a server for a fork that goes on as the real one. All else is as it was: a
process for each message, with its own environment and memory, that ends with it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["prestarted"]

_REQUEST = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    request = {{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)}}
    connection.sendall(json.dumps(request).encode())
"""


@contextlib.contextmanager
def prestarted(folder: Path) -> Iterator[Path]:
    """Start the server; yield the folder of the program, which goes first on the path."""
    folder.mkdir(parents=True)
    address = folder / "socket"
    program = folder / "flwr-clientapp"
    program.write_text(_REQUEST.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, str(address)],
        # Threads do not survive a fork.
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield folder
    finally:
        server.terminate()
        server.wait(10)
        server.stdout.close()


def _serve(address: str) -> None:
    import flwr.clientapp  # noqa: F401  (what apps import)
    from flwr.supernode.cli import flwr_clientapp

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(100)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                request = json.loads(stream.read())
            if os.fork() == 0:
                listener.close()
                _become(request, flwr_clientapp)


def _become(request: dict, main) -> None:
    """Go on as the process that was asked for."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        sys.argv = request["argv"]
        # This folder is where the server was started from; the real program has no such entry.
        sys.path[0] = str(Path(sys.executable).parent)
        main()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
