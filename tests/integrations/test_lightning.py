"""Lightning's own trainer, under both names, with radt's logger, callback, and `radt.autolog`."""

from __future__ import annotations

import pytest

from radt.delivery.mlflow.database import prepare
from radt.model import RunStatus
from tests.integrations.kit import steps_of, trainings
from tests.run.conftest import Alone

MODEL = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self, hidden=4, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(3, 1)
    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)
    def training_step(self, batch, i):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, i):
        self.log("val_loss", self.loss(batch))
    def test_step(self, batch, i):
        self.log("test_loss", self.loss(batch))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

x = torch.arange(24.0).reshape(8, 3) / 24
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)
quick = dict(
    max_epochs=2, log_every_n_steps=2, accelerator="cpu", enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False, num_sanity_val_steps=0,
)
"""

SCRIPT = (
    "import lightning as L\n"
    + MODEL
    + """\
import os
import radt
from lightning.pytorch.loggers import MLFlowLogger
from radt.integrations.lightning import LightningLogger, RadtCallback

# Nothing is open: the logger begins the run.
trainer = L.Trainer(logger=LightningLogger(), **quick | {"enable_checkpointing": True})
trainer.fit(Net(), data, data)
trainer.test(Net(), data, verbose=False)
run = trainer.logger.experiment
test_loss = float(trainer.callback_metrics["test_loss"])
assert run is radt.active_run() and trainer.logger.version == run.id
assert os.path.isdir(f"lightning_logs/{run.id}/checkpoints"), os.listdir("lightning_logs")
radt.finish()

# MLflow's logger logs the values, and the callback the rest.
radt.init(name="mlflow")
logger = MLFlowLogger(tracking_uri="sqlite:///mlflow.db")
L.Trainer(logger=logger, callbacks=[RadtCallback()], **quick).fit(Net(), data, data)
radt.finish()

with radt.Run(name="both"):
    loggers = [MLFlowLogger(tracking_uri="sqlite:///mlflow.db"), LightningLogger()]
    L.Trainer(logger=loggers, **quick).fit(Net(), data, data)

os.environ["RADT_MAX_EPOCH"] = "1"
radt.init(name="limited")
L.Trainer(logger=False, callbacks=[RadtCallback()], **quick).fit(Net(), data, data)
radt.finish()
del os.environ["RADT_MAX_EPOCH"]

radt.autolog()
radt.autolog()
radt.init(name="broken")
def fail(*args, **kwargs):
    raise OSError("the disk is on fire")
epoch, radt.Run.epoch = radt.Run.epoch, fail
trainer = L.Trainer(logger=False, **quick)
trainer.fit(Net(), data, data)
assert trainer.current_epoch == 2
radt.Run.epoch = epoch
print(test_loss)
"""
)


def test_with_logger_and_callback(alone: Alone) -> None:
    prepare(alone.folder / "mlflow.db")
    out, err = alone.run(SCRIPT)
    runs = trainings(alone.reader)
    (first,) = [run for name, run in runs.items() if name.startswith("script0")]
    assert first.status is RunStatus.FINISHED
    assert steps_of(first.metrics["train_loss"]) == [1, 3, 5, 7]
    assert steps_of(first.metrics["val_loss"]) == [3, 7]
    ((_, test_loss),) = first.metrics["test_loss"]
    assert test_loss == float(out.splitlines()[-1])
    assert set(first.metrics) == {"train_loss", "val_loss", "test_loss"}
    assert first.epochs == [1, 2]
    assert first.spans == {"validate": 2, "test": 1}
    assert first.measured["step.time"] == 8 and set(first.measured) == {
        *("step.time", "samples_per_s", "data_wait"),
    }
    expected = {"hidden": "4", "lr": "0.05", "max_epochs": "2", "optimizer": "SGD"}
    assert expected.items() <= first.params.items()

    for name in ("mlflow", "both"):
        assert set(runs[name].metrics) == {"epoch", "train_loss", "val_loss"}, name
        assert steps_of(runs[name].metrics["train_loss"]) == [1, 3, 5, 7], name
        assert (runs[name].epochs, runs[name].spans) == ([1, 2], {"validate": 2}), name
        assert expected.items() <= runs[name].params.items(), name
    assert runs["limited"].epochs == [1]
    assert runs["limited"].tags["radt.limit"] == "1 epoch"
    assert steps_of(runs["broken"].metrics["train_loss"]) == [1, 3, 5, 7]
    assert runs["broken"].epochs == []
    messages = [line for line in err.splitlines() if line.startswith("radt:")]
    assert sum("the disk is on fire. Training goes on" in line for line in messages) == 1, err


AUTOLOG_SCRIPT = (
    "import radt; radt.autolog()\nimport pytorch_lightning as L\n"
    + MODEL
    + """\
import sys
assert "lightning.pytorch" not in sys.modules
with radt.Run(name="first", params={"lr": 7}):
    trainer = L.Trainer(**quick)
    trainer.fit(Net(), data, data)
assert [type(one).__name__ for one in trainer.loggers] == ["TensorBoardLogger", "LightningLogger"]
assert trainer.log_dir.endswith("version_0")
# Outside of a block it begins a run, which the next training joins.
for _ in range(2):
    L.Trainer(logger=False, **quick).fit(Net(), data)
raise SystemExit(3)
"""
)


@pytest.mark.long
def test_autolog_before_the_older_name_is_imported(alone: Alone) -> None:
    """Its TensorBoard logger, which it has by default, does not log values a second time."""
    alone.run(AUTOLOG_SCRIPT, code=3)
    runs = trainings(alone.reader)
    assert len(runs) == 2
    first = runs.pop("first")
    assert steps_of(first.metrics["train_loss"]) == [1, 3, 5, 7]
    assert set(first.metrics) == {"train_loss", "val_loss"}
    assert (first.epochs, first.spans) == ([1, 2], {"validate": 2})
    ((_, second),) = runs.items()
    assert second.epochs == [1, 2, 1, 2]
    assert second.params["lr"] == "0.05"
