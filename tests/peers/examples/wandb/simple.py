"""As W&B's quickstart."""

import random

import wandb

random.seed(1)
run = wandb.init(
    project="my-awesome-project",
    name="first",
    config={"learning_rate": 0.02, "architecture": "CNN", "optimizer": {"name": "sgd"}},
)
offset = random.random() / 5
for epoch in range(2, 10):
    acc = 1 - 2**-epoch - random.random() / epoch - offset
    loss = 2**-epoch + random.random() / epoch + offset
    run.log({"acc": acc, "train": {"loss": loss}})
run.summary["best_accuracy"] = 0.75
run.finish()
