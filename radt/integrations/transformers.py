"""Hugging Face transformers: a callback for its `Trainer`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from radt.integrations.hooks import in_one_process, needs
from radt.integrations.recorder import VALIDATE, TrainingRecorder
from radt.run.mlflow_calls import copies

with needs("transformers", __name__):
    from transformers import TrainerCallback

__all__ = ["RadtCallback"]

#: Arguments that are always recorded, even if unchanged.
_ALWAYS = {
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("num_train_epochs", "lr_scheduler_type", "optim", "weight_decay", "seed"),
}
#: Arguments about destinations rather than training; some are secret.
_NEVER = {
    *("output_dir", "logging_dir", "run_name", "report_to", "local_rank", "hub_model_id"),
    *("hub_token", "push_to_hub_token", "trackio_space_id", "project", "disable_tqdm"),
}


_hook = in_one_process(lambda _args, state, *_rest, **_others: state.is_world_process_zero)


class RadtCallback(TrainerCallback):  # type: ignore[misc]
    """Record a `Trainer` in the run: ``Trainer(…, callbacks=[RadtCallback()])``.

    Records all values that the trainer logs, by its own names, at its global step; arguments that
    differ from their defaults, and the most important ones; the model's configuration where it
    differs from its defaults (``model.hidden_size``); epochs, optimizer steps, and evaluations as
    spans called ``validate``. With ``report_to="mlflow"``, whose values radt records, this callback
    logs no values, so that none is recorded twice. Training ends at `radt`'s limit.
    """

    def __init__(self) -> None:
        self._recorder = TrainingRecorder()
        self._epoch_is_over = False

    @_hook
    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Open the run before other callbacks open one in MLflow."""
        self.open(args)

    def open(self, args: Any) -> None:
        """Open the run, named by ``run_name``."""
        name = getattr(args, "run_name", None)
        self._recorder.open(name if name and name != args.output_dir else None)

    @_hook
    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Record arguments and the model's configuration."""
        self.open(args)
        params = dict(_arguments(args))
        config = getattr(model, "config", None)
        if config is not None:
            params |= _configuration(config)
        self._recorder.log_params(params)

    @_hook
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the start of the epoch."""
        self._epoch_is_over = False
        number = int(state.epoch or 0) + 1
        # With max_steps, the trainer plans as many epochs as these steps need.
        self._recorder.begin_epoch(number, max(number, state.num_train_epochs))

    @_hook
    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Note when the batches arrived."""
        self._recorder.batch_arrived()

    @_hook
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Record the step."""
        batch = state.train_batch_size or args.train_batch_size
        self._recorder.end_step(batch * args.gradient_accumulation_steps * args.world_size)
        if control.should_evaluate:
            self._recorder.begin_span(VALIDATE)
        if self._recorder.limit_reached:
            control.should_training_stop = True

    @_hook
    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the end of the epoch. An evaluation that follows is part of it."""
        if control.should_evaluate:
            self._epoch_is_over = True
            self._recorder.begin_span(VALIDATE)
        else:
            self._recorder.end_epoch()
        self._stop_at_limit(control)

    @_hook
    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the start of an evaluation that the script requested itself."""
        self._recorder.begin_span(VALIDATE)

    @_hook
    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the end of an evaluation. Its values arrive through `on_log`."""
        self._recorder.end_span()
        if self._epoch_is_over:
            self._epoch_is_over = False
            self._recorder.end_epoch()
        self._stop_at_limit(control)

    @_hook
    def on_predict(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Mark the end of predictions."""
        self._recorder.end_span()

    @_hook
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Record values, without ``epoch``, which the trainer adds."""
        if "mlflow" in args.report_to and _goes_through_mlflow():
            return
        values = {name: value for name, value in (logs or {}).items() if name != "epoch"}
        self._recorder.log(values, state.global_step)

    @_hook
    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the open epoch or span."""
        self._recorder.end()

    def _stop_at_limit(self, control: Any) -> None:
        if self._recorder.limit_reached:
            control.should_training_stop = True


def _goes_through_mlflow() -> bool:
    mlflow = sys.modules.get("mlflow")
    run = None if mlflow is None else mlflow.active_run()
    return run is not None and copies(run.info.run_id)


def _arguments(args: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments worth recording."""
    for one in dataclasses.fields(args):
        value, default = getattr(args, one.name), one.default
        if one.name in _NEVER or not isinstance(value, int | float | str):
            continue
        is_default = value in (default, getattr(default, "value", default))
        # The trainer turns some None values into False.
        if one.name in _ALWAYS or not (is_default or (default is None and not value)):
            yield one.name, value


def _configuration(config: Any) -> dict[str, Any]:
    """Return the non-default values of a configuration, apart from lists and dictionaries."""
    try:
        defaults = type(config)().to_dict()
    except Exception:  # noqa: BLE001 - some have no defaults
        defaults = {}
    differing = {
        name: value
        for name, value in config.to_dict().items()
        if isinstance(value, int | float | str) and value != defaults.get(name)
    }
    differing.pop("transformers_version", None)
    named = {"name": differing.pop("_name_or_path", ""), "model_type": config.model_type}
    return {f"model.{name}": value for name, value in {**named, **differing}.items() if value != ""}


def add_to(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Make a new trainer record itself (`radt.autolog`)."""
    callbacks = trainer.callback_handler.callbacks
    if any(isinstance(one, RadtCallback) for one in callbacks):
        return
    callback = RadtCallback()
    trainer.add_callback(callback)
    callback.on_init_end(trainer.args, trainer.state, trainer.control)
