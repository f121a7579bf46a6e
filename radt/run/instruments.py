"""Measure the training process from inside: epochs, spans, profiled ranges, steps and PyTorch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self

from radt.errors import described
from radt.journal.format import EventKind, RecordKind
from radt.run.notices import warn_once
from radt.run.steps import Sampled, StepRecorder
from radt.run.torch_options import TRACE_WORD, TorchWishes, loaded_torch
from radt.tags import PROFILER_PROBLEM

if TYPE_CHECKING:
    from radt.run.target import Target
    from radt.run.torch_metrics import MemoryWatch
    from radt.run.torch_trace import TorchTracer


class Marking(Protocol):
    """The part of a journal that markers need."""

    def begin(self, kind: RecordKind, name: str, step: int | None = None) -> int: ...
    def end(self, kind: RecordKind, name: str, step: int | None, token: int) -> None: ...


class Marker:
    """Something that has begun, and ends once, in the process that began it."""

    def __init__(
        self, journal: Marking, begin: RecordKind, end: RecordKind, name: str, step: int | None
    ) -> None:
        self._journal = journal
        self._end_kind = end
        self._name = name
        self._step = step
        self._pid = os.getpid()
        self._token: int | None = journal.begin(begin, name, step)

    @classmethod
    def span(cls, journal: Marking, name: str) -> Marker:
        return cls(journal, RecordKind.SPAN_BEGIN, RecordKind.SPAN_END, name, None)

    def end(self) -> None:
        """Now; harmless if it has ended."""
        token, self._token = self._token, None
        if token is not None and os.getpid() == self._pid:
            self._before_end()
            self._journal.end(self._end_kind, self._name, self._step, token)
            self._after_end()

    def _before_end(self) -> None:
        """What is still a part of it."""

    def _after_end(self) -> None:
        """What is no part of it any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class Span(ContextDecorator):
    """``with run.span("validate"):``, or ``@run.span("validate")`` before a function.

    Spans may overlap, and one function may run in several threads. After use as a decorator each
    call is a span of its own.
    """

    def __init__(self, journal: Marking, name: str) -> None:
        self._journal = journal
        self._name = name
        self._marker: Marker | None = None

    def _recreate_cm(self) -> Span:
        return Span(self._journal, self._name)

    def __enter__(self) -> Self:
        self._marker = Marker.span(self._journal, self._name)
        return self

    def __exit__(self, *error: object) -> None:
        if self._marker is not None:
            self._marker.end()


#: What nsys and ncu are told to look for (`radt.listeners.nsight`).
RANGE_NAME = "profile"

End = Callable[[], object]


class RangeTracing(Protocol):
    """What hears of a range's begin and end."""

    def range_begins(self) -> None: ...
    def range_ended(self) -> None: ...


class ProfileRange(ContextDecorator):
    """A stretch that profilers record and that is a span of the run; cheap without any.

    To NVIDIA's tools it is an NVTX range that is pushed and popped, in the thread that enters it.

    Args:
        journal: Where the span goes.
        tracer: PyTorch's profiler, if it is on.
    """

    def __init__(self, journal: Marking, tracer: RangeTracing | None) -> None:
        self._journal = journal
        self._tracer = tracer
        self._marker: Marker | None = None
        self._end_nvtx: End | None = None

    def _recreate_cm(self) -> ProfileRange:
        return ProfileRange(self._journal, self._tracer)

    def __enter__(self) -> Self:
        if self._tracer is not None:
            self._tracer.range_begins()  # starting takes its time, which is not the span's
        try:
            self._marker = Marker.span(self._journal, RANGE_NAME)
        except BaseException:  # the run's time is over
            if self._tracer is not None:
                self._tracer.range_ended()
            raise
        self._end_nvtx = push_nvtx_range(RANGE_NAME)
        return self

    def __exit__(self, *error: object) -> None:
        end, self._end_nvtx = self._end_nvtx, None
        if end is not None:
            end()
        if self._marker is not None:
            self._marker.end()
        if self._tracer is not None:
            self._tracer.range_ended()


def push_nvtx_range(name: str) -> End | None:
    """Push a range through PyTorch or the package nvtx; what pops it, None without either."""
    torch = loaded_torch()
    if torch is not None and (torch.version.cuda or getattr(torch.version, "hip", None)):
        nvtx = torch.cuda.nvtx
        push, pop = nvtx.range_push, nvtx.range_pop
    elif (package := _nvtx_package()) is not None:
        push, pop = package.push_range, package.pop_range
    else:
        return None
    if not _works(partial(push, name)):
        return None
    thread = os.getpid(), threading.get_ident()

    def end() -> None:
        if (os.getpid(), threading.get_ident()) == thread:  # others have stacks of their own
            _works(pop)

    return end


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


#: Says why a run that asked for PyTorch's memory has no such series.
MEMORY_TAG = "radt.torch"


class Journal(Sampled, Protocol):
    """The part of a journal that instruments need."""

    def say(self, kind: EventKind, **fields: Any) -> None: ...


class Instruments:
    """The steps of a run and, where somebody wants it, what PyTorch knows.

    Args:
        journal: Where the values go.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rank: int | None = None
        self._memory: MemoryWatch | None = None
        self.steps = StepRecorder(journal)
        self.tracer: TorchTracer | None = None

    def start(self, wishes: TorchWishes, target: Target) -> None:
        """The block is entered."""
        self._rank = target.rank
        if wishes.metrics:
            from radt.run.torch_metrics import MemoryWatch

            self._memory = MemoryWatch(self._journal)
            self._memory.start()
        if wishes.trace is not None:
            from radt.run.torch_trace import TorchTracer

            self.tracer = TorchTracer(wishes.trace, target)
            self.steps.before_step = self.tracer.step_begins
            self.steps.after_step = self.tracer.stepped

    def close(self) -> None:
        """The block is left; nothing is recorded after this. Harmless a second time."""
        self.steps.check = self.steps.before_step = self.steps.after_step = None
        self.steps.pause()
        tracer, self.tracer = self.tracer, None
        if tracer is not None and (trouble := tracer.close()):
            self._say(PROFILER_PROBLEM, f"{TRACE_WORD}: {trouble}")
        memory, self._memory = self._memory, None
        if memory is not None and (nothing := memory.close()):
            self._say(MEMORY_TAG, f"no memory series: {nothing}")

    def _say(self, tag: str, text: str) -> None:
        if not self._rank:  # the others have the same to say
            self._journal.say(EventKind.TAGS, values={tag: text})


class EpochMarker(Marker):
    """An epoch: its steps are timed from its begin, and may be traced."""

    def __init__(
        self,
        journal: Marking,
        number: int,
        instruments: Instruments,
        total: int | None = None,
    ) -> None:
        self._instruments = instruments
        tracer = instruments.tracer
        if tracer is not None:
            tracer.epoch_begins(number, total)  # starting takes its time, which is not the epoch's
        try:
            super().__init__(journal, RecordKind.EPOCH_BEGIN, RecordKind.EPOCH_END, "epoch", number)
        except BaseException:  # the run's epochs or time are used up
            if tracer is not None:
                tracer.epoch_ended()
            raise
        instruments.steps.begin()

    def _before_end(self) -> None:
        self._instruments.steps.pause()

    def _after_end(self) -> None:
        if self._instruments.tracer is not None:
            self._instruments.tracer.epoch_ended()
