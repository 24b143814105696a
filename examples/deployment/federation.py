"""A SuperLink and SuperNodes as processes on this machine, which are all stopped in the end."""

import contextlib
import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psutil
from credentials import Credentials

from pncs_flower.plain_text import without_colours
from pncs_flower.simulations.machine.processes import descendants
from pncs_flower.simulations.machine.surroundings import find_programs, free_ports, search_path
from pncs_flower.simulations.machine.watchdog import is_alive, stop

__all__ = ["CONNECTION", "Federation", "FederationError", "Isolation", "Run", "Scalar"]

Isolation = Literal["subprocess", "process"]
Scalar = bool | int | float | str

CONNECTION = "deployment"
"""Name of the SuperLink in Flower's config file."""

_POLL = 0.2
_GRACE = 5.0


class FederationError(RuntimeError):
    """A part of the federation did not do what it must; says which, and the end of its log."""


@dataclass
class Run:
    """A run that was handed to the SuperLink.

    Attributes
    ----------
    id : str
        Flower's id of the run.
    stream : subprocess.Popen
        Copies the run's log until the run ends.
    log : Path
        Where it copies it to.
    """

    id: str
    stream: "subprocess.Popen[bytes]"
    log: Path


class Federation:
    """One SuperLink and any number of SuperNodes, with homes, ports and folders of their own.

    Use it as a context manager: all that was started is stopped when the block is left.

    Parameters
    ----------
    folder : Path
        An empty folder for all that Flower writes; logs are in ``folder / "logs"``.
    credentials : Credentials, optional (default: None)
        Certificates for TLS; connections are not encrypted if None.
    authentication : bool (default: False)
        Accept SuperNodes with a registered key only. Needs credentials.
    isolation : {"subprocess", "process"} (default: "subprocess")
        Whether SuperLink and SuperNodes start what runs the apps, or it is started beside them, as
        one would in another container.
    programs : Path, optional (default: None)
        Folder of the programs of SuperNodes (``flower-supernode``), if not this environment's.
    environment : mapping of str to str, optional (default: None)
        Environment variables of all processes, besides those of this one.

    Raises
    ------
    ValueError
        If authentication is asked for without credentials.
    FileNotFoundError
        If one of Flower's programs is not installed.
    FederationError
        If the SuperLink does not start.
    """

    def __init__(
        self,
        folder: Path,
        *,
        credentials: Credentials | None = None,
        authentication: bool = False,
        isolation: Isolation = "subprocess",
        programs: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if authentication and credentials is None:
            raise ValueError("authentication is True without credentials: it needs TLS")
        self.folder = folder
        self._credentials = credentials
        self._authentication = authentication
        self._isolation = isolation
        self._programs = programs
        self._environment = dict(environment or {})
        self._started: list[subprocess.Popen[bytes]] = []
        self._log_of: dict[int, Path] = {}
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        for name in ("work", "logs", "home"):
            (folder / name).mkdir(parents=True)
        trust = "insecure = true"
        if credentials is not None:
            trust = f'root-certificates = "{credentials.authority}"'
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n'
            f'[superlink.{CONNECTION}]\naddress = "{self.address}"\n{trust}\n',
            encoding="utf-8",
        )
        try:
            self.superlink = self._start_superlink(port)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        """Return the federation."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop everything."""
        self.stop()

    def start_supernode(
        self, name: str, node_config: Mapping[str, Scalar], key: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a SuperNode; `wait_for` waits until it is connected.

        Parameters
        ----------
        name : str
            For its log and its home.
        node_config : mapping of str to scalar
            What its clients read from ``context.node_config``.
        key : Path, optional (default: None)
            Its private key, where SuperNodes are authenticated.

        Returns
        -------
        subprocess.Popen
            The process of the SuperNode itself.
        """
        (port,) = free_ports(1)
        command = ["flower-supernode", "--superlink", self.address, "--port", str(port)]
        if self._credentials is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(self._credentials.authority)]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key)]
        settings = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
        command += ["--isolation", self._isolation, "--node-config", settings]
        node = self._start(name, command)
        if self._isolation == "process":
            executor = ["flower-superexec", "--insecure", "--runtime-api-address"]
            self._start(f"{name}-superexec", [*executor, f"127.0.0.1:{port}"], home=name)
        return node

    def wait_for(self, nodes: Sequence["subprocess.Popen[bytes]"], timeout: float = 240.0) -> None:
        """Wait until SuperNodes are connected.

        Raises
        ------
        FederationError
            If one of them ends, or is not connected in time.
        """
        deadline = time.monotonic() + timeout
        for node in nodes:
            while "SuperNode ID:" not in self._log_of[node.pid].read_text(encoding="utf-8"):
                if node.poll() is not None or time.monotonic() > deadline:
                    raise self._failure(node, f"is not connected after {timeout:g} s")
                time.sleep(_POLL)

    def register(self, public_key: Path) -> None:
        """Let the SuperNode with this key take part."""
        self._flwr("supernode", "register", str(public_key), CONNECTION)

    def submit(self, app: Path, run_config: Mapping[str, Scalar] | None = None) -> Run:
        """Hand an app to the SuperLink, as `flwr run` does.

        Raises
        ------
        FederationError
            If it is not accepted.
        """
        settings = self.folder / "work" / f"run-{time.monotonic_ns()}.toml"
        lines = (f"{name} = {json.dumps(value)}" for name, value in (run_config or {}).items())
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        answer = self._flwr("run", str(app), CONNECTION, "--run-config", str(settings))
        run_id = str(answer["run-id"])
        log = self.folder / "logs" / f"run-{run_id}.log"
        stream = self._start(log.stem, ["flwr", "log", run_id, CONNECTION, "--stream"], home="home")
        return Run(run_id, stream, log)

    def wait(self, run: Run, timeout: float = 600.0) -> tuple[str, str]:
        """Wait until a run ends, and return its status and the details of it.

        Returns
        -------
        tuple of str
            Such as ``("finished:completed", "")``. The exit code of `flwr run` does not tell.

        Raises
        ------
        FederationError
            If the run does not end in time.
        """
        deadline = time.monotonic() + timeout
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.stream.wait(timeout)
        while True:
            status, details = self.status(run)
            if status.startswith("finished"):
                return status, details
            if time.monotonic() > deadline:
                raise FederationError(
                    f"run {run.id} is {status} after {timeout:g} s:\n{_tail(run.log)}"
                )
            time.sleep(1)

    def status(self, run: Run) -> tuple[str, str]:
        """Return the status of a run and its details now."""
        answer = self._flwr("list", CONNECTION, "--run-id", run.id)
        row = answer["runs"][0]
        details = without_colours(str(row.get("status-details") or ""))
        return str(row["status"]), "" if details == "N/A" else details

    def server_app(self) -> list[int]:
        """Return the process ids of the server apps that are running; Linux only."""
        return [
            process.pid
            for process in descendants(self.superlink.pid)
            if b"flwr-serverapp" in _command_line(process.pid)
        ]

    def log(self, process: "subprocess.Popen[bytes]") -> str:
        """Return what a process that this federation has started has written."""
        return _plain(self._log_of[process.pid])

    def stop(self) -> None:
        """Stop everything that was started and what that has started, asking first."""
        found: dict[psutil.Process, bool] = {}  # in order: SuperLink is what the others reach for

        def alive() -> list[psutil.Process]:
            roots = [process.pid for process in self._started if process.poll() is None]
            with contextlib.suppress(psutil.NoSuchProcess):
                found.update((psutil.Process(pid), True) for pid in roots)
            for process in list(found):
                found.update(dict.fromkeys(descendants(process.pid), True))
            # One that has ended may wait in vain for a parent, or its heir, to take note of it.
            return [process for process in found if is_alive(process)]

        left = stop(alive, _GRACE)
        psutil.wait_procs(found, timeout=0)
        self._started.clear()
        if left:
            raise FederationError(f"processes {left} cannot be stopped: kill them yourself")

    def _start_superlink(self, port: int) -> "subprocess.Popen[bytes]":
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port)]
        executor = ["flower-superexec", "--runtime-api-address", self.address]
        scheme, context = "http", None
        if self._credentials is None:
            command.append("--insecure")
            executor.append("--insecure")
        else:
            scheme = "https"
            context = ssl.create_default_context(cafile=str(self._credentials.authority))
            command += ["--ssl-ca-certfile", str(self._credentials.authority)]
            command += ["--ssl-certfile", str(self._credentials.certificate)]
            command += ["--ssl-keyfile", str(self._credentials.key)]
            executor += ["--root-certificates", str(self._credentials.authority)]
        if self._authentication:
            command.append("--enable-supernode-auth")
        superlink = self._start("superlink", [*command, "--isolation", self._isolation])
        deadline = time.monotonic() + 240
        while True:
            try:
                url = f"{scheme}://{self.address}/health"
                urllib.request.urlopen(url, timeout=5, context=context).close()
                break
            except (urllib.error.URLError, OSError):
                if superlink.poll() is not None or time.monotonic() > deadline:
                    raise self._failure(superlink, "does not answer") from None
                time.sleep(_POLL)
        if self._isolation == "process":
            self._start("superlink-superexec", executor, home="superlink")
        return superlink

    def _start(
        self, name: str, command: list[str], home: str | None = None
    ) -> "subprocess.Popen[bytes]":
        log = self.folder / "logs" / f"{name}.log"
        own = self._env(home or name, self._programs if "supernode" in command[0] else None)
        find_programs(command[:1], own["PATH"])
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder / "work",
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        self._log_of[process.pid] = log
        return process

    def _env(self, home: str, programs: Path | None = None) -> dict[str, str]:
        path = search_path() if programs is None else f"{programs}{os.pathsep}{search_path()}"
        return {
            **os.environ,
            "PATH": path,
            # Processes that unpack the same app into one folder would be in each other's way.
            "FLWR_HOME": str(self.folder / ("home" if home == "home" else f"home-{home}")),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            **self._environment,
        }

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            cwd=self.folder / "work",
            env=self._env("home"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if not answer.get("success"):
            told = answer.get("error-message") or done.stdout + done.stderr
            raise FederationError(
                f"flwr {' '.join(arguments)}: {without_colours(str(told)).strip()}"
            )
        return answer

    def _failure(self, process: "subprocess.Popen[bytes]", what: str) -> FederationError:
        log = self._log_of[process.pid]
        ended = process.poll()
        if ended is not None:
            what = f"ended with exit code {ended}"
        return FederationError(f"{log.stem} {what}:\n{_tail(log)}")


def _plain(log: Path) -> str:
    return without_colours(log.read_text(encoding="utf-8", errors="replace"))


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(_plain(log).splitlines()[-lines:])


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
