"""A Ray cluster of two nodes: both are used, all that a run needs reaches the second, one dies."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_images
from ray_cluster import Cluster, can_hide, cluster_of_two
from torchvision import models

pytestmark = [
    pytest.mark.ray,
    pytest.mark.minutes,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not can_hide(), reason="unshare may not hide folders from a process here"),
]

PNCS = [sys.executable, "-c", "from pncs_flower.simulations.cli import main; main()"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of_two(tmp_path_factory.mktemp("cluster")) as started:
        write_images(started.first / "images", of_each=8)
        torch.manual_seed(0)
        state = models.mobilenet_v3_small(weights=None).state_dict()
        torch.save(state, started.first / "weights.pth")
        yield started


def settings(cluster: Cluster) -> dict[str, Any]:
    """Images, weights and frozen layers: all that a node may have to be given."""
    return {
        "dataset": "cifar10",
        "data-dir": str(cluster.first / "images"),
        "model": "torchvision/mobilenet_v3_small",
        "weights": str(cluster.first / "weights.pth"),
        "trainable-layers": "classifier.3",
        "resize": 32,
        "partition": "iid",
    }


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Start a command on the first node."""
    return subprocess.Popen(
        [*PNCS, *arguments],
        cwd=cluster.first,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=900)
    return output


def until(process: subprocess.Popen[str], pattern: str, count: int, folder: Path) -> None:
    """Wait until the files that match have so many lines."""
    deadline = time.monotonic() + 600
    while sum(len(path.read_bytes().splitlines()) for path in folder.glob(pattern)) < count:
        assert process.poll() is None, said(process)
        assert time.monotonic() < deadline
        time.sleep(0.1)


def outcome(folder: Path) -> tuple[list[Any], dict[str, bytes]]:
    """Return what must not depend on where clients are."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    choices = [(row["chosen"], row["cooling"], row["mean_similarity"]) for row in rows]
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        return choices, {name: weights[name].tobytes() for name in weights.files}


def test_a_node_with_another_torch_is_refused_before_anything_starts(cluster: Cluster) -> None:
    about = cluster.second / "python" / "torch-0.0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    cluster.have_second()
    process = start(cluster, "run", "--rounds", "3", "--output", "refused")
    output = " ".join(said(process).split())
    (about / "METADATA").unlink()
    about.rmdir()
    assert process.returncode == 1
    assert f"node 127.0.0.2 of the Ray cluster has torch 0.0.1, not {version('torch')}:" in output
    assert not (cluster.first / "refused").exists()


def test_a_run_on_both_nodes_stops_resumably_with_one_and_has_the_bits_of_one_process(
    cluster: Cluster,
) -> None:
    cluster.have_second()
    changes = [f"--set={key}={value}" for key, value in settings(cluster).items()]
    run = ["run", "--clients", "4", *changes]
    first = start(cluster, *run, "--rounds", "1000", "--output", "out")
    out = cluster.first / "out"
    until(first, "rounds.jsonl", 5, out)
    cluster.kill_second()
    output = said(first)
    assert first.returncode == 1, output
    assert "2 at once on a Ray cluster of 2 nodes" in output
    assert "a worker process of the simulation has died" in output
    (command,) = [line for line in output.splitlines() if "To go on with it: pncs" in line]
    assert list(cluster.second.glob(".cache/pncs-flower/copies/features-*/*/train.npy"))

    cluster.have_second()
    rounds = len((out / "rounds.jsonl").read_text().splitlines()) + 3
    words = shlex.split(command.partition("pncs ")[2])
    second = start(cluster, *words, "--rounds", str(rounds))
    output = said(second)
    assert second.returncode == 0, output
    one = ["--engine", "in-process", "--workers", "1", "--rounds", str(rounds), "--output", "one"]
    alone = start(cluster, *run, *one)
    assert said(alone)
    assert outcome(out) == outcome(cluster.first / "one")


def test_cells_of_a_node_that_dies_run_again_and_have_the_same_bits(cluster: Cluster) -> None:
    cluster.have_second()
    texts = [f"{key} = {json.dumps(value)}" for key, value in settings(cluster).items()]
    texts = [text for text in texts if not text.startswith("partition")]
    head = 'title = "two nodes"\nrules = ["uniform"]\nseeds = 6\nclients = 5\n'
    rest = "shards = [2]\n[settings]\nnum-rounds = 100\n"
    (cluster.first / "sweep.toml").write_text(head + rest + "\n".join(texts) + "\n")
    folder = cluster.first / "cells"
    process = start(cluster, "sweep", "sweep.toml", "--output", "cells")
    until(process, "cells/*.jsonl", 2, folder)
    cluster.kill_second()
    output = said(process)
    assert process.returncode == 0, output
    alone = start(cluster, "sweep", "sweep.toml", "--output", "alone", "--workers", "0")
    assert said(alone)
    names = sorted(path.name for path in (folder / "cells").iterdir())
    assert len(names) == 6
    for name in names:
        here, there = (
            [json.loads(line) for line in (each / "cells" / name).read_text().splitlines()]
            for each in (folder, cluster.first / "alone")
        )
        assert [row.get("accuracy") for row in here] == [row.get("accuracy") for row in there]
        assert here[0] == there[0]
