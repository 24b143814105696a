"""The server: an app that trains adapters by LoRA, with one line added."""

import task
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pncs_flower.strategies import PNCS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds, and print the loss of each."""
    model = task.load_model()
    adapters, examples = task.travelling(model), task.load_test_data()
    travel = sum(value.numel() for value in adapters.values())
    stay = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    print(f"adapters: {travel:,} numbers travel, {stay:,} stay", flush=True)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss = task.evaluate(task.load_model(arrays.to_torch_state_dict()), examples)
        print(f"round {server_round}: loss {loss:.3f}", flush=True)
        return MetricRecord({"loss": loss})

    strategy = PNCS(FedAvg(), num_selected=3, queue_length=4)  # was: FedAvg()
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(adapters),
        num_rounds=int(context.run_config["num-rounds"]),
        evaluate_fn=evaluate,
    )
