"""One run with a block of configuration and a summary table."""

import trackio

trackio.init(project="one", name="one", config={"model": "mlp", "width": 64})
for step in range(10):
    trackio.log({"loss": 1 / (step + 1)}, step=step)
trackio.finish()
