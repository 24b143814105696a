"""Weights & Biases: PNCS(FedAvg(), on_record=log_to(wandb.init(project="federation")))."""

from collections.abc import Callable
from typing import Any

import wandb


def log_to(run: "wandb.Run") -> Callable[[dict[str, Any]], None]:
    """Return a function that logs each round in a run of Weights & Biases."""

    def log(row: dict[str, Any]) -> None:
        values = {"bytes up": sum(row["bytes_up"].values()), "delivered": len(row["delivered"])}
        for where in ("train", "evaluate"):
            values |= {f"{where}/{k}": v for k, v in row[f"{where}_metrics_clientapp"].items()}
        run.log(values | row["evaluate_metrics_serverapp"], step=row["round"])

    return log
