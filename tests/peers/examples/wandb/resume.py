"""Goes on with a run by its id."""

import wandb

for n in range(2):
    wandb.init(project="resume", id="one-run-of-two-parts", name="resumed", resume="allow")
    wandb.log({"a": n})
    wandb.finish()
