"""What differs between the releases of Flower that the library works with, in one place."""

import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

if TYPE_CHECKING or find_spec("flwr.supercore.run"):
    from flwr.supercore.run import Run
else:
    from flwr.common.typing import Run

__all__ = ["HAS_NODES", "Run", "check_arguments", "set_task_identity", "takes"]

HAS_NODES = hasattr(Grid, "get_nodes")
"""Whether a grid tells more of its nodes than their ids: since Flower 1.42."""

_SERVER_NODE_ID = 1


def takes(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function of the installed Flower has a parameter of that name."""
    parameters = inspect.signature(function).parameters
    return name in parameters and parameters[name].kind is not inspect.Parameter.VAR_KEYWORD


def check_arguments(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Refuse arguments that the installed Flower does not know."""
    for name in names:
        if not takes(function, name):
            known = [known for known in inspect.signature(function).parameters if known != "self"]
            raise TypeError(
                f"{function.__name__}() was given {name!r}, which Flower {version('flwr')}, the "
                f"release installed here, does not have; it has {', '.join(known)}. Leave it out, "
                "or install a release of Flower that has it"
            )


def set_task_identity(run_id: int) -> None:
    """Let this process make messages of a run, unless Flower has said which run it is in."""
    # Recent releases stamp every message with the identity of the task that makes it. Outside a
    # run there is none, and no public way to set one. Older releases stamp a message when it is
    # sent.
    if find_spec("flwr.supercore.task_identity") is None:
        return
    from flwr.supercore.task_identity import TaskIdentity

    try:
        _ = TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id
    except RuntimeError:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, _SERVER_NODE_ID, 1
