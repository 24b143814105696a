"""MLflow: mlflow.start_run(), and then PNCS(FedAvg(), on_record=log)."""

from typing import Any

import mlflow


def log(row: dict[str, Any]) -> None:
    """Log a round in MLflow's run that is active."""
    values = {"bytes up": sum(row["bytes_up"].values()), "delivered": len(row["delivered"])}
    for where in ("train", "evaluate"):
        values |= {f"{where}/{k}": v for k, v in row[f"{where}_metrics_clientapp"].items()}
    mlflow.log_metrics(values | row["evaluate_metrics_serverapp"], step=row["round"])
