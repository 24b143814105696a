"""Write the Flower app of this repository as Flower Hub wants it: ``.ci/hub_app.py FOLDER``.

The library's code is in it, so that it runs wherever Flower installs its dependencies from PyPI.
Its pyproject.toml is made from the one at the root, which cannot say it itself: the Hub wants
``license = {file = "LICENSE"}``, which no longer is how Python packages say it, and one dependency
on Flower, which for the app is a newer one than for the library.
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("pncs_flower", "strategies", "clients", "simulations")


def settings(text: str) -> str:
    """Return a pyproject.toml's tables of the app, but for the head of the first."""
    _, _, rest = text.partition("[tool.flwr.app]\n")
    return rest.partition("\n[tool.ruff]")[0] + "\n"


def pyproject(text: str) -> str:
    """Return the app's pyproject.toml, made from the one at the root."""
    project = tomllib.loads(text)["project"]
    app = project["optional-dependencies"]["simulation"]
    (flower,) = (each for each in app if each.startswith("flwr["))
    needs = [flower + ",<2", *(each for each in app if each != flower)]
    needs += [each for each in project["dependencies"] if not each.startswith("flwr>")]
    lines = "\n".join(f'    "{each}",' for each in needs)
    body = settings(text).replace("fab-include = [", 'fab-include = [\n    "LICENSE",')
    return f"""[project]
name = "{project["name"]}"
version = "{project["version"]}"
description = "{project["description"]}"
license = {{ file = "LICENSE" }}
dependencies = [
{lines}
]

[tool.flwr.app]
fab-format-version = 1
flwr-version-target = "{flower.partition(">=")[2]}.0"
{body}"""


def main(folder: Path) -> None:
    """Write the app into a folder that is not there yet."""
    folder.mkdir(parents=True)
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name,
            folder / name,
            ignore=lambda _, names: [each for each in names if not kept(each)],
        )
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(ROOT / "simulations" / "README.md", folder)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(pyproject(text), encoding="utf-8")


def kept(name: str) -> bool:
    """Tell whether a file or folder of the code belongs into the app."""
    return ("." not in name and name != "__pycache__") or name.endswith(".py")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
