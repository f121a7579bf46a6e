"""Time the steps of training: duration, share of time waiting for data, throughput.

The duration is recorded for each step, the rest once a second, so that loops with steps of
microseconds stay fast. All times are wall times of the host. A GPU works asynchronously, but its
queue is short: in a loop that runs for a while, the time between two steps is the duration of a
step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from radt.errors import UsageError
from radt.journal.values import JournalSeries, to_step
from radt.journal.writer import JournalWriter
from radt.model import SOFTWARE, Scope
from radt.run.notices import warn_once
from radt.run.off import NullJournal

Batch = TypeVar("Batch")

#: Uploaded to MLflow as means, like hardware series: there may be a million steps.
_STEP_TIME = JournalSeries(
    "steps", "step.time", "s", Scope.RUN, method="from the end of the step before, data included"
).name
#: Reports look for this name (`radt.analysis.quantities.THROUGHPUT_METRICS`).
_SAMPLES_PER_S = JournalSeries(SOFTWARE, "samples_per_s", "1/s", Scope.RUN).name
_DATA_WAIT = JournalSeries(
    SOFTWARE, "data_wait", "1", Scope.RUN, method="share of the steps' time spent in the loader"
).name

_WINDOW_NS = 10**9
_MIXED = (
    "run.step() inside a loop over run.batches() is ignored: the loop counts its steps by itself"
)


class StepRecorder:
    """Counts and times the steps of a run, in the order of their ends.

    Args:
        journal: Where the values go.
    """

    def __init__(self, journal: JournalWriter | NullJournal) -> None:
        self._journal = journal
        #: Called at each step before it is recorded. May raise `radt.run.limits.LimitReached`.
        self.check: Callable[[], None] | None = None
        #: Called with the next step's number before the first step of a loop over batches, and then
        #: after each step.
        self.before_step: Callable[[int], None] | None = None
        self.after_step: Callable[[int], None] | None = None
        #: Number of open loops over batches. Only the outermost one counts steps.
        self.loops = 0
        self._number = 0
        self._began_ns: int | None = None
        self._has_value = False
        self._start_window()

    def _start_window(self) -> None:
        self._time_ns = 0
        self._samples, self._sampled_ns = 0, 0
        self._wait_ns, self._waited_ns = 0, 0

    def begin(self) -> None:
        """Start the clock of the next step."""
        self._began_ns = time.monotonic_ns()

    def begin_loop(self) -> None:
        """Announce the first step of a loop to the profiler."""
        if self.before_step is not None:
            self.before_step(self._number + 1)

    def pause(self) -> None:
        """Stop the clock until `begin`, or until the next step has ended.

        Reports weigh all values alike. So the rest of an epoch that is much shorter than a second
        is carried over into the next epoch, unless there is no value yet.
        """
        self._began_ns = None
        if self._time_ns >= _WINDOW_NS // 2 or not self._has_value:
            self._flush()

    def step(
        self, samples: int | None, time_s: float | None = None, wait_s: float | None = None
    ) -> None:
        """Record a step that started at the end of the last one; without one, it has no duration.

        Raises:
            TypeError: ``samples`` is not an integer.
            UsageError: ``samples`` is negative.
        """
        if self.loops:
            warn_once(_MIXED)
            return
        samples = None if samples is None else checked_samples(samples)
        now_ns = time.monotonic_ns()
        began_ns, self._began_ns = self._began_ns, now_ns
        taken_ns = None if began_ns is None else now_ns - began_ns
        if time_s is not None:
            taken_ns = int(time_s * 1e9)
        self.add(taken_ns, samples, None if wait_s is None else int(wait_s * 1e9))
        if self.after_step is not None:  # a profiler's work between steps is not part of a step
            self._began_ns = time.monotonic_ns()

    def add(self, time_ns: int | None, samples: int | None, wait_ns: int | None) -> None:
        """Record a step of this duration, with ``wait_ns`` for its data. None means unknown."""
        if self.check is not None:
            self.check()
        self._number += 1
        if time_ns is not None:
            self._journal.sample(_STEP_TIME, time_ns / 1e9, self._number)
            self._time_ns += time_ns
            if samples is not None:
                self._samples += samples
                self._sampled_ns += time_ns
            if wait_ns is not None:
                self._wait_ns += wait_ns
                self._waited_ns += time_ns
            if self._time_ns >= _WINDOW_NS:
                self._flush()
        if self.after_step is not None:
            self.after_step(self._number)

    def _flush(self) -> None:
        """Record throughput and waiting time since the last flush."""
        self._has_value = self._has_value or self._time_ns > 0
        if self._samples and self._sampled_ns:
            rate = self._samples / self._sampled_ns * 1e9
            self._journal.sample(_SAMPLES_PER_S, rate, self._number)
        if self._waited_ns:
            self._journal.sample(_DATA_WAIT, self._wait_ns / self._waited_ns, self._number)
        self._start_window()


class StepNumber(int):
    """Number of the next step of `radt.log`, as in W&B. Calling it marks the end of a step."""

    recorder: StepRecorder

    def __call__(
        self,
        samples: int | None = None,
        *,
        time_s: float | None = None,
        wait_s: float | None = None,
    ) -> None:
        """Record a training step; see `radt.Run.step`."""
        self.recorder.step(samples, time_s, wait_s)


class Batches(Generic[Batch]):
    """A timed loop over a loader's batches, with the length of the loader."""

    def __init__(
        self,
        loader: Iterable[Batch],
        samples: int | Callable[[Batch], int] | None,
        recorder: StepRecorder,
    ) -> None:
        self._loader = loader
        self._recorder = recorder
        self._count: Callable[[Batch], int | None] = _counter(samples)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises the loader's TypeError

    def __iter__(self) -> Iterator[Batch]:
        recorder, count = self._recorder, self._count
        if recorder.loops:  # a nested loop, such as an evaluation during training
            yield from self._loader
            return
        clock = time.monotonic_ns
        recorder.loops += 1
        try:
            recorder.begin_loop()
            began_ns = clock()
            batches = _ask(iter, self._loader)
            while True:
                try:
                    batch = _ask(next, batches)
                except StopIteration:
                    return
                arrived_ns = clock()
                samples = count(batch)
                yield batch
                recorder.add(clock() - began_ns, samples, arrived_ns - began_ns)
                began_ns = clock()
        finally:
            recorder.loops -= 1
            recorder.pause()


