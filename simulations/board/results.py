"""What a board left on disk: what it is, and in each setting how every rule did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from pncs_flower.files import write_whole
from pncs_flower.strategies import SelectionStrategy
from pncs_flower.strategies.combinations import parse_combination

from ..config import Config, default_run_config
from ..folders import BOARD, SWEEP, near_folder
from ..run.strategy import build_strategy
from ..sweep.cell import CELLS, Run
from ..sweep.progress import Reached, Spent, Vector, known, to_reach
from ..sweep.results import SweepResults, make_folder, read_results, refuse_other_results
from ..sweep.statistics import mean_interval, sortable
from ..validation import Text, read_description
from .file import Board, See
from .ranks import Ranking, rank

UNIFORM = "uniform"
"""The line that others are held beside, where it is there."""

_NEAR = 0.9  # of the ceiling's score at the end: the target of rounds, time and bytes


# A board of another release may have more than is known here.
@checked_dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Federation:
    """What a report needs to know of a setting beside its runs."""

    name: Text
    about: Text = ""


@checked_dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Description:
    """What a report needs to know of a board beside its settings' sweeps."""

    title: Text
    setting: Mapping[str, Federation]
    about: Text = ""
    rounds: tuple[int, ...] = ()
    see: tuple[See, ...] = ()
    command: str = ""


class Queue(NamedTuple):
    """For how long clients rest after their turn, of how many, and how many are selected."""

    length: int | None  # in clients; None: as long as leaves a choice
    rounds: int  # at most, if it changes from round to round
    selected: int
    clients: int

    @property
    def is_rotation(self) -> bool:
        """Whether so many rest that nothing is left to choose: each has its turn."""
        return self.rounds > 0 and self.clients <= (self.rounds + 1) * self.selected


@dataclass(frozen=True)
class Standings:
    """How every line did in one setting."""

    name: str
    about: str
    results: SweepResults

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """The runs of each line that has any."""
        (by_line,) = self.results.panels.values()
        return by_line

    @property
    def first(self) -> Run:
        """One of the runs, for what all of them share."""
        return next(iter(self.runs.values()))[0]

    @property
    def ceiling(self) -> str | None:
        """The line of which every client sends its update, if there is one."""
        return next((line for line in self.runs if line in self.results.ceilings), None)

    @property
    def competing(self) -> list[str]:
        """The lines but for the ceiling."""
        return [line for line in self.runs if line not in self.results.ceilings]

    @cached_property
    def ends(self) -> dict[str, float]:
        """The score at the end of each line, the mean of its last rounds and seeds."""
        return {
            line: float(np.mean([r.converged for r in runs])) for line, runs in self.runs.items()
        }

    def after(self, number: int) -> dict[str, float]:
        """Return the score of each line after a round; nothing of runs that end before it."""
        return {
            line: float(np.mean([run.scores[number - 1] for run in runs]))
            for line, runs in self.runs.items()
            if all(len(run.scores) >= number for run in runs)
        }

    def half(self, line: str) -> float:
        """Return half of the 95% interval of the score at the end; NaN with one seed."""
        return float(mean_interval(np.array([run.converged for run in self.runs[line]]))[1])

    def above_uniform(self, line: str) -> bool | None:
        """Tell whether a line ends above uniform selection; None where there is no such line."""
        if UNIFORM not in self.ends or line == UNIFORM or line not in self.ends:
            return None
        return self.ends[line] > self.ends[UNIFORM]

    @cached_property
    def best(self) -> str:
        """The competing line with the highest score at the end."""
        return max(self.competing, key=lambda line: sortable(self.ends[line]))

    def place(self, line: str) -> int:
        """Return at which place a line ends, 1 for the highest; equals share it."""
        return 1 + sum(self.ends[other] > self.ends[line] for other in self.competing)

    def behind(self, line: str) -> float | None:
        """Return by how much a line ends below the ceiling; None where there is none."""
        return None if self.ceiling is None else self.ends[self.ceiling] - self.ends[line]

    @cached_property
    def target(self) -> float:
        """The score that runs are to reach: near the end of all clients, or else of the best."""
        return _NEAR * self.ends[self.ceiling or self.best]

    def to_target(self, line: str, spent: Spent) -> Reached | None:
        """Return what it took to reach the target; None where it is not known."""
        runs = self.runs[line]
        return to_reach(runs, spent, self.target) if known(runs, spent) else None

    def training(self, line: str) -> float:
        """Return how many clients train in a round, or compute a gradient of all their examples."""
        rows = sum(len(run.trained) for run in self.runs[line])
        return sum(float(_trainings(run)[: len(run.trained)][-1]) for run in self.runs[line]) / rows

    def only_the_chosen_train(self, line: str) -> bool:
        """Tell whether nobody trained here but those who sent, though others may be asked to."""
        runs = self.runs[line]
        return not asks_for_training(runs[0]) or all(
            {*row["asked"]} <= {*row["chosen"]} for run in runs for row in run.trained
        )

    def queue(self, line: str) -> Queue:
        """Return who rests with a line."""
        run = self.runs[line][0]
        strategy, clients = strategy_of(run), int(run.cell["clients"])
        selected = strategy.rule.num_selected
        length = strategy.options.clients_in_queue(selected)
        if length is None:
            rounds = max(row["rest_rounds"] for row in run.rounds)
        else:
            rounds = length // selected
        return Queue(length, rounds, selected, clients)


