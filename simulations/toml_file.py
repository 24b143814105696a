"""TOML files as people's editors leave them."""

import codecs
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["read_toml"]

_OTHERS = {
    # The marks of UTF-32 begin with, or hold, those of UTF-16: they come first.
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with a byte-order mark of UTF-8 or without.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is in another encoding, which is named, or is not TOML.
    """
    content = path.read_bytes()
    other = next((name for mark, name in _OTHERS.items() if content.startswith(mark)), None)
    if other is None and b"\0" in content:
        other = "UTF-16 or no text at all"  # TOML has no zero bytes
    if other is not None:
        raise ValueError(f"{path} is {other}, and TOML is UTF-8: save it as UTF-8")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not UTF-8, as TOML must be (byte {content[error.start]:#04x} in line "
            f"{line}): save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
