"""Rounds as a rule sees them, made by hand."""

from collections.abc import Iterable, Mapping

from pncs_flower.strategies import Round


def make_round(
    number: int,
    clients: Iterable[str],
    num_selected: int,
    *,
    seed: int = 0,
    last_rounds: Mapping[str, int] | None = None,
    num_examples: Mapping[str, float] | None = None,
    cooling: Iterable[str] = (),
) -> Round:
    available = tuple(clients)
    return Round(
        number=number,
        seed=seed,
        num_selected=num_selected,
        available=available,
        last_rounds={client: (last_rounds or {}).get(client, 0) for client in available},
        num_examples=dict(num_examples or {}),
        clients=(*available, *cooling),
    )
