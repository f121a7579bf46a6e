"""Hugging Face Accelerate: a tracker."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from radt.integrations.hooks import call_after, guarded, needs
from radt.integrations.recorder import VALIDATE, TrainingRecorder
from radt.run.mlflow_calls import copies
from radt.run.run import Run

with needs("accelerate", __name__):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.tracking import GeneralTracker, on_main_process

__all__ = ["RadtTracker"]


class RadtTracker(GeneralTracker):  # type: ignore[misc]
    """Record a script in the run: ``Accelerator(log_with=RadtTracker())``, then `init_trackers`.

    ``accelerator.log`` logs values, ``init_trackers(config=…)`` parameters;
    ``accelerator.get_tracker("radt", unwrap=True)`` is the `radt.Run`. A loop over a prepared
    loader is an epoch if the models are in training mode, and a span called ``validate`` if they
    are in ``eval()``. A step of the first prepared optimizer is a step. With MLflow's tracker,
    whose values radt records, this tracker logs no values, so that none is recorded twice.
    """

    name = "radt"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self) -> None:
        super().__init__()
        self._recorder = TrainingRecorder()
        self.loops = _Loops(self._recorder)

    @property
    def tracker(self) -> Run:
        """The run."""
        return self._recorder.run

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def start(self) -> None:
        """Open the run."""
        self._recorder.open()

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record parameters."""
        self._recorder.log_params(values)

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values. Without a step, the run counts the steps."""
        if not self.loops.logs_to_mlflow:
            self._recorder.run.log(values, step)

    @on_main_process  # type: ignore[untyped-decorator]
    @guarded
    def finish(self) -> None:
        """Mark the end of the last epoch. The run continues."""
        self.loops.end()


class _Loops:
    """Tracks the loops over an accelerator's prepared loaders, of which trackers see nothing."""

    def __init__(self, recorder: TrainingRecorder) -> None:
        self._recorder = recorder
        self._accelerator: weakref.ref[Any] | None = None
        self._epochs = 0
        self._training_loader: weakref.ref[Any] | None = None
        self._validation_loader: weakref.ref[Any] | None = None

    def follow(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)

    @property
    def accelerator(self) -> Any:
        return None if self._accelerator is None else self._accelerator()

    @property
    def logs_to_mlflow(self) -> bool:
        """True if MLflow's tracker logs the same values and they reach the run."""
        trackers = () if self.accelerator is None else self.accelerator.trackers
        return any(one.name == "mlflow" and copies(one.active_run.info.run_id) for one in trackers)

    def begins(self, loader: Any) -> None:
        """Mark the start of a loop over a loader."""
        accelerator = self.accelerator
        if accelerator is None or not accelerator.is_main_process:
            return
        if any(model.training for model in accelerator._models):  # noqa: SLF001 - nothing else has them
            self._recorder.end_span()
            self._epochs += 1
            self._recorder.begin_epoch(self._epochs)
            self._training_loader = weakref.ref(loader)
        else:
            self._recorder.begin_span(VALIDATE)
            self._validation_loader = weakref.ref(loader)

    def ends(self, loader: Any) -> None:
        """Mark the end of a loop over a loader. An epoch lasts until the next one begins."""
        if self._validation_loader is not None and self._validation_loader() is loader:
            self._validation_loader = None
            self._recorder.end_span()

    def step(self, optimizer: Any) -> None:
        """Record a step of an optimizer."""
        accelerator = self.accelerator
        loader = None if self._training_loader is None else self._training_loader()
        if accelerator is None or loader is None or not accelerator.sync_gradients:
            return
        if optimizer is accelerator._optimizers[0]:  # noqa: SLF001 - not public elsewhere
            samples = getattr(loader, "total_batch_size", None)
            steps = accelerator.gradient_accumulation_steps
            self._recorder.end_step(samples * steps if samples else None)

    def end(self) -> None:
        self._accelerator = None
        self._recorder.end()


_followed: list[_Loops] = []


def _init_trackers(accelerator: Any, *args: Any, **kwargs: Any) -> None:
    _followed.clear()
    for tracker in accelerator.trackers:
        if isinstance(tracker, RadtTracker):
            tracker.loops.follow(accelerator)
            _followed.append(tracker.loops)


def _begin(loader: Any) -> None:
    for loops in _followed:
        loops.begins(loader)


def _end(loader: Any) -> None:
    for loops in _followed:
        loops.ends(loader)


def _step(optimizer: Any, *args: Any, **kwargs: Any) -> None:
    for loops in _followed:
        loops.step(optimizer)


call_after(Accelerator, "init_trackers", _init_trackers)
call_after(DataLoaderStateMixin, "begin", _begin)
call_after(DataLoaderStateMixin, "end", _end)
call_after(AcceleratedOptimizer, "step", _step)


def add_to(accelerator: Any, *args: Any, **kwargs: Any) -> None:
    """Make a new accelerator record itself (`radt.autolog`)."""
    if not any(isinstance(one, RadtTracker) for one in accelerator.log_with):
        accelerator.log_with.append(RadtTracker())
