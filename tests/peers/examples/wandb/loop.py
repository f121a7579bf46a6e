"""A search without a sweep: a run for each configuration, with its name set later."""

import wandb

for lr in (0.1, 0.2, 0.3):
    run = wandb.init(project="loop", group="search", tags=["grid"], config={"lr": lr})
    run.name = f"lr {lr}"
    run.define_metric("loss", summary="min")
    for step in range(4):
        wandb.log({"loss": lr * step, "epoch": step}, step=step)
    wandb.finish()
