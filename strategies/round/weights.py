"""What the base strategy weighs clients by, as far as it is known before they deliver."""

from collections.abc import Iterable, Mapping

from flwr.serverapp.strategy import Strategy

from pncs_flower.protocol import NUM_EXAMPLES

from ..base_strategy import unwrap


class Weights:
    """The weights that last came with clients' updates."""

    def __init__(self, base: Strategy | None = None) -> None:
        keys = [getattr(strategy, "weighted_by_key", None) for strategy in unwrap(base)]
        self._by_examples = NUM_EXAMPLES in keys
        self._last: dict[str, float] = {}

    def shares(
        self,
        clients: Iterable[str],
        num_examples: Mapping[str, float],
        fresh: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Return the weight of each client in the mean of all; the unknown are as the known."""
        known = {**(num_examples if self._by_examples else {}), **self._last, **(fresh or {})}
        clients = list(clients)
        told = [known[client] for client in clients if client in known]
        usual = sum(told) / len(told) if told else 1.0
        full = [known.get(client, usual) for client in clients]
        total = sum(full)
        shares = {weight: weight / total for weight in full}  # many clients weigh the same
        return {client: shares[weight] for client, weight in zip(clients, full, strict=True)}

    def note(self, weights: Mapping[str, float]) -> None:
        """Take note of weights that came with updates."""
        self._last |= weights

    def forget(self, client: str) -> None:
        """Forget a client's weight."""
        self._last.pop(client, None)

    def state(self) -> dict[str, float]:
        """Return the weights."""
        return dict(self._last)

    def restore(self, state: Mapping[str, float]) -> None:
        """Take up what `state` returned."""
        self._last = dict(state)
