"""The local update that a client keeps between the pre-round and its selection.

It is kept in the context's state, the only memory that a client has in a deployment, where each
message may meet a new process.
"""

from flwr.app import ConfigRecord, RecordDict

__all__ = ["drop_kept", "keep", "take_kept"]

_PREFIX = "pncs-kept"
_TICKET = _PREFIX
_RECORD = f"{_PREFIX}/"


def keep(state: RecordDict, ticket: str, update: RecordDict) -> None:
    """Keep an update under its pre-round's ticket, in place of an earlier one."""
    drop_kept(state)
    state[_TICKET] = ConfigRecord({"ticket": ticket})
    for name, record in update.items():
        state[_RECORD + name] = record


def take_kept(state: RecordDict, ticket: str) -> RecordDict | None:
    """Return the update kept under a ticket and forget it; None if there is none."""
    stored = state.config_records.get(_TICKET)
    update = None
    if stored is not None and ticket and stored["ticket"] == ticket:
        update = RecordDict(
            {
                name.removeprefix(_RECORD): record
                for name, record in state.items()
                if name.startswith(_RECORD)
            }
        )
    drop_kept(state)
    return update


def drop_kept(state: RecordDict) -> None:
    """Forget the update kept, so that its memory is free."""
    for name in [n for n in state if n == _TICKET or n.startswith(_RECORD)]:
        del state[name]
