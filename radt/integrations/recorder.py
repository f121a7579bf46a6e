"""Record the training loop of a framework in the run of the process."""

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

#: The name of spans around validation, as in the documentation's own loops.
VALIDATE = "validate"
TEST = "test"


class TrainingRecorder:
    """Marks epochs, steps and spans of a loop that calls back, and logs its values.

    Its run is the one that is open, or that the process belongs to; else it begins one, which ends
    with the process. It is opened by the first call.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._epoch: EpochMarker | None = None
        self._span: Span | None = None
        self._limits = Limits()
        self._opened_s = 0.0
        self._ended_epochs = 0
        self._total_epochs: int | None = None
        #: When the next step begins, and when its batch has arrived; None if that is unknown.
        self._ready_ns: int | None = None
        self._arrived_ns: int | None = None

    def open(self, name: str | None = None) -> Run:
        """Return the run of the process, begun if there is none: called before each training.

        Args:
            name: What people call the run, if it is begun here.
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
        """The run; opened by the first use."""
        return self._run or self.open()

    # Values ----------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record values as `radt.Run.log` does, but without a step if none is given."""
        if step is not None:
            self.run.log(values, step)
            return
        for name, value in values.items():
            self.run.log_metric(name, to_number(value))

    def log_params(self, params: Any, *, replace: bool = True) -> None:
        """Record parameters: nested dictionaries, or an object's attributes.

        Args:
            params: The parameters.
            replace: Whether they replace those that the script has set.
        """
        config = self.run.config
        if replace:
            config.update(params)
        else:
            config.setdefaults(params)

    # The loop --------------------------------------------------------------------------------

    def begin_epoch(self, number: int, total: int | None = None) -> None:
        """Mark that an epoch begins; the one before has ended.

        Args:
            number: Counted from 1.
            total: How many there will be; None if that is unknown.
        """
        self.end_epoch()
        self._total_epochs = total
        self._epoch = self.run.epoch(number, total)
        self._be_ready()

    def end_epoch(self) -> None:
        """Mark that the open epoch ends; harmless without one."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.end()
            self._ended_epochs += 1
        self._ready_ns = self._arrived_ns = None

    def batch_arrived(self) -> None:
        """The loop has its next batch: what went by since the last step was waiting for it."""
        self._arrived_ns = time.monotonic_ns()

    def end_step(self, samples: int | None = None) -> None:
        """A step of training has ended; see `radt.Run.step`.

        Args:
            samples: The size of its batch in all processes; None if that is unknown.
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
        """Mark that something begins which is no step: validation, a test. One at a time."""
        if self._span is None:
            self._span = self.run.span(name).__enter__()

    def end_span(self) -> None:
        """Mark its end; harmless without a begin."""
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)
            self._be_ready()

    def end(self) -> None:
        """Mark the end of whatever is open."""
        self.end_span()
        self.end_epoch()

    @property
    def limit_reached(self) -> bool:
        """Whether the epochs or the time that `radt` allows are used up: the loop should end."""
        if self._total_epochs is not None and self._ended_epochs >= self._total_epochs:
            return False  # it ends by itself
        text = self._limits.reached(self._ended_epochs, time.monotonic() - self._opened_s)
        if text:
            self.run.set_tag(LIMIT_TAG, text)
            warn_once(f"training ends here: its limit of {text} is reached")
        return bool(text)

    def _be_ready(self) -> None:
        self._ready_ns, self._arrived_ns = time.monotonic_ns(), None
