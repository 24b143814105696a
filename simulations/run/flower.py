"""`flwr run` in a world of its own: private home, ports and processes, and its true outcome."""

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pncs_flower.files import write_whole
from pncs_flower.plain_text import without_colours

from ..config import APP_DIRECTORY, Config, format_toml
from ..machine.processes import adopt_orphans, guarded, stop_descendants
from ..machine.scratch import scratch_folder
from ..machine.signals import ignoring_signals
from ..machine.surroundings import (
    OF_RAY,
    cluster_address,
    find_programs,
    free_ports,
    search_path,
    short_folder,
    without_proxy_here,
)
from ..timeouts import LOOK_AT_RUN_AGAIN, RUN_ENDS, SUPERLINK_ANSWERS, SUPERLINK_STARTS
from .folder import FLOWER_LOG

if TYPE_CHECKING:
    from .preflight import Placement

_SUPERLINK_LOG = Path("local-superlink") / "superlink.log"  # in FLWR_HOME, as Flower has it
_PORT = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"

_ERROR = re.compile(r"^ERROR|^\w[\w.]*(Error|Exception|Interrupt)\b", re.MULTILINE)

Process = dict[str, Any]  # where a process is started: "cwd" and "env"


class RunFailedError(RuntimeError):
    """Flower did not complete the run; says why."""


def check_programs() -> None:
    """Refuse to start without Ray or a program of Flower's, whose library may be there alone."""
    if find_spec("ray") is None:
        raise RuntimeError(
            'Ray is not installed: install it with "pncs-flower[simulation]", or give --engine '
            "in-process, which does without it"
        )
    needed = ("flwr", "flower-superlink", "flower-superexec", "flwr-simulation")
    find_programs(needed, search_path(), "give --engine in-process, which does without it")


def run_in_flower(
    config: Config,
    num_clients: int,
    placement: "Placement",
    output: Path,
    on_poll: Callable[[], None],
) -> None:
    """Run the app on Ray, and leave no process behind; all but a completed run is an error."""
    adopt_orphans()
    # Ray, if it is started here, needs a short one for its sockets.
    elsewhere = cluster_address() is not None
    new_home = scratch_folder() if elsewhere else short_folder()
    with new_home as home, guarded("FLWR_HOME", home) as watchdog:
        superlink_log = home / _SUPERLINK_LOG
        try:
            with (output / FLOWER_LOG).open("a", encoding="utf-8") as log:
                flower = _prepare(home, elsewhere)
                if elsewhere:
                    from .cluster import on_any_machine  # PyTorch, which is not needed here

                    config = on_any_machine(config)
                run_id = _start(flower, config, num_clients, placement)
                _wait(flower, run_id, log, on_poll)
        except RunFailedError as error:
            # What Flower names is about to be removed, and put there.
            text = str(error).replace(str(superlink_log), str(output / FLOWER_LOG))
            raise RunFailedError(text) from None
        finally:
            with ignoring_signals():
                stop_descendants(spared=watchdog)
                _complete(output / FLOWER_LOG, superlink_log)


