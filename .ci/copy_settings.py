"""Copy the app's settings from simulations/pyproject.toml into the app at the root.

Flower reads an app's settings from its own pyproject.toml, and refuses those that it does not
find there; so the two apps must both have them, and people write them once.
"""

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
