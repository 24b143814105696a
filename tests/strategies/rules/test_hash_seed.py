"""Choices and weights do not depend on Python's hash seed, which each process draws anew."""

import json
import os
import subprocess
import sys
from pathlib import Path

from apps.every_rule import STRATEGIES

TESTS = Path(__file__).parents[2]


def run(program: str, hash_seed: int) -> str:
    path = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(hash_seed)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_every_rule_decides_the_same_under_other_hash_seeds():
    program = "import json; from apps.every_rule import digests; print(json.dumps(digests()))"
    first, second = (json.loads(run(program, seed)) for seed in (1, 2))
    assert first.keys() == STRATEGIES.keys()
    assert second == first


def test_the_usual_loss_is_the_same_to_its_last_bit():
    program = "from apps.every_rule import usual_loss; print(repr(usual_loss()))"
    assert len({run(program, seed) for seed in range(1, 5)}) == 1
