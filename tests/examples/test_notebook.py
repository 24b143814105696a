"""The notebook runs from its first cell to its last, as Jupyter runs it."""

import re
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs pncs-flower[dev]")
nbformat = pytest.importorskip("nbformat", reason="needs pncs-flower[dev]")
pytest.importorskip("ipykernel", reason="needs pncs-flower[dev]")
pytest.importorskip("torch", reason="needs pncs-flower[simulation]")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def read() -> Any:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    return notebook


def texts(cell: Any, kind: str = "stdout") -> str:
    return "".join(each.text for each in cell.outputs if each.get("name") == kind)


def test_it_is_kept_without_outputs_and_installs_in_its_first_cell_alone() -> None:
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    assert ["%pip" in cell.source for cell in cells] == [True] + [False] * (len(cells) - 1)


@pytest.mark.minutes
def test_it_runs_and_ends_with_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = read()
    (server,) = [cell for cell in notebook.cells if cell.id == "server"]
    server.source, changed = re.subn(r"(InProcessGrid\(.*)\)", r"\1, workers=2)", server.source)
    assert changed == 1  # functions of cells reach processes too
    nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    assert cells["install"].outputs == []
    assert all(texts(cell, "stderr") == "" for cell in cells.values())
    assert texts(cells["data"]).count("digits [") == 10
    assert "round 5: " in texts(cells["server"])
    table = [line.split() for line in texts(cells["compare"]).splitlines()]
    scores = {" ".join(words[:-7]): float(words[-6].rstrip(",")) for words in table}
    assert [*scores] == ["sketched mean", "PNCS", "uniform", "all"]
    assert scores["all"] > 0.75
    (picture,) = [each for each in cells["plot"].outputs if each.output_type == "display_data"]
    assert "image/png" in picture.data
