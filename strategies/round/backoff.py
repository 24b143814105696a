"""Back-off: a client that failed steps back behind the others, for longer each time."""

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from .. import timeouts

__all__ = ["Backoff"]


@dataclass
class Backoff:
    """Holds clients back that failed, for 1, 2, 4, ... rounds, at most 16.

    In a round that comes to nothing the model stays as it is, and a rule that draws no random
    numbers would choose the same clients once more, to the end of the run. So only rounds in which
    an update arrived count, and after one in which none did, all that have failed since they last
    succeeded step back.

    Failures in a row are counted for each phase: to have answered makes up for not having answered,
    and an update for all. A client that answers each time and never delivers steps back for longer
    and longer all the same.
    """

    failures: dict[str, dict[str, int]] = field(default_factory=dict)  # of each client, by phase
    rounds_left: dict[str, int] = field(default_factory=dict)
    failed_in: dict[str, int] = field(default_factory=dict)
    without_examples: list[str] = field(default_factory=list)
    after_empty: bool = False

    def holds_back(self, clients: Iterable[str]) -> list[str]:
        """Return which of these clients step back, those that failed longest ago first."""
        held = [
            client
            for client in clients
            if client in self.failures and (self.after_empty or self.rounds_left[client] > 0)
        ]
        return sorted(held, key=lambda client: self.failed_in[client])  # stable

    def note_without_examples(self, clients: Iterable[str], round: int) -> None:
        """Take it for a failure that a client says to have no example; once, however often said."""
        for client in clients:
            if client not in self.without_examples:
                self.without_examples.append(client)
                self._note_failure(client, "training", round - 1)

    def end_round(
        self,
        round: int,
        tried: Mapping[str, Collection[str]],
        succeeded: Mapping[str, Collection[str]],
        empty: bool,
    ) -> None:
        """Take note of what came of a round, by phase: ``"pre-round"`` and ``"training"``.

        After an empty one, in which no update was used, nobody's rest gets shorter.
        """
        self.after_empty = empty
        if not self.after_empty:
            self.rounds_left = {c: max(0, left - 1) for c, left in self.rounds_left.items()}
        for phase, clients in tried.items():
            for client in clients:
                if client in succeeded["training"]:
                    self.failures.pop(client, None)
                elif client in succeeded[phase]:
                    self.failures.get(client, {}).pop(phase, None)
                else:
                    self._note_failure(client, phase, round)
                if not self.failures.get(client):
                    for counts in (self.failures, self.rounds_left, self.failed_in):
                        counts.pop(client, None)

    def _note_failure(self, client: str, phase: str, round: int) -> None:
        phases = self.failures.setdefault(client, {})
        phases[phase] = phases.get(phase, 0) + 1
        self.rounds_left[client] = timeouts.rounds_of_rest(max(phases.values()))
        self.failed_in[client] = round

    def state(self) -> dict[str, Any]:
        """Return who failed how often, as JSON values."""
        return deepcopy(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        vars(self).update(deepcopy(dict(state)))
