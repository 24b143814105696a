"""The server of the example: FedAvg with two sites in a round, which PNCS chooses."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sites import initial_arrays

from pncs_flower.strategies import PNCS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and leave a record of each round."""
    settings = context.run_config
    timeout = float(settings["timeout"])
    strategy = PNCS(
        FedAvg(),
        num_selected=int(settings["num-selected"]),
        seed=int(settings["seed"]),
        summary_timeout=timeout,
        history_path=str(settings["history"]) or None,
    )
    strategy.start(grid, initial_arrays(), num_rounds=int(settings["num-rounds"]), timeout=timeout)
