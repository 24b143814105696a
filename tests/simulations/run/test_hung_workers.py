"""The app's server sees to it that a client which hangs does not keep a run from ending."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from pncs_flower.simulations import server_app
from pncs_flower.simulations.config import default_run_config
from pncs_flower.simulations.machine.processes import stop_hung_workers


def test_the_server_app_sees_to_it_also_if_it_fails(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(server_app, "stop_hung_workers", lambda: calls.append("stop"))

    def fail(*arguments):
        calls.append("train")
        raise OSError("disk full")

    monkeypatch.setattr(server_app, "train", fail)
    settings = {**default_run_config(), "output-dir": str(tmp_path / "run")}
    context = Context(1, 1, {}, RecordDict(), settings)
    with pytest.raises(OSError, match="disk full"):
        server_app.app(SimpleNamespace(), context)
    assert calls == ["train", "stop"]


@pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")
def test_only_workers_that_are_at_work_are_stopped():
    def process(name):
        script = "import sys, time; print('up', flush=True); time.sleep(60)"
        started = subprocess.Popen(
            [name, "-c", script], executable=sys.executable, stdout=subprocess.PIPE
        )
        started.stdout.readline()
        return started

    names = ("ray::ClientAppActor.run", "ray::ClientAppActor", "another")
    busy, idle, other = map(process, names)
    try:
        stop_hung_workers(grace=0.1)
        assert busy.wait(timeout=20) == -9
        time.sleep(0.2)
        assert idle.poll() is other.poll() is None
    finally:
        for started in (busy, idle, other):
            started.kill()
            started.wait()
            started.stdout.close()
