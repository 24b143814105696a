"""`pncs data`: what is found is counted, and what is missing or wrong says how to mend it."""

from pathlib import Path

import numpy as np
from PIL import Image
from typer.testing import CliRunner, Result

from pncs_flower.simulations.cli import app


def data(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["data", *arguments])


def test_digits_are_counted() -> None:
    done = data("check", "digits")
    assert done.exit_code == 0
    assert "training: 1442 examples" in done.output
    assert "test: 355 examples" in done.output


def test_a_missing_data_set_says_how_to_have_it(tmp_path: Path) -> None:
    done = data("check", "cifar10", "--data-dir", str(tmp_path))
    assert done.exit_code == 1
    assert "train/<class>" in done.output.replace("\n", "")


def test_a_data_set_of_another_size_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for label in range(10):
            folder = tmp_path / part / str(label)
            folder.mkdir(parents=True)
            Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(folder / "0.png")
    done = data("check", "cifar10", "--data-dir", str(tmp_path))
    assert done.exit_code == 1
    wanted = "should have 50000 training examples of 10 classes, but has 10 images"
    assert wanted in done.output.replace("\n", " ")


def test_each_data_set_is_listed_with_its_state(tmp_path: Path) -> None:
    done = data("list", "--data-dir", str(tmp_path))
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert lines["digits"].endswith("found")
    assert "not found" in lines["cifar10"]
