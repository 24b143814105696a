"""`pncs bench`: the benchmarks of the source tree, one after the other."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["FOLDER", "QUICK", "run_benchmarks"]

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
"""The benchmarks, where there is a source tree."""

QUICK = ("similarity", "sketch", "subset")
"""Those that take minutes; the others take longer, and are run by name."""


def run_benchmarks(names: Sequence[str]) -> None:
    """Run benchmarks by name, those of `QUICK` if none is given; each prints its table."""
    if not (FOLDER / "measure.py").is_file():
        raise FileNotFoundError(
            f"no benchmarks in {FOLDER}: they are part of the source tree, so clone it and run "
            "pncs bench from its environment"
        )
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "measure")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no benchmark is called {unknown[0]!r}: there are {', '.join(known)}")
    failed = []
    for name in names or QUICK:
        print(f"\n== {name} ==\n", flush=True)
        if subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], check=False).returncode:
            failed.append(name)
    if failed:
        raise RuntimeError(f"these benchmarks failed: {', '.join(failed)}")
