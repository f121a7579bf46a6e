"""PyTorch's SummaryWriter, and what all integrations share."""

from __future__ import annotations

import subprocess
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integrations.kit import NO_STEP, trainings
from tests.run.conftest import Alone, Joined

SCRIPT = """\
import radt
import torch
from radt.integrations.tensorboard import SummaryWriter

def write(writer):
    with writer:
        for step in range(3):
            writer.add_scalar("loss", torch.tensor(2.0**-step), step)
            writer.add_scalars("acc", {"top1": step, "top5": 2 * step}, step)
        writer.add_text("note", "text")
        writer.add_hparams({"lr": 0.1}, {"best": 0.5}, run_name="hparams")

write(SummaryWriter("tb/first"))
radt.finish()
radt.init(name="off", mode="disabled")
write(SummaryWriter("tb/off"))
radt.finish()
radt.autolog()
radt.autolog()
from torch.utils.tensorboard import SummaryWriter as Plain
with radt.Run(name="autolog"):
    write(Plain("tb/autolog"))
with radt.Run(name="both"):
    write(SummaryWriter("tb/both"))
"""


def test_scalars_go_to_the_run_as_well(alone: Alone) -> None:
    alone.run(SCRIPT)
    runs = trainings(alone.reader)
    assert len(runs) == 3
    for name, run in runs.items():
        assert run.metrics == {
            "loss": [(0, 1.0), (1, 0.5), (2, 0.25)],
            "acc/top1": [(0, 0.0), (1, 1.0), (2, 2.0)],
            "acc/top5": [(0, 0.0), (1, 2.0), (2, 4.0)],
            "best": [(NO_STEP, 0.5)],
        }, name
        assert run.params["lr"] == "0.1", name
    for name in ("first", "off"):
        events = EventAccumulator(str(alone.folder / "tb" / name))
        events.Reload()
        assert [event.step for event in events.Scalars("loss")] == [0, 1, 2]


def test_a_row_is_joined(joined: Joined) -> None:
    joined.run(
        "from radt.integrations.tensorboard import SummaryWriter\n"
        "SummaryWriter('tb').add_scalar('loss', 0.5, 3)\n"
    )
    found = joined.found()
    assert (found.values("loss"), found.steps("loss")) == ([0.5], [3])


def test_a_library_that_is_missing_is_named() -> None:
    program = (
        "import importlib, sys\n"
        "from radt.errors import UsageError\n"
        "for library in ('lightning', 'transformers', 'keras', 'accelerate', 'tensorboard'):\n"
        "    for name in (library, 'pytorch_lightning', 'torch'):\n"
        "        sys.modules[name] = None\n"
        "    try: importlib.import_module(f'radt.integrations.{library}')\n"
        "    except ImportError as error:\n"
        "        assert isinstance(error, UsageError)\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    for line, library in zip(
        lines, ("lightning", "transformers", "keras", "accelerate", "tensorboard"), strict=True
    ):
        assert line.startswith(f"radt.integrations.{library} needs the package {library}")
        assert line.endswith(f"Run `pip install {library}`")


def test_autolog_imports_no_library() -> None:
    program = "import sys, radt; radt.autolog(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    heavy = {"torch", "mlflow", "lightning", "transformers", "keras", "accelerate", "sklearn"}
    assert not heavy & set(done.stdout.split())