def _prepare(home: Path, elsewhere: bool) -> Process:
    """Return how to call Flower's command line so that it keeps all that it writes in a folder."""
    work = home / "work"
    work.mkdir()
    http_port, control_port = free_ports(2)
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "running"\n'
        '[superlink.start]\naddress = ":local-in-memory:"\n'
        # By its address it can be asked, but is not started anew if it is gone.
        f'[superlink.running]\naddress = "127.0.0.1:{http_port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    environment = {
        **without_proxy_here(os.environ),
        "PATH": search_path(),
        "FLWR_HOME": str(home),
        _PORT: str(http_port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control_port),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        **OF_RAY,
        "PYTHONUNBUFFERED": "1",
        # Their output goes to files in UTF-8, whatever this terminal can show.
        "PYTHONIOENCODING": "utf-8:backslashreplace",
    }
    if elsewhere:
        from .cluster import gather_code

        code = home / "code"
        gather_code(code)
        # So Ray's own command for jobs has a driver ship a folder; Flower has no place to say it.
        job = {"runtime_env": {"working_dir": str(code)}}
        environment["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(job)
    else:
        environment["RAY_TMPDIR"] = str(home)
    return {"cwd": work, "env": environment}


def _start(flower: Process, config: Config, num_clients: int, placement: "Placement") -> str:
    """Have Flower start a run, and return its id."""
    settings = flower["cwd"] / "run.toml"
    settings.write_text(format_toml(config.to_run_config()), encoding="utf-8")
    federation = {
        "num-supernodes": num_clients,
        "client-resources-num-cpus": placement.cpus_per_client,
        "client-resources-num-gpus": float(placement.gpus_per_client),
    }
    if placement.machine is not None:
        federation["init-args-num-cpus"] = placement.machine.cpus
        federation["init-args-num-gpus"] = placement.machine.gpus
    of_federation = " ".join(f"{key}={value}" for key, value in federation.items())
    superlink = "running" if _start_superlink(flower) else "start"
    command = ["run", str(APP_DIRECTORY), superlink, "--run-config", str(settings)]
    submitted = _ask(flower, *command, "--federation-config", of_federation)
    if not submitted.get("success"):
        raise RunFailedError(f"flwr run failed: {_reason(submitted)}")
    return str(submitted["run-id"])


def _start_superlink(flower: Process) -> bool:
    """Start a local SuperLink, as `flwr run` would, and tell whether it answers.

    Flower gives it 15 s, which a busy machine does not keep. One that ends at once is left to
    Flower, which knows how its own release is to be started, or says what is wrong.
    """
    port, log = flower["env"][_PORT], Path(flower["env"]["FLWR_HOME"]) / _SUPERLINK_LOG
    log.parent.mkdir()
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", port, "--log-file", str(log)],
        **flower,
        stdout=subprocess.DEVNULL,  # has what the run's log has
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + SUPERLINK_STARTS
    while process.poll() is None:
        with suppress(OSError, HTTPException):
            direct.open(f"http://127.0.0.1:{port}/health", timeout=SUPERLINK_ANSWERS).close()
            return True
        if time.monotonic() > deadline:
            raise RunFailedError(
                f"Flower's local SuperLink does not answer after {SUPERLINK_STARTS:g} s: start the "
                f"run again when the machine is less busy. See its log at {log}."
            )
        time.sleep(LOOK_AT_RUN_AGAIN)
    return False


def _wait(flower: Process, run_id: str, log: IO[str], on_poll: Callable[[], None]) -> None:
    """Copy the run's log until it ends, and make sure that it was completed."""
    status = details = ""
    while not status.startswith("finished"):
        # A connection that breaks ends it too soon; the next one brings it all again.
        log.seek(0)
        log.truncate()
        command = ["flwr", "log", run_id, "running", "--stream"]
        follower = subprocess.Popen(command, **flower, stdout=log, stderr=subprocess.STDOUT)
        while follower.poll() is None:
            on_poll()
            time.sleep(LOOK_AT_RUN_AGAIN)
        status, details = _outcome(flower, run_id)
    on_poll()
    if status != "finished:completed":
        said = f"Flower reports {status}: {details}"
        raise RunFailedError("\n".join([said, *_last_errors(log.name, details)]))


def _outcome(flower: Process, run_id: str) -> tuple[str, str]:
    """Return the run's status with its details: the final one, if it comes soon."""
    deadline = time.monotonic() + RUN_ENDS
    while True:
        answer = _ask(flower, "list", "running", "--run-id", run_id)
        run: dict[str, Any] = next(iter(answer.get("runs", [])), {})
        status = str(run.get("status", ""))
        if status.startswith("finished"):
            return status, without_colours(str(run.get("status-details") or ""))
        if time.monotonic() > deadline:
            if not status:
                raise RunFailedError(f"Flower's SuperLink does not answer: {_reason(answer)}")
            return status, ""
        time.sleep(LOOK_AT_RUN_AGAIN)


def _ask(flower: Process, *arguments: str) -> dict[str, Any]:
    """Call Flower's command line, and return its answer."""
    command = ["flwr", *arguments, "--format", "json"]
    process = subprocess.run(command, **flower, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(process.stdout))
    except ValueError:
        return {"error-message": process.stdout + process.stderr}


def _reason(answer: dict[str, Any]) -> str:
    return without_colours(str(answer.get("error-message") or answer)).strip()


def _complete(log: Path, superlink_log: Path) -> None:
    """Put the SuperLink's own log after the run's, and take the colours out."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if superlink_log.exists():
        text += "\nThe SuperLink's log\n\n"
        text += superlink_log.read_text(encoding="utf-8", errors="replace")
    write_whole(log, without_colours(text))


def _last_errors(log: str, known: str, count: int = 5) -> list[str]:
    """Return a log's last errors other than the one that is known, and where to read more."""
    text = without_colours(Path(log).read_text(encoding="utf-8", errors="replace"))
    lines = dict.fromkeys(line.rstrip() for line in text.splitlines() if _ERROR.search(line))
    message = known.rpartition("exception: ")[2]
    news = [line for line in lines if not message or message not in line]
    return [*news[-count:], f"Flower's log: {log}"]
