"""TensorBoard: PNCS(FedAvg(), on_record=log_to(SummaryWriter("runs/one")))."""

from collections.abc import Callable
from typing import Any

from torch.utils.tensorboard import SummaryWriter


def log_to(writer: SummaryWriter) -> Callable[[dict[str, Any]], None]:
    """Return a function that logs each round for TensorBoard."""

    def log(row: dict[str, Any]) -> None:
        values = {"bytes up": sum(row["bytes_up"].values()), "delivered": len(row["delivered"])}
        for where in ("train", "evaluate"):
            values |= {f"{where}/{k}": v for k, v in row[f"{where}_metrics_clientapp"].items()}
        for name, value in (values | row["evaluate_metrics_serverapp"]).items():
            writer.add_scalar(name, value, row["round"])
        writer.flush()

    return log
