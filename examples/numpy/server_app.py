"""The server: a Flower app in NumPy alone, with one line added."""

import numpy as np
import task
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.strategies import PNCS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and print how far the weights are from the true ones."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        (weights,) = arrays.to_numpy_ndarrays()
        distance = float(np.linalg.norm(weights - task.true_weights()))
        print(f"round {server_round}: distance {distance:.3f}", flush=True)
        return MetricRecord({"distance": distance})

    strategy = PNCS(FedAvg(), num_selected=3)  # was: FedAvg()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(task.SIZE, np.float32)]),
        num_rounds=int(context.run_config["num-rounds"]),
        evaluate_fn=evaluate,
    )
