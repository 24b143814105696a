"""Back-off: a client that failed steps back behind the others, for longer each time."""

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import timeouts


@dataclass
class _Failures:
    """A client's failures since it last succeeded."""

    by_phase: dict[str, int] = field(default_factory=dict)
    last: int = 0  # round
    rounds_left: int = 0


@dataclass
class Backoff:
    """Holds clients back that failed, for 1, 2, 4, ... rounds, at most 16."""

    # In a round that comes to nothing the model stays as it is, and a rule that draws no random
    # numbers would choose the same clients once more, to the end of the run. So only rounds in
    # which an update arrived count, and after one in which none did, all that have failed since
    # they last succeeded step back.
    # Failures in a row are counted for each phase: to have answered makes up for not having
    # answered, and an update for all. A client that answers each time and never delivers steps
    # back for longer and longer all the same.

    failed: dict[str, _Failures] = field(default_factory=dict)
    without_examples: list[str] = field(default_factory=list)
    after_empty: bool = False

    def holds_back(self, clients: Iterable[str]) -> list[str]:
        """Return which of these clients step back, those that failed longest ago first."""
        failed = [client for client in clients if client in self.failed]
        held = [c for c in failed if self.after_empty or self.failed[c].rounds_left > 0]
        return sorted(held, key=lambda client: self.failed[client].last)  # stable

    def note_without_examples(self, clients: Iterable[str], round: int) -> bool:
        """Take it for a failure that a client says to have no example; once: tell if any is new."""
        known = set(self.without_examples)
        new = [client for client in clients if client not in known]
        for client in new:
            self._note_failure(client, "training", round - 1)
        self.without_examples += new
        return bool(new)

    def end_round(
        self,
        round: int,
        tried: Mapping[str, Collection[str]],
        succeeded: Mapping[str, Collection[str]],
        empty: bool,
    ) -> None:
        """Take note of what came of a round, by phase: ``"pre-round"`` and ``"training"``."""
        # After an empty one, in which no update was used, nobody's rest gets shorter.
        self.after_empty = empty
        for failures in self.failed.values():
            failures.rounds_left = max(0, failures.rounds_left - (not empty))
        for phase, clients in tried.items():
            for client in clients:
                if client in succeeded["training"]:
                    self.failed.pop(client, None)
                elif client not in succeeded[phase]:
                    self._note_failure(client, phase, round)
                elif client in self.failed:
                    self.failed[client].by_phase.pop(phase, None)
                    if not self.failed[client].by_phase:
                        del self.failed[client]

    def _note_failure(self, client: str, phase: str, round: int) -> None:
        failures = self.failed.setdefault(client, _Failures())
        failures.by_phase[phase] = failures.by_phase.get(phase, 0) + 1
        failures.rounds_left = timeouts.rounds_of_rest(max(failures.by_phase.values()))
        failures.last = round

    def forget(self, client: str) -> None:
        """Forget a client's failures."""
        self.failed.pop(client, None)
        self.without_examples = [each for each in self.without_examples if each != client]

    def state(self) -> dict[str, Any]:
        """Return who failed how often, as JSON values."""
        return asdict(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` returned."""
        own = deepcopy(dict(state))
        self.failed = {client: _Failures(**each) for client, each in own["failed"].items()}
        self.without_examples, self.after_empty = own["without_examples"], own["after_empty"]
