"""`radt.autolog`: make the libraries that a script imports record their training."""

from __future__ import annotations

import sys

from radt.integrations.hooks import call_after, when_imported
from radt.run.target import switched_off

#: Libraries with autologging in MLflow and no integration in radt.
_MLFLOW_LIBRARIES = ("sklearn", "xgboost", "lightgbm", "statsmodels")


def autolog() -> None:
    """Record all training in this process with libraries already imported or imported later.

    Lightning, transformers, Keras, Accelerate and TensorBoard's ``SummaryWriter`` are then recorded
    by `radt.integrations`, without changes to the script. If the script imports mlflow, MLflow's
    autologging is switched on for scikit-learn, XGBoost, LightGBM and statsmodels, but without
    models as artifacts.

    It opens no run: anything that trains or logs joins the open run (``radt.init()``, ``with
    radt.Run():``, a row of an experiment), or begins one. A run of MLflow becomes a run of radt
    with the same start and end; any other run lasts until the process ends. A second call changes
    nothing.
    """
    if switched_off():
        return
    for name in ("lightning.pytorch", "pytorch_lightning"):
        when_imported(name, _lightning)
    when_imported("transformers.trainer", _transformers)
    when_imported("keras", _keras)
    when_imported("accelerate", _accelerate)
    when_imported("torch.utils.tensorboard", _tensorboard)
    when_imported("mlflow", _mlflow)
    for name in _MLFLOW_LIBRARIES:
        when_imported(name, _mlflow)


def _lightning() -> None:
    from radt.integrations.lightning import add_to

    for name in ("lightning.pytorch", "pytorch_lightning"):
        if name in sys.modules:
            call_after(sys.modules[name].Trainer, "__init__", add_to)


def _transformers() -> None:
    from transformers.trainer import Trainer

    from radt.integrations.transformers import add_to

    call_after(Trainer, "__init__", add_to)


def _keras() -> None:
    import keras

    from radt.integrations.keras import record_fit

    record_fit(keras.Model)


def _accelerate() -> None:
    from accelerate import Accelerator

    from radt.integrations.accelerate import add_to

    call_after(Accelerator, "__init__", add_to)


def _tensorboard() -> None:
    from torch.utils.tensorboard import SummaryWriter

    from radt.integrations.tensorboard import record

    record(SummaryWriter)


def _mlflow() -> None:
    from radt.integrations.mlflow import HomeServer, autolog_library
    from radt.run.mlflow_calls import begin_runs

    if "mlflow" in sys.modules:
        begin_runs(HomeServer())
    for name in _MLFLOW_LIBRARIES:
        autolog_library(name)
