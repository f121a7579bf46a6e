"""The trainer of transformers, with a tiny model of random weights."""

from __future__ import annotations

from radt.delivery.mlflow.database import prepare
from radt.model import RunStatus
from tests.integrations.kit import steps_of, trainings
from tests.run.conftest import Alone

SCRIPT = """\
import os
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
import radt
from radt.integrations.transformers import RadtCallback

config = BertConfig(
    vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
)
data = [{"input_ids": [i % 10, 3, 4], "labels": i % 2} for i in range(8)]

def train(callbacks=None, **more):
    given = {
        "num_train_epochs": 2, "per_device_train_batch_size": 2, "learning_rate": 0.01,
        "logging_steps": 2, "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
        "eval_strategy": "epoch",
    }
    model = BertForSequenceClassification(config)
    trainer = Trainer(
        model, TrainingArguments("out", **given | more), train_dataset=data, eval_dataset=data,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer

train([RadtCallback()], run_name="tiny", hub_token="secret")
radt.finish()

radt.init(name="steps")
trainer = train(
    [RadtCallback()], eval_strategy="steps", eval_steps=2, max_steps=6,
    gradient_accumulation_steps=2,
)
trainer.evaluate()
trainer.predict(data)
radt.finish()

radt.init(name="mlflow")
train([RadtCallback()], report_to="mlflow")
radt.finish()

os.environ["RADT_MAX_EPOCH"] = "1"
radt.init(name="limited")
assert train([RadtCallback()]).state.global_step == 4
radt.finish()
del os.environ["RADT_MAX_EPOCH"]

radt.autolog()
with radt.Run(name="autolog"):
    train(report_to="tensorboard")
"""


def test_its_trainer(alone: Alone) -> None:
    prepare(alone.folder / "mlflow.db")
    alone.run(SCRIPT, MLFLOW_TRACKING_URI="sqlite:///mlflow.db", TENSORBOARD_LOGGING_DIR="tb")
    runs = trainings(alone.reader)
    assert {run.status for run in runs.values()} == {RunStatus.FINISHED}
    tiny = runs["tiny"]
    assert steps_of(tiny.metrics["loss"]) == [2, 4, 6, 8]
    assert steps_of(tiny.metrics["eval_loss"]) == [4, 8]
    assert steps_of(tiny.metrics["train_loss"]) == [8]
    assert steps_of(tiny.metrics["learning_rate"]) == [2, 4, 6, 8]
    assert "epoch" not in tiny.metrics
    assert (tiny.epochs, tiny.spans) == ([1, 2], {"validate": 2})
    assert tiny.measured["step.time"] == 8
    assert set(tiny.measured) == {"step.time", "samples_per_s", "data_wait"}
    expected = {
        "learning_rate": "0.01",
        "num_train_epochs": "2",
        "per_device_train_batch_size": "2",
        "weight_decay": "0.0",
        "model.model_type": "bert",
        "model.hidden_size": "8",
    }
    assert expected.items() <= tiny.params.items()
    # Those that have their defaults, and what is no one's business.
    assert not {"warmup_steps", "hub_token", "output_dir", "run_name"} & set(tiny.params)
    assert "secret" not in str(tiny.params)

    steps = runs["steps"]
    # 4 batches of 2 make 2 steps an epoch; evaluations by steps, at the end, and predictions.
    assert steps.epochs == [1, 2, 3]
    assert steps_of(steps.metrics["eval_loss"]) == [2, 4, 6, 6]
    assert steps.spans == {"validate": 5}
    assert steps.measured["step.time"] == 6

    for name in ("mlflow", "autolog"):
        assert steps_of(runs[name].metrics["loss"]) == [2, 4, 6, 8], name
        assert (runs[name].epochs, runs[name].spans) == ([1, 2], {"validate": 2}), name
        assert expected.items() <= runs[name].params.items(), name
    assert not [name for name in runs["autolog"].metrics if name.startswith(("train/", "eval/"))]
    assert runs["limited"].epochs == [1]
