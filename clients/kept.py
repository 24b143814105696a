"""The local update that a client keeps between the pre-round and its selection.

It is kept in the context's state, the only memory that a client has in a deployment, where each
message may meet a new process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, RecordDict

from pncs_flower.messages.records import of_kind, own_copy

from .stored import with_arrays_stored

_OURS = "pncs-"  # what the library itself has in a state
_KEPT = f"{_OURS}kept"  # the record with the ticket
_UPDATE = f"{_KEPT}/"
_AFTER = f"{_KEPT}-state/"  # the app's state, as the training has left it


def keep(state: RecordDict, ticket: str, update: RecordDict, num_clients: int = 1) -> None:
    """Keep an update under its pre-round's ticket, as one of so many clients in one place."""
    state[_KEPT] = ConfigRecord({"ticket": ticket})
    kept = with_arrays_stored(update, num_clients)
    state.update({_UPDATE + name: record for name, record in kept.items()})


def take_kept(state: RecordDict, ticket: str) -> RecordDict | None:
    """Return the update kept under a ticket and forget it; None if there is none."""
    # The app's state becomes what the training left, if that was set aside.
    stored = of_kind(state, ConfigRecord).get(_KEPT)
    update = None
    if stored is not None and ticket and stored["ticket"] == ticket:
        update = _under(state, _UPDATE)
        removed = stored.get("removed", [])
        for name in removed if isinstance(removed, list) else []:
            state.pop(str(name), None)
        state.update(_under(state, _AFTER))
    drop_kept(state)
    return update


def ticket_of(state: RecordDict) -> str | None:
    """Return the ticket under which an update is kept; None if there is none."""
    stored = state.get(_KEPT)
    return str(stored["ticket"]) if isinstance(stored, ConfigRecord) else None


def drop_kept(state: RecordDict) -> None:
    """Forget the update kept, so that its memory is free."""
    for name in [name for name in state if name.startswith(_KEPT)]:
        del state[name]


@contextmanager
def restored(state: RecordDict) -> Iterator[None]:
    """Put the app's part of a state back to what it was, for a client that may not be chosen."""
    # What the training has made of it stays beside the kept update, if any, and comes back with
    # it.
    before = own_copy(_own(state))
    try:
        yield
    finally:
        after = _own(state)
        removed = [name for name in before if name not in after]
        changed = {n: r for n, r in after.items() if n not in before or r != before[n]}
        for name in changed:
            del state[name]
        state.update({name: record for name, record in before.items() if name not in state})
        stored = of_kind(state, ConfigRecord).get(_KEPT)
        if stored is not None:
            if removed:
                stored["removed"] = removed
            state.update({_AFTER + name: record for name, record in changed.items()})


def _own(state: RecordDict) -> RecordDict:
    return RecordDict({n: record for n, record in state.items() if not n.startswith(_OURS)})


def _under(state: RecordDict, prefix: str) -> RecordDict:
    return RecordDict({n.removeprefix(prefix): r for n, r in state.items() if n.startswith(prefix)})
