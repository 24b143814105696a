"""Descriptors of open files that come from another process."""

import errno
import os
import socket
import struct
from socket import CMSG_LEN, MSG_CMSG_CLOEXEC, MSG_CTRUNC

_SIZE = struct.calcsize("i")


def receive(channel: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive a message and the descriptors beside it, which programs started here do not have.

    Parameters
    ----------
    channel : socket
        A Unix socket.
    size, most : int
        How many bytes there are at most, and how many descriptors.

    Raises
    ------
    OSError
        If this process may not have so many files open.
    """
    # Not by Python's `recv_fds`, which in 3.11 leaves its flags out: a program that a client starts
    # would hold a dead worker's channel open, and what clients keep.
    data, beside, flags, _ = channel.recvmsg(size, CMSG_LEN(most * _SIZE), MSG_CMSG_CLOEXEC)
    received = b"".join(descriptors for *_, descriptors in beside)
    found = [number for (number,) in struct.iter_unpack("i", received)]
    if flags & MSG_CTRUNC:
        for number in found:
            os.close(number)
        raise OSError(errno.EMFILE, "each client that keeps arrays needs a file: raise ulimit -n")
    return data, found
