"""Runs that begin before the one before them is finished."""

import wandb

for n in range(2):
    with wandb.init(project="reinit", name=f"block {n}", config={"n": n}) as run:
        run.log({"a": n})
for n in range(2):
    run = wandb.init(
        project="reinit", name=f"call {n}", config={"n": 10 + n}, reinit="finish_previous"
    )
    run.log({"a": 10 + n})
