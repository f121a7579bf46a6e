"""What measures the training process from inside, from the entrance of a block to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from radt.journal.format import EventKind, RecordKind
from radt.run.markers import Marker, Marking
from radt.run.steps import Sampled, StepRecorder
from radt.run.torch_options import TRACE_WORD, TorchWishes
from radt.tags import PROFILER_PROBLEM

if TYPE_CHECKING:
    from radt.run.target import Target
    from radt.run.torch_metrics import MemoryWatch
    from radt.run.torch_trace import TorchTracer

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
