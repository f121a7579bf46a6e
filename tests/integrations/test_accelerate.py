"""Accelerate's trackers, whose scripts write their loops themselves."""

from __future__ import annotations

import pytest

from radt.model import RunStatus
from tests.integrations.kit import steps_of, trainings
from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.daemon import free_port

SCRIPT = """\
import sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
import radt
from radt.integrations.accelerate import RadtTracker

def train(config, **more):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **more)
    accelerator.init_trackers("demo", config=config)
    x = torch.arange(24.0).reshape(8, 3) / 24
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=1)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"])
    net, optimizer, training, validation = accelerator.prepare(net, optimizer, data, data)
    for epoch in range(2):
        net.train()
        for a, b in training:
            with accelerator.accumulate(net):
                loss = torch.nn.functional.mse_loss(net(a), b)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        net.eval()
        with torch.no_grad():
            for a, b in validation:
                loss = torch.nn.functional.mse_loss(net(a), b)
        accelerator.log({"val_loss": loss.item()}, step=epoch + 1)
        accelerator.log({"counted": epoch})
    if accelerator.is_main_process and accelerator.trackers:
        assert accelerator.get_tracker("radt", unwrap=True) is radt.active_run()
    accelerator.end_training()
    accelerator.free_memory()

train({"lr": 0.1}, log_with=RadtTracker())
radt.finish()
if "more" in sys.argv:
    radt.autolog()
    with radt.Run(name="autolog"):
        train({"lr": 0.2}, log_with="tensorboard", project_dir="tb")
"""


def test_its_tracker(alone: Alone) -> None:
    alone.run(SCRIPT, "more")
    runs = trainings(alone.reader)
    assert len(runs) == 2
    for name, run in runs.items():
        assert run.status is RunStatus.FINISHED
        assert set(run.metrics) == {"val_loss", "counted"}, name
        assert steps_of(run.metrics["val_loss"]) == [1, 2], name
        assert steps_of(run.metrics["counted"]) == [1, 2], name
        assert (run.epochs, run.spans) == ([1, 2], {"validate": 2}), name
        assert run.measured["step.time"] == 8 and "samples_per_s" in run.measured, name
        assert run.params["lr"] == ("0.2" if name == "autolog" else "0.1")


@pytest.mark.long
def test_of_several_processes_the_first_logs(alone: Alone) -> None:
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        alone.start(SCRIPT, RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, out + err
    ((_, run),) = trainings(alone.reader).items()
    assert steps_of(run.metrics["val_loss"]) == [1, 2]
    assert (run.epochs, run.spans) == ([1, 2], {"validate": 2})
