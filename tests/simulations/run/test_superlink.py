"""The local SuperLink of a run has the time that a busy machine needs to start it."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pncs_flower.simulations.run import flower as flower_run


def prepared(folder: Path, code: str) -> dict[str, Any]:
    """Return how Flower is called, with this code in place of its SuperLink."""
    flower = flower_run._prepare(folder, False)
    programs = folder / "programs"
    programs.mkdir()
    program = programs / "flower-superlink"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    path = os.pathsep.join((str(programs), flower["env"]["PATH"]))
    return {**flower, "env": {**flower["env"], "PATH": path}}


def test_it_is_waited_for_past_a_proxy_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    code = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Superlink(BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Superlink.asked += 1
        self.send_response(200 if self.path == "/health" and Superlink.asked > 1 else 503)
        self.end_headers()

server = HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Superlink)
server.handle_request()
server.handle_request()
"""
    assert flower_run._start_superlink(prepared(tmp_path, code))


def test_one_that_ends_at_once_is_left_to_flower(tmp_path: Path) -> None:
    assert not flower_run._start_superlink(prepared(tmp_path, "raise SystemExit(2)"))


def test_one_that_does_not_answer_in_time_is_named_with_its_log_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_run, "SUPERLINK_STARTS", 0.3)
    silent = prepared(tmp_path, "import time; time.sleep(5)")
    told = r"does not answer after 0\.3 s: start .* less busy\. See its log at .*superlink\.log"
    with pytest.raises(flower_run.RunFailedError, match=told):
        flower_run._start_superlink(silent)
