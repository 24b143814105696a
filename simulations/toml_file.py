"""TOML files as people's editors leave them."""

import tomllib
from pathlib import Path
from typing import Any


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with a byte-order mark of UTF-8 or without."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the TOML file that lies in it")
    content = path.read_bytes()
    if b"\0" in content:  # TOML has none, and ASCII has them in the other encodings of Unicode
        raise ValueError(
            f"{path} is UTF-16, UTF-32 or no text at all, and TOML is UTF-8: save it as UTF-8"
        )
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
