"""What takes long is shown with the time that is left, and in a log by a line now and then."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from pncs_flower.simulations.cli import console
from pncs_flower.simulations.how_far import listening, tell
from pncs_flower.simulations.models.frozen import _run


@pytest.mark.parametrize("width", [30, 80])
def test_a_terminal_has_a_bar_for_it_and_for_what_it_waits_for(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StringIO()
    monkeypatch.setattr(console, "out", Console(file=file, force_terminal=True, width=width))
    monkeypatch.setattr(console, "_OFTEN", 0.0)
    with console.progress_bar("runs", 4, thread=False) as (bar, task):
        bar.update(task, advance=1, refresh=True)
        tell("images", 100, 200)
        assert [each.description for each in bar.tasks] == ["runs", "images"]
        tell("images", 200, 200)
        assert [each.description for each in bar.tasks] == ["runs"]
    shown = file.getvalue()
    assert "runs" in shown
    if width == 80:
        assert "1/4" in shown
        assert "100/200" in shown


def test_a_log_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    monkeypatch.setattr(console, "out", Console(file=file))
    monkeypatch.setattr(console, "_OFTEN", 0.0)
    with console.progress_bar("runs"):
        tell("images", 1, 3)
        monkeypatch.setattr(console, "NEWS_IN_LOG", 0.0)
        tell("images", 2, 3)
    tell("images", 3, 3)
    assert file.getvalue() == "images: 2 of 3\n"


def test_the_frozen_layers_tell_how_far_they_are(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with listening(lambda *news: told.append(news)):
        _run(nn.Flatten(), np.zeros((600, 2), np.float32), torch.from_numpy, tmp_path / "train.npy")
    assert told == [("frozen layers, train", n, 600) for n in (250, 500, 600)]
