"""Lightning, as ``lightning`` or ``pytorch_lightning``: a logger and a callback."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from radt.integrations.hooks import guarded, in_one_process, needs
from radt.integrations.mlflow import autologs
from radt.integrations.recorder import TEST, VALIDATE, TrainingRecorder
from radt.run.mlflow_calls import copies
from radt.run.run import Run
from radt.run.steps import first_dimension

with needs("lightning", __name__):
    is_old = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    package = "lightning.pytorch"
    if is_old or find_spec("lightning") is None:
        package = "pytorch_lightning"
    Callback: Any = import_module(f"{package}.callbacks").Callback
    loggers: Any = import_module(f"{package}.loggers.logger")
    rank_zero_only: Any = import_module(f"{package}.utilities").rank_zero_only

__all__ = ["LightningLogger", "RadtCallback"]

_hook = in_one_process(lambda trainer, *_args, **_kwargs: trainer.is_global_zero)


class LightningLogger(loggers.Logger):  # type: ignore[misc]
    """Record a Lightning `Trainer` in the run: ``Trainer(logger=LightningLogger())``.

    Values of ``self.log`` and ``save_hyperparameters`` go to the run. A trainer without a
    `RadtCallback` gets one, which marks epochs, steps and validation. Checkpoints go to
    ``lightning_logs/RUN_ID``. With Lightning's ``MLFlowLogger``, whose values radt records, this
    logger logs no values, so that none is recorded twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recorder = TrainingRecorder()
        self._trainer: Any = None

    @property
    def name(self) -> str:
        """Name of the folder with the checkpoints."""
        return "lightning_logs"

    @property
    def version(self) -> str:
        """Id of the run, and name of its folder below `name`."""
        return self._run_id() or ""

    @guarded
    @rank_zero_only  # type: ignore[untyped-decorator]
    def _run_id(self) -> str:
        return self._recorder.run.id

    @property
    @loggers.rank_zero_experiment  # type: ignore[untyped-decorator]
    def experiment(self) -> Run:
        """The `radt.Run`: ``self.logger.experiment.log_artifact(path)``."""
        return self._recorder.run

    @guarded
    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record values, without ``epoch``, which Lightning adds."""
        if not _logged_through_mlflow(self._trainer):
            values = {name: value for name, value in metrics.items() if name != "epoch"}
            self._recorder.log(values, step)

    @guarded
    @rank_zero_only  # type: ignore[untyped-decorator]
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Record parameters."""
        self._recorder.log_params(params)

    @guarded
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Give the starting trainer a `RadtCallback` if it has none. The graph is not recorded."""
        self._trainer = model.trainer
        if not any(isinstance(one, RadtCallback) for one in self._trainer.callbacks):
            callback = RadtCallback(self._recorder)
            self._trainer.callbacks.append(callback)
            if self._trainer.is_global_zero:
                self._recorder.open()


class RadtCallback(Callback):  # type: ignore[misc]
    """Mark epochs, steps and validation in the run: ``Trainer(callbacks=[RadtCallback()])``.

    A trainer without a `LightningLogger` or ``MLFlowLogger`` gets a `LightningLogger` beside its
    other loggers. Training ends at `radt`'s limit.
    """

    def __init__(self, recorder: TrainingRecorder | None = None) -> None:
        super().__init__()
        self._recorder = recorder or TrainingRecorder()

    @_hook
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Open the run."""
        self._recorder.open()
        names = {type(one).__name__ for one in trainer.loggers}
        # DummyLogger: Lightning is probing something, such as a learning rate.
        if not (trainer.fast_dev_run or names & {"LightningLogger", "MLFlowLogger", "DummyLogger"}):
            trainer.loggers = [*trainer.loggers, LightningLogger()]

    @_hook
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the trainer's arguments."""
        params: dict[str, Any] = {"precision": trainer.precision}
        for name in ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val"):
            value = getattr(trainer, name, None)
            if value is not None and value != -1:
                params[name] = value
        for optimizer in trainer.optimizers[:1]:
            params["optimizer"] = type(optimizer).__name__
            params["lr"] = optimizer.defaults.get("lr")
        self._recorder.log_params(params, replace=False)

    @_hook
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Mark the start of the epoch."""
        total = trainer.max_epochs
        known = total is not None and total > 0
        self._recorder.begin_epoch(trainer.current_epoch + 1, total if known else None)

    @_hook
    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Note when the batch arrived."""
        self._recorder.batch_arrived()

    @_hook
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """Record the step."""
        samples = first_dimension(batch)
        self._recorder.end_step(None if samples is None else samples * trainer.world_size)
        self._check_limit(trainer)

    @_hook
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Mark the end of the epoch."""
        self._recorder.end_epoch()
        self._check_limit(trainer)

    @_hook
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Mark the start of validation, or of Lightning's sanity check."""
        self._recorder.begin_span("sanity check" if trainer.sanity_checking else VALIDATE)

    @_hook
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Mark the start of a test."""
        self._recorder.begin_span(TEST)

    @_hook
    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Mark the start of predictions."""
        self._recorder.begin_span("predict")

    @_hook
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Mark the end of validation, a test or predictions."""
        self._recorder.end_span()

    on_test_end = on_validation_end
    on_predict_end = on_validation_end

    @_hook
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the open epoch or span."""
        self._recorder.end()

    @_hook
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the open epoch or span. Lightning re-raises the exception."""
        self._recorder.end()

    def _check_limit(self, trainer: Any) -> None:
        if self._recorder.limit_reached:
            trainer.should_stop = True


def _logged_through_mlflow(trainer: Any) -> bool:
    """Return True if a trainer's values reach the run through MLflow."""
    if trainer is None:
        return False
    if autologs("pytorch"):
        return True
    return any(
        type(one).__name__ == "MLFlowLogger" and copies(one.run_id) for one in trainer.loggers
    )


def add_to(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Make a new trainer record itself (`radt.autolog`)."""
    has_logger = any(isinstance(one, LightningLogger) for one in trainer.loggers)
    has_callback = any(isinstance(one, RadtCallback) for one in trainer.callbacks)
    if not (has_logger or has_callback or trainer.barebones):
        trainer.callbacks.append(RadtCallback())
