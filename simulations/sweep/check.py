"""What can be known to go wrong in a cell, told before any cell runs."""

from collections.abc import Iterable
from dataclasses import replace

from ..config import Agreeing, Config
from ..run.preflight import check_device, check_run
from ..task import load_inputs
from .sweep import Cell

__all__ = ["CellChecks"]


class CellChecks:
    """Checks cells, and what many of them share but once.

    Parameters
    ----------
    elsewhere : bool
        Whether the cells run on other machines, whose devices are not known.
    """

    def __init__(self, elsewhere: bool) -> None:
        self._elsewhere = elsewhere
        self._settings: set[tuple[Config, int]] = set()
        self._partitions: set[tuple[Agreeing, int]] = set()

    def check(self, cells: Iterable[Cell]) -> None:
        """Check data, strategy, layers, device and how the examples are divided.

        Raises
        ------
        ValueError, FileNotFoundError
            If a cell cannot be run; names it.
        """
        for cell in cells:
            config, clients = cell.config, cell.clients
            # Every seed has a partition of its own; nothing else depends on it, or on the rate.
            settings = replace(config, seed=0, lr=1.0), clients
            partition = config.of_parts(), clients
            try:
                if settings not in self._settings:
                    if not self._elsewhere:
                        check_device(config)
                    check_run(config)
                if partition not in self._partitions:
                    load_inputs(config).check_division(config, clients)
            except ValueError as error:
                where = f"{cell.panel}, {cell.line}, seed {cell.seed}"
                raise ValueError(f"{where}: {error}") from error
            self._settings.add(settings)
            self._partitions.add(partition)
