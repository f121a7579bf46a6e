"""The API of the original radT: `RADTBenchmark`, `log_metric`, `shutdown`.

Unlike `radt.Run`, these never begin a run. A script without a runner trains as if radt were absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, SupportsIndex

from radt.journal.writer import Number
from radt.run.off import NOTHING
from radt.run.open_runs import Joining, current, leave
from radt.run.run import Run, active_run
from radt.run.target import inside_a_run


class RADTBenchmark:
    """The original's context manager: ``with RADTBenchmark() as run: run.log_metric(…)``.

    Inside a run, it offers that run with the original's signatures, and MLflow's functions for
    everything else. Outside of a run, every function does nothing.
    """

    def __init__(self) -> None:
        self._run: Run | None = None

    def __enter__(self) -> Self:
        if self._run is None and (current() is not None or inside_a_run()):
            self._run = Run()
            self._run._joining = Joining.PROCESS  # noqa: SLF001 - the original has one run per process
        if self._run is not None:
            self._run.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return None if self._run is None else self._run.__exit__(kind, error, traceback)

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None outside of a run."""
        open_run = current()
        return open_run.backend.mlflow.run_id if open_run is not None else None

    def log_metric(self, name: str, value: Number, epoch: SupportsIndex | None = None) -> None:
        """Record a value of a metric, with the epoch as its step; 0 if there is none.

        Ends the block when the epoch exceeds the run's limit, as the original did.
        """
        log_metric(name, value, 0 if epoch is None else None, epoch=epoch)

    def log_metrics(self, metrics: Mapping[str, Number], epoch: int | None = None) -> None:
        """Record values of several metrics; for the epoch see `log_metric`."""
        log_metrics(metrics, 0 if epoch is None else None, epoch=epoch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        run = active_run()
        return NOTHING if run is None else getattr(run, name)


def log_metric(
    name: str,
    value: Number,
    step: SupportsIndex | None = None,
    *,
    epoch: SupportsIndex | None = None,
) -> None:
    """Record a value of a metric in the open run or the run of this process, if there is one.

    ``epoch`` is the original's name for ``step``. Errors as in `radt.Run.log_metric`.
    """
    if (run := active_run()) is not None:
        _check_epoch(epoch)
        run.log_metric(name, value, epoch if step is None else step)


def log_metrics(
    metrics: Mapping[str, Number], step: int | None = None, *, epoch: int | None = None
) -> None:
    """Record values of several metrics; see `log_metric`."""
    if (run := active_run()) is not None:
        _check_epoch(epoch)
        run.log_metrics(metrics, epoch if step is None else step)


def _check_epoch(epoch: SupportsIndex | None) -> None:
    """Leave the open block if this epoch exceeds its limit. A plain step never counts as an epoch.

    Raises:
        LimitReached: The epoch exceeds the limit.
    """
    open_run = current()
    watch = None if open_run is None else open_run.instruments.watch
    if epoch is not None and watch is not None:
        watch.check_epoch(epoch)


def shutdown() -> None:
    """End the open run as FINISHED. Call it before ``os._exit()``, which skips ``with`` blocks.

    Harmless without a run, or if called twice.
    """
    open_run = current()
    if open_run is not None:
        leave(open_run, None, wholly=True)
