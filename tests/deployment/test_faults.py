"""A run in which clients raise, hang, die and leave goes on, and says what happened.

All of it happens in one run, since most of the time is spent in waiting. Clients compute gradients
in the pre-round and train when they are chosen, two of three in a round.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deployment.conftest import Deployed, read_history, start_nodes
from fault_story import DIES, HANGS, RaisingAndHanging, Story, raising_and_hanging
from federation import Federation

pytestmark = [pytest.mark.superlink, pytest.mark.minutes, pytest.mark.timeout(1800)]


@dataclass
class Told(Story):
    """What is left of the run, and the limits it had."""

    patience: float
    killed: int  # the round in which a SuperNode was killed
    back: int  # and one in which its client and the one whose process died answer again


def lost(record: dict[str, Any]) -> bool:
    """Tell whether client 2 failed in a round, or when asked ahead for its summary."""
    return "2" in record["rejected"] or "other clients" in record["pre_round"]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("faults")
    start = time.monotonic()
    with Federation(folder / "federation", programs=programs) as federation:
        nodes = start_nodes(federation)
        # On a busy machine everything takes longer, and nobody shall be late who does not hang.
        patience = round(10 + time.monotonic() - start)
        run, output = Deployed(federation, folder).submit(
            "story",
            rounds=60,
            evaluate=0.0,
            timeout=float(patience),
            options=json.dumps(
                {"summary": "gradient", "queue_length": 0, "summary_timeout": patience}
            ),
            trouble=f"{raising_and_hanging(patience)} summarize/{DIES}/0/raise train/{DIES}/1/die",
        )

        def wait(until: Callable[[list[dict[str, Any]]], bool]) -> int:
            deadline = time.monotonic() + 10 * patience + 120
            while not until(history := read_history(output)):
                assert time.monotonic() < deadline, history
                assert run.stream.poll() is None, run.log.read_text()
                time.sleep(0.2)
            return len(history)

        # Client 2 is asked for the next round's summary as soon as a round is over.
        before = wait(lambda history: len(history) >= DIES and "2" in history[-1]["answered"])
        nodes[2].kill()
        federation.start_supernode("node-2-again", {"partition-id": 2, "num-partitions": 3})
        wait(lambda history: any(map(lost, history[before:])))
        back = wait(
            lambda history: len(history) > before + 1 and {"1", "2"} <= set(history[-1]["answered"])
        )
        models = [json.loads(line) for line in (output / "models.jsonl").read_text().splitlines()]
        yield Told(read_history(output), models, patience, before + 1, back)


class TestRaisingAndHanging(RaisingAndHanging):
    late = "no reply in time"


def test_clients_that_hung_take_part_again(story: Told) -> None:
    later = [r for r in story.history if HANGS < r["round"] < story.killed]
    assert {"0", "1"} <= {client for record in later for client in record["answered"]}


def test_client_whose_process_is_killed_is_left_out_with_the_reason(story: Told) -> None:
    record = story.record(DIES)
    assert record["chosen"] == ["1", "2"]
    assert record["delivered"] == ["2"]
    assert record["rejected"]["1"] == "training: no reply in time"


def test_client_whose_process_was_killed_takes_part_again(story: Told) -> None:
    assert "1" in story.record(story.back)["answered"]


def test_killed_supernode_costs_its_client_the_round_and_no_more(story: Told) -> None:
    records = [record for record in story.history[story.killed - 1 :] if lost(record)]
    assert records
    assert all(r["delivered"] for r in records)


def test_supernode_that_comes_back_takes_part_again_as_the_same_client(story: Told) -> None:
    record = story.record(story.back)
    assert record["clients"] == ["0", "1", "2"]
    assert "2" in record["answered"]


def test_no_round_takes_longer_than_its_time_limits(story: Told) -> None:
    times = [model["time"] for model in story.models]
    # Training, and the exchange for the next round's summaries; a new node is asked for its key.
    longest = max(end - begin for begin, end in pairwise(times[1:]))
    assert longest < 2 * story.patience + 60
    assert all(record["seconds"]["training"] < story.patience + 10 for record in story.history)


def test_there_is_a_model_of_every_round(story: Told) -> None:
    assert len(story.models) >= story.killed
