"""Measure the training process from inside: epochs, spans, profiled ranges, steps and PyTorch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ContextDecorator, ExitStack
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from radt.errors import described
from radt.journal.format import EventKind, RecordKind
from radt.journal.writer import JournalWriter, LogScalar
from radt.run.limits import LimitWatch
from radt.run.notices import warn_once
from radt.run.off import NullJournal
from radt.run.steps import StepRecorder
from radt.run.torch_options import TRACE_WORD, TorchWishes, loaded_torch
from radt.tags import PROFILER_PROBLEM

if TYPE_CHECKING:
    from radt.run.target import RunTarget
    from radt.run.torch_metrics import MemoryWatch
    from radt.run.torch_trace import TorchTracer

#: Name of the range that nsys and ncu are told to record (`radt.listeners.nsight`).
RANGE_NAME = "profile"
#: Tag that says why a run that asked for PyTorch's memory has no such series.
MEMORY_TAG = "radt.torch"


class Span(ContextDecorator):
    """A time span: ``with run.span("validate"):``, or ``@run.span("validate")`` before a function.

    Spans may overlap, and one function may run in several threads. As a decorator, each call is a
    separate span. A span ends once, in the process that began it.

    Args:
        begin: Begins the span, and pushes what ends it onto the stack.
    """

    def __init__(self, begin: Callable[[ExitStack], None]) -> None:
        self._begin = begin
        self._ends = ExitStack()
        self._pid = 0

    def _recreate_cm(self) -> Span:
        return Span(self._begin)

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        with ExitStack() as ends:
            self._begin(ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the span now. Harmless if it has ended."""
        if os.getpid() == self._pid:
            self._ends.close()


class EpochMarker(Span):
    """An epoch, which begins when the marker is created."""

    def __init__(self, begin: Callable[[ExitStack], None]) -> None:
        super().__init__(begin)
        super().__enter__()

    def __enter__(self) -> Self:
        return self


class Instruments:
    """Markers and measurements of a run in this process, within its limits.

    Args:
        journal: Where the values go.
    """

    def __init__(self, journal: JournalWriter | NullJournal) -> None:
        self.journal = journal
        #: `radt.Run.log_metric` of the run.
        self.log_metric: LogScalar = journal.scalar
        self.watch: LimitWatch | None = None
        self.steps = StepRecorder(journal)
        self.tracer: TorchTracer | None = None
        self._memory: MemoryWatch | None = None
        self._rank: int | None = None

    def start(self, wishes: TorchWishes, target: RunTarget) -> None:
        """Start measuring when the block is entered."""
        self._rank = target.rank
        if wishes.metrics:
            from radt.run.torch_metrics import MemoryWatch

            self._memory = MemoryWatch(self.journal)
            self._memory.start()
        if wishes.trace is not None:
            from radt.run.torch_trace import TorchTracer

            self.tracer = TorchTracer(wishes.trace, target)
            self.steps.before_step = self.tracer.step_begins
            self.steps.after_step = self.tracer.stepped

    def close(self) -> None:
        """Stop measuring when the block is left. Harmless if repeated."""
        self.steps.check = self.steps.before_step = self.steps.after_step = None
        self.steps.pause()
        tracer, self.tracer = self.tracer, None
        if tracer is not None and (trouble := tracer.close()):
            self._say(PROFILER_PROBLEM, f"{TRACE_WORD}: {trouble}")
        memory, self._memory = self._memory, None
        if memory is not None and (nothing := memory.close()):
            self._say(MEMORY_TAG, f"no memory series: {nothing}")

    def _say(self, tag: str, text: str) -> None:
        if not self._rank:  # other ranks would report the same
            self.journal.say(EventKind.TAGS, values={tag: text})

    # Markers ---------------------------------------------------------------------------------

    def epoch(self, number: int, total: int | None = None) -> EpochMarker:
        """Begin an epoch: its steps are timed from here on and may be traced.

        Raises:
            LimitReached: The run's epochs or its time are used up.
        """

        def begin(ends: ExitStack) -> None:
            if self.tracer is not None:  # keep the profiler's start out of the epoch's time
                self.tracer.epoch_begins(number, total)
                ends.callback(self.tracer.epoch_ended)
            self._mark(RecordKind.EPOCH_BEGIN, RecordKind.EPOCH_END, "epoch", number, ends)
            self.steps.begin()
            ends.callback(self.steps.pause)

        return EpochMarker(begin)

    def span(self, name: str) -> Span:
        """Return a span of that name."""
        return Span(partial(self._mark, RecordKind.SPAN_BEGIN, RecordKind.SPAN_END, name, None))

    def profile(self) -> Span:
        """Return a span that profilers record. It is cheap without a profiler.

        NVIDIA's tools see an NVTX range that is pushed and popped in the thread that enters it.
        """

        def begin(ends: ExitStack) -> None:
            if self.tracer is not None:  # keep the profiler's start out of the span's time
                self.tracer.range_begins()
                ends.callback(self.tracer.range_ended)
            self._mark(RecordKind.SPAN_BEGIN, RecordKind.SPAN_END, RANGE_NAME, None, ends)
            _push_nvtx_range(ends)

        return Span(begin)

    def _mark(
        self, begin: RecordKind, end: RecordKind, name: str, step: int | None, ends: ExitStack
    ) -> None:
        if self.watch is not None:
            self.watch.check_time()
            if step is not None:
                self.watch.check_epoch(step)
        token = self.journal.begin(begin, name, step)
        ends.callback(self.journal.end, end, name, step, token)


def _push_nvtx_range(ends: ExitStack) -> None:
    """Push a range through PyTorch or the package nvtx, if either is installed."""
    torch = loaded_torch()
    if torch is not None and (torch.version.cuda or getattr(torch.version, "hip", None)):
        nvtx = torch.cuda.nvtx
        push, pop = nvtx.range_push, nvtx.range_pop
    elif (package := _nvtx_package()) is not None:
        push, pop = package.push_range, package.pop_range
    else:
        return
    thread = threading.get_ident()

    def end() -> None:
        if threading.get_ident() == thread:  # each thread has its own stack of ranges
            _works(pop)

    if _works(partial(push, RANGE_NAME)):
        ends.callback(end)


@cache
def _nvtx_package() -> Any:
    if (loaded := sys.modules.get("nvtx")) is not None:
        return loaded
    try:
        return import_module("nvtx")
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 - a broken installation must not end training
        warn_once(f"the package nvtx does not work: {described(error)}")
        return None


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - a profiler must never end training
        warn_once(f"NVTX ranges do not work: {described(error)}")
        return False
    return True
