"""Certificates and keys for a federation on one machine, by the commands that the docs show."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Credentials", "make_credentials", "make_node_key"]

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


@dataclass(frozen=True)
class Credentials:
    """Files in the PEM format.

    Attributes
    ----------
    authority : Path
        Certificate of the authority that all trust (``ca.crt``).
    certificate, key : Path
        The SuperLink's certificate and its private key.
    """

    authority: Path
    certificate: Path
    key: Path


def make_credentials(folder: Path) -> Credentials:
    """Make an authority and a certificate for the SuperLink at 127.0.0.1.

    Parameters
    ----------
    folder : Path
        Where the files go; ``ca.key``, which signs, stays there too.

    Raises
    ------
    RuntimeError
        If openssl fails; says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.crt", folder / "ca.key"
    request = ["openssl", "req", "-x509", *_KEY, "-days", "365"]
    _run(
        [
            *request,
            *("-subj", "/CN=Federation CA", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(authority_key), "-out", str(authority)),
        ]
    )
    credentials = Credentials(authority, folder / "superlink.crt", folder / "superlink.key")
    _run(
        [
            *request,
            *("-subj", "/CN=localhost", "-CA", str(authority), "-CAkey", str(authority_key)),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", str(credentials.key), "-out", str(credentials.certificate)),
        ]
    )
    return credentials


def make_node_key(folder: Path, name: str) -> Path:
    """Make a key pair for a SuperNode, and return the private one; the other ends in ``.pub``.

    Raises
    ------
    RuntimeError
        If ssh-keygen fails; says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    _run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", str(path)])
    return path


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            f"{command[0]} is not installed: install OpenSSL 3 and OpenSSH (Debian: apt-get "
            "install openssl openssh-client)"
        ) from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
