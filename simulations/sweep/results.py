"""What a sweep left on disk: its description and its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from ..folders import BOARD, SWEEP, check_folder, near_folder, refuse_to_write_over
from ..run.folder import ROUNDS
from ..scores import SCORES, score_name
from ..validation import Text, read_description
from .cell import CELLS, Run, read_cell
from .plan import Report
from .sweep import ALL_CLIENTS, Tune


@dataclass(frozen=True)
class Tuned:
    """The learning rate that was chosen for a line of a panel, by validation examples."""

    panel: str
    line: str
    lr: float
    # By rate, the mean over the last rounds and over seeds; one that failed counts as the least.
    accuracies: Mapping[str, float]


# A sweep of another release may have settings that are not known here.
@checked_dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Description:
    """What a report needs to know of a sweep beside its runs."""

    title: Text
    report: Report
    cells: tuple[Annotated[str, Field(pattern=r"^[^/\\]+\.jsonl$")], ...] = ()
    panels: tuple[str, ...] = ()
    tune: Tune | None = None
    tuned: tuple[Tuned, ...] = ()
    command: str = ""  # that ran it; empty: by a release that did not note it, or by a script
    file: str = ""  # what stood in the sweep's file, unless it comes with the package


@dataclass(frozen=True)
class SweepResults:
    """All finished cells of a sweep, by panel, line and seed, and the names of those missing."""

    about: Description
    panels: Mapping[str, Mapping[str, Sequence[Run]]]
    missing: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """The line that every other is tested against; it may have no result."""
        return self.about.report.reference

    @property
    def score(self) -> str:
        """What a person calls that by which the runs are judged."""
        return SCORES[score_name(self.runs[0].rounds[0])]

    @property
    def lines(self) -> list[str]:
        """The lines that have a result in any panel."""
        return list(dict.fromkeys(line for lines in self.panels.values() for line in lines))

    @property
    def lost(self) -> list[str]:
        """The panels without any result."""
        return [panel for panel in self.about.panels if panel not in self.panels]

    @property
    def without_reference(self) -> list[str]:
        """The panels in which the reference has no result."""
        return [panel for panel, lines in self.panels.items() if self.reference not in lines]

    @cached_property
    def ceilings(self) -> frozenset[str]:
        """The lines of which every client sends its update: they do not compete."""
        return frozenset(run.cell["line"] for run in self.runs if run.cell["rule"] == ALL_CLIENTS)

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for _, _, runs in self.groups for run in runs]

    @property
    def groups(self) -> list[tuple[str, str, Sequence[Run]]]:
        """Panel, line and runs of all that differ in the seed alone."""
        return [(p, line, runs) for p, lines in self.panels.items() for line, runs in lines.items()]

    @property
    def shared(self) -> str:
        """What all panels have in common, such as ``"layers 1, selected 2"``."""
        first, *others = (panel.split(", ") for panel in self.panels)
        return ", ".join(part for part in first if all(part in other for other in others))

    def label(self, panel: str) -> str:
        """Return what sets a panel apart from the others; empty where there is but one."""
        shared = self.shared.split(", ")
        return ", ".join(part for part in panel.split(", ") if part not in shared)

    def row(self, panel: str, line: str) -> str:
        """Return what tells a line of a panel from all others."""
        return ": ".join(filter(None, (self.label(panel), line)))


def refuse_other_results(folder: Path, own: str) -> None:
    """Refuse a folder for results that is a file, or holds other results or somebody's files."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, and results need a folder: give another --output")
    for mark, kind in {ROUNDS: "a single run", SWEEP: "a sweep", BOARD: "a board"}.items():
        if mark != own and (folder / mark).exists():
            raise ValueError(f"{folder} holds {kind} already: give another --output")
    refuse_to_write_over(folder, own)


def make_folder(folder: Path) -> None:
    """Make a folder for results, or say why there is none to write to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{folder} is no folder that results can be written to: {error.strerror}. Give "
            "another --output"
        ) from None


def read_results(folder: Path) -> SweepResults:
    """Read a sweep's folder; names a file that is damaged."""
    check_folder(folder, SWEEP, maker="pncs compare")
    file = folder / SWEEP
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no {SWEEP}: give the folder that pncs compare, sweep or reproduce wrote "
            "(for table1, give pncs reproduce table1 again, which runs only what is missing; of a "
            "board, the folder of one of its settings)"
            f"{near_folder(folder, SWEEP)}"
        )
    about = read_description(Description, file, "ran the sweep")
    files = [folder / CELLS / name for name in about.cells]
    runs = [read_cell(path) for path in files if path.exists()]
    if not runs:
        raise ValueError(f"{folder} has no finished run, so there is nothing to report")
    panels: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(runs, key=lambda run: int(run.cell["seed"])):
        panels.setdefault(run.cell["panel"], {}).setdefault(run.cell["line"], []).append(run)
    return SweepResults(about, panels, tuple(path.stem for path in files if not path.exists()))
