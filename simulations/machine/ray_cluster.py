"""The Ray cluster that the environment names."""

import os
import re
import socket

from ..timeouts import CLUSTER_ANSWERS

__all__ = ["cluster_address"]

_HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")


def cluster_address() -> str | None:
    """Return ``RAY_ADDRESS``, or None if it is not set and Ray is to be started here.

    It is asked at once whether it answers: Ray itself would try for minutes.
    """
    address = os.environ.get("RAY_ADDRESS")
    found = _HOST_AND_PORT.fullmatch(address or "")
    if found is None:
        return address  # such as auto, which Ray knows better
    try:
        host = found["host"].strip("[]")
        with socket.create_connection((host, int(found["port"])), timeout=CLUSTER_ANSWERS):
            return address
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"RAY_ADDRESS = {address} does not answer ({error}): start the cluster, or unset "
            "RAY_ADDRESS to compute on this machine"
        ) from None
