"""The Age-of-Update queue: a client that was selected rests before it may be selected again."""

import math
from collections.abc import Iterable, Mapping, Sequence


class AgeOfUpdateQueue:
    """Hold back clients that were selected a short while ago (PNCS, arXiv:2506.15923, AoU-Queue).

    A client selected in round t may be selected again in round t' > t + length / per_round,
    compared in whole numbers.

    Parameters
    ----------
    length : int or None
        Length of the queue, in clients (L in the paper); 0 holds nobody back. None: in each round
        as long as leaves more clients free than are selected, and at most twice as many.
    per_round : int
        Clients selected in a round (S in the paper), 1 or more.

    Examples
    --------
    >>> queue = AgeOfUpdateQueue(length=3, per_round=2)
    >>> queue.push(["a", "b"], round=1)
    >>> queue.available(["a", "b", "c"], round=2)  # 2 > 1 + 1.5 does not hold
    ['c']
    >>> queue.available(["a", "b", "c"], round=3)
    ['a', 'b', 'c']
    >>> AgeOfUpdateQueue(length=None, per_round=2).rounds(num_clients=10)
    3
    """

    def __init__(self, length: int | None, per_round: int) -> None:
        for name, value in (("length", 0 if length is None else length), ("per_round", per_round)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} is {value!r}, want a whole number of clients")
        if length is not None and length < 0:
            raise ValueError(
                f"length is {length}, want 0 or more clients; 0 switches the queue off"
            )
        if per_round < 1:
            raise ValueError(f"per_round is {per_round}, want the 1 or more clients of a round")
        self.length = length
        self.per_round = per_round
        self._last_round: dict[str, int] = {}

    def rounds(self, num_clients: int) -> int:
        """Return for how many rounds a client rests where there are so many clients."""
        if self.length is not None:
            return self.length // self.per_round  # the comparison above, solved for the rounds
        return max(0, math.ceil(num_clients / self.per_round) - 2)

    def available(
        self, clients: Iterable[str], round: int, num_clients: int | None = None
    ) -> list[str]:
        """Return the clients that may be selected in a round, in the order given.

        A length of None follows ``num_clients``, which are those given unless it is said.
        """
        there, last_round = list(clients), self._last_round.get
        latest = round - self.rounds(len(there) if num_clients is None else num_clients) - 1
        return [client for client in there if last_round(client, latest) <= latest]

    def push(self, clients: Iterable[str], round: int) -> None:
        """Note that these clients were selected in a round."""
        if isinstance(clients, str):
            raise TypeError(f"clients is the text {clients!r}, want a list of keys: [{clients!r}]")
        for client in clients:
            self._last_round[client] = round

    def longest_waiting(self, clients: Sequence[str], count: int) -> list[str]:
        """Return ``count`` clients at most, the earliest selected first; ties as given."""
        if count < 0:
            raise ValueError(f"count is {count}, want 0 or more clients")
        last_round = self._last_round.get
        # sorted() keeps the order of equals, so ties need no second key.
        return sorted(clients, key=lambda client: last_round(client, -math.inf))[:count]

    def last_round(self, client: str) -> int | None:
        """Return the round in which a client was last selected; None if it never was."""
        return self._last_round.get(client)

    def forget(self, client: str) -> None:
        """Forget when a client was selected."""
        self._last_round.pop(client, None)

    def state(self) -> dict[str, int]:
        """Return the last round of every client that was ever selected."""
        return dict(self._last_round)

    def restore(self, state: Mapping[str, int]) -> None:
        """Take up what `state` returned."""
        self._last_round = dict(state)
