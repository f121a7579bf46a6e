"""Keras 3, on any of its backends: a callback."""

from __future__ import annotations

from functools import wraps
from inspect import BoundArguments, signature
from typing import Any

from radt.integrations.hooks import guarded, needs
from radt.integrations.mlflow import autologs
from radt.integrations.recorder import TEST, VALIDATE, TrainingRecorder

with needs("keras", __name__):
    from keras.callbacks import Callback, CallbackList

__all__ = ["RadtCallback"]

#: Default of ``fit`` for arrays.
_DEFAULT_BATCH_SIZE = 32


class RadtCallback(Callback):  # type: ignore[misc]
    """Record ``fit`` and ``evaluate`` in the run: ``model.fit(…, callbacks=[RadtCallback()])``.

    Records the values of each epoch at its number, counted from 1; values of an evaluation outside
    of ``fit`` as ``test_loss`` and so on; optimizer, loss and epochs as parameters; epochs, steps,
    and validation as spans called ``validate``. Training ends at `radt`'s limit.

    Args:
        batch_size: Number of samples in a batch, to record samples per second; Keras does not
            report
            it.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        super().__init__()
        self._recorder = TrainingRecorder()
        self._batch_size = batch_size
        self._is_fitting = False

    @guarded
    def on_train_begin(self, logs: Any = None) -> None:
        """Open the run and record parameters."""
        self._is_fitting = True
        self._recorder.open()
        self._recorder.log_params(self._known_params(), replace=False)

    def _known_params(self) -> dict[str, Any]:
        params: dict[str, Any] = {
            "epochs": self.params.get("epochs"),
            "steps_per_epoch": self.params.get("steps"),
            "batch_size": self._batch_size,
        }
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            params["optimizer"] = type(optimizer).__name__
            # A float32: drop the digits beyond its precision.
            params["learning_rate"] = float(f"{float(optimizer.learning_rate):.7g}")
        loss = getattr(self.model, "loss", None)
        params["loss"] = loss if isinstance(loss, str) else getattr(loss, "name", None)
        params["parameters"] = self.model.count_params() if self.model.built else None
        return {name: value for name, value in params.items() if value is not None}

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Mark the start of the epoch."""
        self._recorder.begin_epoch(epoch + 1, self.params.get("epochs"))

    @guarded
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the step."""
        self._recorder.end_step(self._batch_size)
        self._check_limit()

    @guarded
    def on_test_begin(self, logs: Any = None) -> None:
        """Mark the start of validation, or of an evaluation outside of ``fit``."""
        self._recorder.begin_span(VALIDATE if self._is_fitting else TEST)

    @guarded
    def on_test_end(self, logs: Any = None) -> None:
        """Mark the end of an evaluation. Outside of ``fit``, record its values."""
        self._recorder.end_span()
        if not self._is_fitting:
            self._recorder.log({f"test_{name}": value for name, value in (logs or {}).items()})

    @guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch's values and mark its end."""
        if not autologs("keras") and not autologs("tensorflow"):
            self._recorder.log(logs or {}, epoch + 1)
        self._recorder.end_epoch()
        self._check_limit()

    @guarded
    def on_train_end(self, logs: Any = None) -> None:
        """End the open epoch or span."""
        self._is_fitting = False
        self._recorder.end()

    def _check_limit(self) -> None:
        if self._recorder.limit_reached:
            self.model.stop_training = True


def record_fit(model_class: type) -> None:
    """Make ``fit`` of a model class add a `RadtCallback` if there is none (`autolog`)."""
    original: Any = model_class.fit  # type: ignore[attr-defined]
    if hasattr(original, "recorded_by_radt"):
        return
    prepare = guarded(_with_callback)

    @wraps(original)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        call = prepare(original, model, args, kwargs)
        if call is None:
            return original(model, *args, **kwargs)
        return original(*call.args, **call.kwargs)

    fit.__dict__["recorded_by_radt"] = True
    model_class.fit = fit  # type: ignore[attr-defined]


def _with_callback(original: Any, model: Any, args: Any, kwargs: Any) -> BoundArguments | None:
    """Return the arguments of ``fit`` with a `RadtCallback`; None if they already have one."""
    bound = signature(original).bind(model, *args, **kwargs)
    given = bound.arguments.get("callbacks") or []
    if isinstance(given, CallbackList):
        return None
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    if any(isinstance(one, RadtCallback) for one in callbacks):
        return None
    batch_size = bound.arguments.get("batch_size")
    if batch_size is None and hasattr(bound.arguments.get("x"), "shape"):
        batch_size = _DEFAULT_BATCH_SIZE
    bound.arguments["callbacks"] = [*callbacks, RadtCallback(batch_size)]
    return bound
