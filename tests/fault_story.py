"""Clients that raise and hang: what happens, and what is told of it, on Ray and in a deployment."""

from dataclasses import dataclass
from typing import Any

# Rounds: client 0 in the pre-round, client 1 in training. A client that fails steps back behind the
# others: both are there again in the second round after it, client 1 then in the third.
RAISES, HANGS = 2, 4
DIES = 7  # the round in which a process that trains dies


def raising_and_hanging(patience: int) -> str:
    """Return the trouble of the rounds before `DIES`, for `apps.deployed`."""
    hang = f"hang:{patience + 4}"
    return (
        f"summarize/{RAISES}/0/raise train/{RAISES}/1/raise "
        f"summarize/{HANGS}/0/{hang} train/{HANGS}/1/{hang}"
    )


@dataclass
class Story:
    """What is left of a run of three clients, two of which train in a round."""

    history: list[dict[str, Any]]
    models: list[dict[str, Any]]

    def record(self, number: int) -> dict[str, Any]:
        return self.history[number - 1]


class RaisingAndHanging:
    """What holds in both engines; a subclass needs a fixture `story`."""

    late = "no reply"  # as the reason begins

    def test_client_that_raises_in_the_pre_round_is_left_out_with_the_reason(
        self, story: Any
    ) -> None:
        record = story.record(RAISES)
        assert sorted(record["answered"]) == ["1", "2"]
        assert "pre-round: " in record["rejected"]["0"]
        assert f"no data in round {RAISES}" in record["rejected"]["0"]

    def test_client_that_raises_in_training_is_left_out_with_the_reason(self, story: Any) -> None:
        record = story.record(RAISES)
        assert record["chosen"] == ["1", "2"]
        assert record["delivered"] == ["2"]
        assert f"no data in round {RAISES}" in record["rejected"]["1"]

    def test_client_that_hangs_in_the_pre_round_is_left_out_with_the_reason(
        self, story: Any
    ) -> None:
        record = story.record(HANGS)
        assert sorted(record["answered"]) == ["1", "2"]
        assert record["rejected"]["0"].startswith(f"pre-round: {self.late}")

    def test_client_that_hangs_in_training_is_left_out_with_the_reason(self, story: Any) -> None:
        record = story.record(HANGS)
        assert record["chosen"] == ["1", "2"]
        assert record["delivered"] == ["2"]
        assert record["rejected"]["1"].startswith(f"training: {self.late}")

    def test_every_model_is_finite(self, story: Any) -> None:
        assert all(model["finite"] for model in story.models)
