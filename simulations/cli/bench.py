"""`pncs bench`: the benchmarks of the source tree, one after the other."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import said_plainly

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
"""The benchmarks, where there is a source tree."""

QUICK = ("similarity", "sketch", "subset")  # minutes; the others take longer, and are named


_SHARED = ("batched", "measure")  # what benchmarks import

BENCHMARKS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in _SHARED)


def bench(names: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run the benchmarks of the source tree: tables of ratios measured in one run."""
    with said_plainly():
        if not (FOLDER / "measure.py").is_file():
            raise FileNotFoundError(
                f"no benchmarks in {FOLDER}: they are part of the source tree, so clone it and "
                "run pncs bench from its environment"
            )
        for name in names or []:
            if name not in BENCHMARKS:
                raise ValueError(
                    f"no benchmark is called {name!r}: there are {', '.join(BENCHMARKS)}"
                )
        failed = []
        for name in names or QUICK:
            print(f"\n== {name} ==\n", flush=True)
            if subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], check=False).returncode:
                failed.append(name)
        if failed:
            raise RuntimeError(f"these benchmarks failed: {', '.join(failed)}")