@dataclass(frozen=True)
class BoardResults:
    """All settings of a board that have results, and the names of those that have none."""

    about: Description
    settings: Mapping[str, Standings]
    missing: tuple[str, ...] = ()

    @cached_property
    def ranking(self) -> Ranking:
        """The ranks of all competing lines by their scores at the end."""
        return rank({s.name: {r: s.ends[r] for r in s.competing} for s in self.settings.values()})

    def ranking_after(self, number: int) -> Ranking:
        """Return the ranks after a round, in the settings whose runs are so long."""
        scores: dict[str, dict[str, float]] = {}
        for each in self.settings.values():
            after = each.after(number)
            if own := {line: after[line] for line in each.competing if line in after}:
                scores[each.name] = own
        return rank(scores)

    @cached_property
    def only_the_chosen_train(self) -> list[str]:
        """The competing lines with which nobody trains but those who send, in all settings."""
        there = {line: [s for s in self.settings.values() if line in s.runs] for line in self.lines}
        return [
            line
            for line, own in there.items()
            if all(each.only_the_chosen_train(line) for each in own)
        ]

    @property
    def ranking_of_senders(self) -> Ranking:
        """The ranks at the end among the lines with which only those who send train."""
        own = self.only_the_chosen_train
        return rank(
            {s.name: {r: s.ends[r] for r in own if r in s.ends} for s in self.settings.values()}
        )

    @property
    def lines(self) -> list[str]:
        """The competing lines, the best first by their mean rank; those without a rank last."""
        ranked = [*self.ranking.rules] if self.ranking.settings else []
        there = (line for each in self.settings.values() for line in each.competing)
        return list(dict.fromkeys([*ranked, *there]))


def describe(board: Board, folder: Path, command: str) -> None:
    """Write down what a board is; settings that are run another time are named too."""
    refuse_other_results(folder, BOARD)
    make_folder(folder)
    about = Description(
        board.title,
        {key: Federation(each.name, each.about) for key, each in board.setting.items()},
        board.about,
        board.report.rounds,
        board.see,
        command,
    )
    write_whole(folder / BOARD, TypeAdapter(Description).dump_json(about))


def read_board_results(folder: Path) -> BoardResults:
    """Read a board's folder, with the settings that have results; names a file that is damaged."""
    file = folder / BOARD
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} has no {BOARD}: give the folder that pncs reproduce or sweep wrote for a "
            f"board{near_folder(folder, BOARD)}"
        )
    about = read_description(Description, file, "made the board")
    settings, missing = {}, []
    for key, each in about.setting.items():
        own = folder / key
        if (own / SWEEP).is_file() and any((own / CELLS).glob("*.jsonl")):
            found = Standings(each.name, each.about, read_results(own))
            if found.competing:
                settings[key] = found
        if key not in settings:
            missing.append(each.name)
    if not settings:
        raise ValueError(f"{folder} has no setting with a finished run: nothing to report")
    return BoardResults(about, settings, tuple(missing))


def _trainings(run: Run) -> Vector:
    """Return how often clients had trained up to each round, shape (rounds,)."""
    before = asks_for_training(run)
    asked = ({*row["asked"]} if before else set() for row in run.rounds)
    pairs = zip(asked, run.rounds, strict=True)
    return np.cumsum([float(len(own | {*row["chosen"]})) for own, row in pairs])


def strategy_of(run: Run) -> SelectionStrategy:
    """Return the strategy that a run was made with."""
    here = default_run_config()
    own: dict[str, Any] = {key: run.cell["settings"].get(key, here[key]) for key in here}
    return build_strategy(Config.from_run_config(own))


def asked_for(run: Run) -> str | None:
    """Return what clients are asked for before the choice: a kind of summary; None for nothing."""
    strategy = strategy_of(run)
    request = parse_combination(strategy.options.combine).request(strategy.rule.request)
    return None if request is None else request.kind


def asks_for_training(run: Run) -> bool:
    """Tell whether clients are asked for a summary of their update, or of their gradient."""
    return asked_for(run) not in (None, "loss")


TRAININGS = Spent("trainings", _trainings)
"""How often a client has computed an update, or a gradient of all its examples."""
