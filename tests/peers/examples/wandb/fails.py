"""Logs what is no number, and ends with an exit code."""

import sys

import wandb

run = wandb.init(project="fails", name="fails", notes="on purpose")
run.log({"a": 1, "text": "hello", "table": wandb.Table(columns=["x"], data=[[1]])})
run.config.late = True
run.alert("low", "as expected")
sys.exit(3)
