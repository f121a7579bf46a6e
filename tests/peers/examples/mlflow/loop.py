"""The usual loop: a run for each value of a parameter; the last one fails."""

import sys

import mlflow

mlflow.set_experiment("loop")
for n, lr in enumerate((0.1, 0.2, 0.3)):
    with mlflow.start_run(run_name=f"trial {n}"):
        mlflow.log_param("lr", lr)
        mlflow.log_metrics({"loss": 1 / lr, "epoch": n}, step=n)
        if n == 2:
            sys.exit(3)
