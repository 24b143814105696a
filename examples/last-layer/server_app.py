"""The server: an app that fine-tunes the last layer, with one line added."""

import task
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.strategies import PNCS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and print the accuracy of each."""
    examples = task.load_test_data()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = task.load_model(arrays.to_torch_state_dict())
        loss, accuracy = task.evaluate(model, examples)
        print(f"round {server_round}: accuracy {accuracy:.3f}", flush=True)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = PNCS(FedAvg(), num_selected=3)  # was: FedAvg()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.travelling(task.load_model())),
        num_rounds=int(context.run_config["num-rounds"]),
        evaluate_fn=evaluate,
    )
