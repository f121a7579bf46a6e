"""Runs that W&B itself writes offline."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
import math, sys
import numpy as np
import wandb

with wandb.init(
    project="vision", name="resnet", id="resnet-1", group="sweep", job_type="train",
    tags=["a", "b"], notes="hello", config={"lr": 0.1, "opt": {"name": "adam", "betas": [0.9]}},
) as run:
    run.log({"loss": 1.0, "val": {"acc": 0.5}, "text": "x", "flag": True})
    run.log({"loss": math.nan})
    run.log({"loss": math.inf}, step=10)
    run.log({
        "picture": wandb.Image(np.zeros((4, 4, 3), dtype=np.uint8)),
        "table": wandb.Table(columns=["x"], data=[[1]]),
        "histogram": wandb.Histogram([1, 2, 3]),
    })
    for step in range(20, 2000):
        run.log({"loss": step / 4, "a/b": -step}, step=step)
    run.config.update({"late": 5})
    run.summary["best"] = 0.25
    print("it trains")
    steps = run.step
with wandb.init(project="vision", id="resnet-1", name="resnet", resume="allow") as run:
    run.log({"loss": 9.0}, step=5000)
wandb.init(name="failing").log({"loss": 1.0})
sys.exit(3)
"""


@dataclass(frozen=True)
class Folder:
    """Where W&B wrote."""

    path: Path

    def files(self, run_id: str) -> list[Path]:
        """The logs of a run, the oldest first."""
        found = self.path.rglob(f"run-{run_id}.wandb")
        return sorted(
            {path.resolve() for path in found}, key=lambda path: path.parent.stat().st_ctime_ns
        )


def record(folder: Path) -> Folder:
    """Write three runs of a script that ends with an error, one of them a resumed one."""
    script = folder / "train.py"
    script.write_text(_SCRIPT)
    environ = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    return Folder(folder / "wandb")