def _ask(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call the script's code below this frame, which `radt.run.limits` may interrupt."""
    return function(argument)


#: Frames that may stand between the script and its loader.
ASKING = frozenset({_ask.__code__, Batches.__iter__.__code__})


def checked_samples(samples: int) -> int:
    """Return a valid number of samples of a step.

    Raises:
        TypeError: It is not an integer.
        UsageError: It is negative.
    """
    number = to_step(samples)
    if number < 0:
        raise UsageError(f"a step cannot have {number} samples", "Give the size of the batch")
    return number


def first_dimension(batch: object) -> int | None:
    """Return the number of samples in a batch: the length of the first tensor or list in it.

    >>> first_dimension(([1, 2, 3], [0, 1, 0])), first_dimension({"x": ["a", "b"]})
    (3, 2)
    >>> first_dimension(["a", "b"]), first_dimension(5)
    (2, None)
    """
    for _ in range(_MAX_DEPTH):
        shape = getattr(batch, "shape", None)
        if isinstance(shape, Sequence):
            return int(shape[0]) if shape else None
        if isinstance(batch, Mapping):
            inner = next(iter(batch.values()), None)
        elif isinstance(batch, (tuple, list)) and batch:
            inner = batch[0]
        else:
            return len(batch) if isinstance(batch, Sequence) else None
        if not _has_length(inner):
            return len(batch) if isinstance(batch, (tuple, list)) else None
        batch = inner
    return None


#: Batches are tuples in dicts in lists; anything nested deeper is not a batch.
_MAX_DEPTH = 8


def _has_length(item: object) -> bool:
    if getattr(item, "shape", None):
        return True
    return isinstance(item, (Mapping, tuple, list))


def _counter(samples: int | Callable[[Any], int] | None) -> Callable[[Any], int | None]:
    if samples is None:
        return first_dimension
    if callable(samples):
        asked = samples
        return lambda batch: checked_samples(asked(batch))
    number = checked_samples(samples)
    return lambda _: number
