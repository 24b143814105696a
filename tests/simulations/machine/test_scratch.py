"""What a killed process has left in the folder for temporary files is removed, and nothing else."""

import subprocess
import sys
from pathlib import Path

from pncs_flower.simulations.machine.scratch import scratch_folder

KILLED = """
import os, signal, sys
from pncs_flower.simulations.machine.scratch import scratch_folder
with scratch_folder("sweep-", sys.argv[1]) as folder:
    (folder / "content").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_killed_processes_are_removed_and_no_others(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "scratch.lock").touch()
    (tmp_path / "pncs-link").symlink_to(kept)
    (tmp_path / "pncs-of-another-kind").mkdir()
    with scratch_folder(parent=str(tmp_path)) as alive:
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
        before = {each.name for each in tmp_path.iterdir()}
        (left,) = (name for name in before if name.startswith("pncs-sweep-"))
        with scratch_folder(parent=str(tmp_path)) as new:
            after = {each.name for each in tmp_path.iterdir()}
        assert after == before - {left} | {new.name}
        assert alive.is_dir()
    assert (kept / "scratch.lock").is_file()
    assert not alive.exists()
