"""The server of the app: `flwr run` starts it, and everything it does is in `training`."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from .config import Config
from .machine.processes import stop_hung_workers
from .report.of_run import final_table, round_line
from .run.folder import output_path
from .run.preflight import check_run
from .run.training import train

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, say how it goes, and leave the results in the output folder."""
    config = Config.from_run_config(context.run_config)
    check_run(config)  # for who calls `flwr run`; `pncs run` has checked before
    output = output_path(config)
    try:
        train(
            grid, config, output, lambda row: print(round_line(row, config.num_rounds), flush=True)
        )
        from .report.picture_of_round import draw_round
        from .report.picture_of_run import draw_rounds

        draw_rounds(output)
        draw_round(output)
        # Flower's log has no width; a table must have one.
        Console(width=100).print(final_table(output))
        print(f"Results: {output}", flush=True)
    finally:
        stop_hung_workers()
