"""Copy what people write once: the app's settings and the version.

Flower reads an app's settings from its own pyproject.toml, and refuses those that it does not
find there; so the app at the root has those of simulations/pyproject.toml. The version is that of
the root's pyproject.toml, in the app and in CITATION.cff too.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "[tool.flwr.app.config]\n"


def split(text: str) -> tuple[str, str, str]:
    """Return what stands before the settings, the settings, and what stands after them."""
    before, _, rest = text.partition(HEAD)
    settings, bracket, after = rest.partition("\n[")
    return before, settings.strip() + "\n", bracket + after


_, settings, _ = split((ROOT / "simulations" / "pyproject.toml").read_text(encoding="utf-8"))
target = ROOT / "pyproject.toml"
before, _, after = split(target.read_text(encoding="utf-8"))
target.write_text(before + HEAD + settings + after, encoding="utf-8")

version = tomllib.loads(before)["project"]["version"]
for path, pattern in (
    (ROOT / "simulations" / "pyproject.toml", r'^version = ".*"$'),
    (ROOT / "CITATION.cff", r"^version: .*$"),
):
    text = path.read_text(encoding="utf-8")
    line = pattern.strip("^$").replace(".*", version)
    path.write_text(re.sub(pattern, line, text, count=1, flags=re.M), encoding="utf-8")
