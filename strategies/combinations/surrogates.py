"""Stale updates stand in for those of the clients that were not chosen: no pre-round is needed."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO
from pathlib import Path
from typing import Any, Literal

from flwr.common import log

from pncs_flower.plain_text import counted, size_in_words

from ..checks import check_share
from ..combination import Change, Combination, Delivery
from .store import UpdateStore, weighted_sum

__all__ = ["MIFA", "Surrogates"]


@dataclass(kw_only=True)
class _Newest(Combination):
    """Keeps the newest update of each client, as far as the store goes."""

    store: int | str | None = None
    dtype: Literal["float32", "float16"] = "float32"
    _updates: UpdateStore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.begin(None)

    def begin(self, folder: Path | None) -> None:
        """Begin with an empty store."""
        self._updates = UpdateStore(self.store, self.dtype, folder)

    def combine(self, delivery: Delivery) -> Change:
        """Return the weighted sum of fresh and stored updates."""
        stored = self._updates.entries
        fresh, stale = self._coefficients(delivery, [update.client for update in stored])
        values = weighted_sum([*delivery.updates.values(), *stored], [*fresh, *stale])
        return Change(values, self._updates.about)

    @abstractmethod
    def _coefficients(
        self, delivery: Delivery, stored: list[str]
    ) -> tuple[list[float], list[float]]:
        """Return the coefficients of the fresh updates, and of those stored, by client."""

    def keep(self, delivery: Delivery, change: Change) -> list[str]:
        """Put the fresh updates in place of their clients' stored ones."""
        store, all_clients = self._updates, delivery.now.clients
        is_first = not store.entries
        for client in delivery.updates:
            store.forget(client)
        problems = store.take(delivery.now.number, delivery.updates)
        if is_first and self.store is None:
            of_one = store.num_bytes // len(store.entries)
            log(
                INFO,
                "Each client's last update is kept and read in each round: %s for one, %s for %s",
                *(size_in_words(of_one), size_in_words(of_one * len(all_clients))),
                counted(len(all_clients), "client"),
            )
        return problems

    def forget(self, client: str) -> None:
        """Drop a client's update."""
        self._updates.forget(client)

    def state(self) -> dict[str, Any]:
        """Return the store's state."""
        return {"updates": self._updates.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the store's state."""
        self._updates.restore(state["updates"])


@dataclass
class Surrogates(_Newest):
    """Let each client's last update stand in for it, weakened by one factor.

    With the updates u_k of those S that delivered, the last updates h_k (0 if none is stored) and
    the weights w_k among all clients, the change is Σ_S q_k u_k + β Σ_k (w_k - q_k [k in S]) h_k.
    The q_k, of sum 1, are in proportion to w_k, or to w_k over the chance with which k was drawn if
    the rule draws some more often than others (`ProportionalSelection`).

    Parameters
    ----------
    beta : float (default: 1.0)
        β, from 0 to 1: FedAvg is 0, FedVARP 1 (arXiv:2207.14130), FedStale between
        (arXiv:2405.04171). With 0, nothing is stored.
    store : int or str, optional (default: None)
        Keep so many updates, or as many as fit into so many bytes, such as ``"2GB"``; one of each
        client if None: those beyond 1 GB are in a file, see `UpdateStore`, and all are read in each
        round. Clients whose update was dropped are as those that never delivered.
    dtype : {"float32", "float16"} (default: "float32")
        How updates are kept.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(beta=self.beta)

    def keep(self, delivery: Delivery, change: Change) -> list[str]:
        """Put the fresh updates in place of their clients' stored ones, if these count at all."""
        return super().keep(delivery, change) if self.beta else []

    def _coefficients(
        self, delivery: Delivery, stored: list[str]
    ) -> tuple[list[float], list[float]]:
        among = delivery.weights
        stale = [self.beta * (delivery.now.shares.get(c, 0.0) - among.get(c, 0.0)) for c in stored]
        return list(among.values()), stale


@dataclass
class MIFA(_Newest):
    """Average each client's last update, as it is (MIFA, arXiv:2106.04159).

    Parameters
    ----------
    store, dtype
        As for `Surrogates`.

    Notes
    -----
    In the paper all clients take part in the first round; here the mean is over those of which an
    update is stored, so that with a store for fewer than all clients it is that of the last chosen.
    With which chances a rule draws does not matter: no update stands for those of others.
    """

    def _coefficients(
        self, delivery: Delivery, stored: list[str]
    ) -> tuple[list[float], list[float]]:
        shares, fresh = delivery.now.shares, delivery.updates
        total = sum(shares.get(client, 0.0) for client in dict.fromkeys([*fresh, *stored]))
        stale = [0.0 if c in fresh else shares.get(c, 0.0) / total for c in stored]
        return [shares[client] / total for client in fresh], stale
