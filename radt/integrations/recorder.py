"""Record a framework's training loop in the run of the process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from radt.journal.values import to_number
from radt.run.instruments import EpochMarker, Span
from radt.run.limits import LIMIT_TAG, Limits
from radt.run.notices import warn_once
from radt.run.run import Run, active_run
from radt.run.session import init

#: Name of validation spans, the same as in the documentation's examples.
VALIDATE = "validate"
TEST = "test"


class TrainingRecorder:
    """Marks epochs, steps and spans of a loop with callbacks, and logs its values.

    Uses the open run or the one that the process belongs to. Otherwise the first call begins a run,
    which ends with the process.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._epoch: EpochMarker | None = None
        self._span: Span | None = None
        self._limits = Limits()
        self._opened_s = 0.0
        self._ended_epochs = 0
        self._total_epochs: int | None = None
        #: Start of the next step, and arrival of its batch; None if unknown.
        self._ready_ns: int | None = None
        self._arrived_ns: int | None = None

    def open(self, name: str | None = None) -> Run:
        """Return the run of the process, begun if there is none. Call it before each training.

        Args:
            name: Name of the run, if it is begun here.
        """
        run = active_run() or init(name=name)
        if run is not self._run:
            self._run = run
            self._limits = Limits().within()
            self._opened_s = time.monotonic()
            self._ended_epochs = 0
        return run

    @property
    def run(self) -> Run:
        """The run, opened on first use."""
        return self._run or self.open()

    # Values ----------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record values like `radt.Run.log`, but without a step if none is given."""
        if step is not None:
            self.run.log(values, step)
            return
        for name, value in values.items():
            self.run.log_metric(name, to_number(value))

    def log_params(self, params: Any, *, replace: bool = True) -> None:
        """Record parameters: nested dictionaries, or an object's attributes.

        Args:
            params: The parameters.
            replace: Replace parameters that the script has set.
        """
        config = self.run.config
        if replace:
            config.update(params)
        else:
            config.setdefaults(params)

    # The loop --------------------------------------------------------------------------------

    def begin_epoch(self, number: int, total: int | None = None) -> None:
        """Mark the start of an epoch, and the end of the previous one.

        Args:
            number: Counted from 1.
            total: Number of epochs; None if unknown.
        """
        self.end_epoch()
        self._total_epochs = total
        self._epoch = self.run.epoch(number, total)
        self._be_ready()

    def end_epoch(self) -> None:
        """Mark the end of the open epoch. Harmless without one."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.end()
            self._ended_epochs += 1
        self._ready_ns = self._arrived_ns = None

    def batch_arrived(self) -> None:
        """Note the arrival of a batch: the time since the last step was spent waiting for it."""
        self._arrived_ns = time.monotonic_ns()

    def end_step(self, samples: int | None = None) -> None:
        """Record the end of a training step; see `radt.Run.step`.

        Args:
            samples: Size of the batch across all processes; None if unknown.
        """
        now_ns, ready_ns, arrived_ns = time.monotonic_ns(), self._ready_ns, self._arrived_ns
        time_s = wait_s = None
        if ready_ns is not None:
            time_s = (now_ns - ready_ns) / 1e9
            if arrived_ns is not None:
                wait_s = (arrived_ns - ready_ns) / 1e9
            self.run.step(samples, time_s=time_s, wait_s=wait_s)
        self._be_ready()

    def begin_span(self, name: str) -> None:
        """Mark the start of a span, such as validation or a test. One at a time."""
        if self._span is None:
            self._span = self.run.span(name).__enter__()

    def end_span(self) -> None:
        """Mark the end of the span. Harmless without one."""
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)
            self._be_ready()

    def end(self) -> None:
        """End the open epoch or span."""
        self.end_span()
        self.end_epoch()

    @property
    def limit_reached(self) -> bool:
        """True if `radt`'s epochs or time are used up, so that the loop should end."""
        if self._total_epochs is not None and self._ended_epochs >= self._total_epochs:
            return False  # the loop ends by itself
        text = self._limits.reached(self._ended_epochs, time.monotonic() - self._opened_s)
        if text:
            self.run.set_tag(LIMIT_TAG, text)
            warn_once(f"training ends here: its limit of {text} is reached")
        return bool(text)

    def _be_ready(self) -> None:
        self._ready_ns, self._arrived_ns = time.monotonic_ns(), None
