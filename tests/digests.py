"""Digests of runs of every rule, to see that a change leaves their bits as they were.

Run it in two checkouts and compare::

    python tests/digests.py before.json          # in the one, in process: two minutes
    python tests/digests.py after.json           # in the other
    python tests/digests.py --compare before.json after.json

With ``--ray``, each rule also runs through ``flwr run`` on Ray (half a minute each); with
``--deployment``, the default run also on a SuperLink with three SuperNodes (a minute).
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()"]
RUNS = {
    "pncs": ["rule.sketch=layers"],
    "pncs-coordinates": ["rule.sketch=coordinates:50@float16", "queue-length=2"],
    "pncs-moments": ["rule.sketch=power-moments:30", "rule.form=normalized"],
    "pncs-gradient": ["rule.summary=gradient", "rule.sketch=layers@int8", "rule.candidates=6"],
    "gradient-memory": ["rule.sketch=count:32", "rule.candidates=5"],
    "uniform": [],
    "proportional": ["partition=dirichlet"],
    "proportional-fedvarp": ["partition=dirichlet", "combine=fedvarp"],
    "round-robin": [],
    "active-fl": [],
    "power-of-choice": ["rule.variant=cpow-d"],
    "fedcor": [],
    "divfl": ["rule.summary=gradient", "rule.sketch=layers"],
    "oort": [],
    "gradient-norm": ["partition=dirichlet"],
    "sketched-mean": ["rule.sketch=count:32"],
    "sketched-mean-candidates": ["rule.candidates=5", "combine=sketched-mean:store=4"],
    "pncs-sketched-mean": ["combine=sketched-mean:dtype=float16"],
    "uniform-fedvarp": ["combine=fedvarp"],
    "uniform-mifa": ["combine=mifa:store=6"],
}
SWEEP = """
title = "Digests"
rules = ["pncs", "round-robin", "all"]
clients = 10
shards = [2]
selected = [2]
seeds = 2
{tune}
[settings]
num-rounds = 3
rule.sketch = "layers"
"""
# What a record has besides times and bytes.
FACTS = ("round", "clients", "cooling", "released", "asked", "answered", "rejected", "chosen")
FACTS += ("delivered", "mean_similarity", "optimal", "accuracy", "loss")


def pncs(*arguments: str, **more: Any) -> None:
    """Run the command of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*PNCS, *arguments], env=environment, capture_output=True, text=True, check=False, **more
    )
    if done.returncode:
        raise SystemExit(f"pncs {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def of_run(folder: Path) -> dict[str, str]:
    """Return the digests of a run's records, bytes and weights."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    with np.load(folder / "weights.npz", allow_pickle=False) as archive:
        weights = [(name, archive[name].tobytes()) for name in sorted(archive.files)]
    return {
        "records": digest([[row.get(name) for name in FACTS] for row in rows]),
        "bytes": digest([(row["bytes_up"], row["bytes_down"]) for row in rows]),
        "weights": digest(weights),
    }


def measure(folder: Path, ray: bool) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for engine in ("in-process", *(["ray"] if ray else [])):
        for name, settings in RUNS.items():
            output = folder / f"{name}-{engine}"
            strategy = name if name in ("round-robin", "active-fl") else None
            rule = next(r for r in ("pncs", *RUNS) if name == r or name.startswith(f"{r}-"))
            options = [f"--set={setting}" for setting in settings]
            chosen = strategy or rule
            pncs(
                *("run", "--engine", engine, "--strategy", chosen, "--rounds", "6"),
                *("--seed", "3", "--output", str(output), *options),
            )
            found[output.name] = of_run(output)
            print(output.name, found[output.name], flush=True)
    output = folder / "resumed"
    start = ("run", "--engine", "in-process")
    own = ("--set=rule.sketch=layers", "--seed", "3", "--output", str(output))
    pncs(*start, "--rounds", "3", *own)
    pncs(*start, "--resume", str(output), "--rounds", "6")
    found["resumed"] = of_run(output)
    for name, tune in {"sweep": "", "tuned-sweep": "tune = {lr = [0.05, 0.2], seeds = 1}"}.items():
        file = folder / f"{name}.toml"
        file.write_text(SWEEP.format(tune=tune))
        pncs("sweep", str(file), "--workers", "0", "--output", str(folder / name), cwd=folder)
        with (folder / name / "rounds.csv").open(newline="") as table:
            rows = list(csv.DictReader(table))
        facts = ("rule", "seed", "round", "accuracy", "loss", "chosen")
        found[name] = {"rounds": digest([[row[fact] for fact in facts] for row in rows])}
        print(name, found[name], flush=True)
    return found


def deployed(folder: Path) -> dict[str, str]:
    """Return the digests of a run of the app at the root on a SuperLink with SuperNodes."""
    sys.path += [str(ROOT / "tests"), str(ROOT / "examples" / "deployment")]
    os.environ["PYTHONPATH"] = str(ROOT)
    from deployment.conftest import start_nodes
    from federation import Federation

    settings = {"num-rounds": 4, "seed": 3, "device": "cpu", "output-dir": str(folder / "out")}
    settings |= {"num-selected": 1, "queue-length": 1, "partition": "iid"}
    with Federation(folder / "federation") as federation:
        start_nodes(federation)
        run = federation.submit(ROOT, settings)
        status, details = federation.wait(run, timeout=600)
        if status != "finished:completed":
            raise SystemExit(f"{details}\n{run.log.read_text()}")
    return of_run(folder / "out")


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs, and return how many digests do."""
    differing = 0
    for name in sorted(before.keys() | after.keys()):
        for what in sorted(before.get(name, {}).keys() | after.get(name, {}).keys()):
            pair = [side.get(name, {}).get(what) for side in (before, after)]
            if pair[0] != pair[1]:
                differing += 1
                print(f"{name}: {what} {pair[0]} -> {pair[1]}")
    print(f"{differing} digests differ")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ray", action="store_true", help="also on Ray")
    parser.add_argument("--deployment", action="store_true", help="also on a SuperLink")
    parser.add_argument("--compare", action="store_true", help="compare two files")
    options = parser.parse_args()
    if options.compare:
        before, after = (json.loads(path.read_text()) for path in options.files)
        return int(compare(before, after) > 0)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.ray)
        if options.deployment:
            found["deployment"] = deployed(Path(folder))
    options.files[0].write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
