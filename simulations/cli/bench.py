"""`pncs bench`: the benchmarks of the source tree, one after the other."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..choices import nearest
from .console import out, progress_bar, said_plainly
from .options import names as completing

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
"""The benchmarks, where there is a source tree."""

QUICK = ("similarity", "sketch", "subset")  # minutes; the others take longer, and are named


_SHARED = ("batched", "measure")  # what benchmarks import

BENCHMARKS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in _SHARED)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(autocompletion=completing(*BENCHMARKS))
    ] = None,
) -> None:
    """Run the benchmarks of the source tree: tables of ratios measured in one run."""
    with said_plainly():
        if not (FOLDER / "measure.py").is_file():
            raise FileNotFoundError(
                f"no benchmarks in {FOLDER}: they are part of the source tree, so clone it and "
                "run pncs bench from its environment"
            )
        for name in names or []:
            if name not in BENCHMARKS:
                raise ValueError(f"no benchmark is called {name!r}: {nearest(name, BENCHMARKS)}")
        chosen, failed = names or QUICK, []
        with progress_bar("benchmarks", len(chosen)) as (bar, task):
            for name in chosen:
                bar.update(task, description=name)
                out.print(f"\n== {name} ==\n")
                if _run(FOLDER / f"{name}.py"):
                    failed.append(name)
                bar.advance(task)
        if failed:
            raise RuntimeError(f"these benchmarks failed: {', '.join(failed)}")


def _run(script: Path) -> int:
    """Run a script, show its lines above the bar, and return its exit status."""
    command = [sys.executable, "-u", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            out.print(line, end="", soft_wrap=True)
    return process.returncode
