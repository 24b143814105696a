"""Who a message is from, where Flower has not said so: outside a run of a ServerApp."""

from importlib.util import find_spec

__all__ = ["SERVER_NODE_ID", "set_task_identity"]

SERVER_NODE_ID = 1


def set_task_identity(run_id: int) -> None:
    """Let this process make messages of a run, unless Flower has already said which run it is in.

    Flower stamps every message with the identity of the task that makes it. Outside a run there is
    none, and no public way to set one. Older releases of Flower stamp a message when it is sent.

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
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, SERVER_NODE_ID, 1
