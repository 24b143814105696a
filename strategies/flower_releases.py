"""What differs between the releases of Flower that the library works with, in one place."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("flwr.supercore.run"):
    from flwr.supercore.run import Run
else:
    from flwr.common.typing import Run

__all__ = ["Run", "set_task_identity"]

_SERVER_NODE_ID = 1


def set_task_identity(run_id: int) -> None:
    """Let this process make messages of a run, unless Flower has already said which run it is in.

    Recent releases stamp every message with the identity of the task that makes it. Outside a run
    there is none, and no public way to set one. Older releases stamp a message when it is sent.

    Parameters
    ----------
    run_id : int
        The run that messages are to belong to.
    """
    if find_spec("flwr.supercore.task_identity") is None:
        return
    from flwr.supercore.task_identity import TaskIdentity

    try:
        _ = TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, _SERVER_NODE_ID, 1
