"""Which client is this? A name that stays the same from run to run."""

from flwr.app import Context

__all__ = ["client_key"]


def client_key(context: Context) -> str:
    """Return a client's stable key.

    Flower draws node ids anew in every run, so they can neither seed a client nor name it in a
    result. The key is the node config's ``partition-id``, else its ``name``, else the node id.

    Parameters
    ----------
    context : Context
        The context that Flower hands to the app.

    Returns
    -------
    str
        Such as ``"3"`` or ``"hospital-a"``.
    """
    for name in ("partition-id", "name"):
        if name in context.node_config:
            return str(context.node_config[name])
    return str(context.node_id)
