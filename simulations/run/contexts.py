"""What a simulation keeps of its clients: the contexts of those that have a state, and no others'.

Most clients of a large simulation are asked who they are and then not chosen for long. What such a
client is shown is made when it is called, and gone after it.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping

from flwr.app import Context


class Contexts(MutableMapping[int, Context]):
    """Clients' contexts by node id, as in a dict; each is made when it is first asked for.

    Parameters
    ----------
    nodes : iterable of int
        The node ids.
    make : callable
        ``make(node_id) -> Context``: the context of a client that has no state yet.
    """

    def __init__(self, nodes: Iterable[int], make: Callable[[int], Context]) -> None:
        self._kept: dict[int, Context | None] = dict.fromkeys(nodes)
        self._make = make

    def __getitem__(self, node_id: int) -> Context:
        context = self._kept[node_id] = self.look(node_id)
        return context

    def look(self, node_id: int) -> Context:
        """Return a client's context without keeping it if it is not kept yet."""
        return self._kept[node_id] or self._make(node_id)

    def __setitem__(self, node_id: int, context: Context) -> None:
        self._kept[node_id] = context

    def __delitem__(self, node_id: int) -> None:
        del self._kept[node_id]

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def popitem(self) -> tuple[int, Context]:
        """Remove and return the last client."""
        if not self._kept:
            raise KeyError("there is no client")
        node_id = next(reversed(self._kept))
        return node_id, self.pop(node_id)
