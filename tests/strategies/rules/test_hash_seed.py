"""Choices and weights do not depend on Python's hash seed, which each process draws anew."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
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


@pytest.mark.minutes
def test_every_rule_decides_the_same_under_other_hash_seeds():
    """And the usual loss is the same to its last bit."""
    code = "import json; from apps.every_rule import digests, usual_loss; print(json.dumps({}))"
    both = code.format("[digests(), usual_loss()]")
    first, second = (json.loads(run(both, seed)) for seed in (1, 2))
    assert first[0].keys() == STRATEGIES.keys()
    assert second == first
    losses = {json.loads(run(code.format("usual_loss()"), seed)) for seed in (3, 4)}
    assert losses == {first[1]}
