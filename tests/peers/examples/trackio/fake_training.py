"""As Trackio's fake-training: several runs of one project, ended once."""

import math

import trackio

EPOCHS = 5
for n in range(3):
    trackio.init(project="fake-training", name=f"run {n}", config={"epochs": EPOCHS, "n": n})
    for epoch in range(EPOCHS):
        loss = math.exp(-epoch / (n + 1))
        trackio.log({"epoch": epoch, "train/loss": loss, "val/acc": 1 - loss})
trackio.finish()
