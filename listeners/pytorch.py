"""What PyTorch knows of itself: its memory, and its own profiler. Both work in the run's process.

Neither imports torch. They set variables which `radt.Run` in the training script looks for; a
script without a ``with radt.Run()`` block records nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from radt.listeners.api import Availability, Metric, ProfiledRun, Profiler
from radt.model import Scope, SeriesKind

#: What `radt.Run` looks for; the same names as in `radt.run.torch_options`.
METRICS_VARIABLE = "RADT_TORCH"
TRACE_VARIABLE = "RADT_TORCHPROF"
TRACE_OPTIONS_VARIABLE = "RADT_TORCHPROF_OPTIONS"

_EPOCHS = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")
_STEPS = re.compile(r"[1-9][0-9]*")

_METRICS = (
    Metric(
        "torch.memory.allocated",
        "By",
        Scope.PROCESS,
        description="what tensors of the process take of the device",
    ),
    Metric(
        "torch.memory.reserved",
        "By",
        Scope.PROCESS,
        description="what PyTorch's allocator has taken of the device, in use or not",
    ),
    Metric(
        "torch.memory.allocated.peak",
        "By",
        Scope.PROCESS,
        description="the most that was allocated so far",
        method="PyTorch's own maximum, which begins anew when the script resets it",
    ),
    Metric(
        "torch.memory.retries",
        "1",
        Scope.PROCESS,
        SeriesKind.COUNTER,
        description="allocations that succeeded only after the cache was emptied",
    ),
    Metric(
        "torch.memory.ooms",
        "1",
        Scope.PROCESS,
        SeriesKind.COUNTER,
        description="errors for want of memory",
    ),
)


class TorchMetrics(Profiler):
    """PyTorch's memory on each of its devices, each second."""

    name: ClassVar[str] = "torch"
    disturbs: ClassVar[bool] = False

    @classmethod
    def probe(cls) -> Availability:
        """Everywhere: whether there is PyTorch depends on the environment of the row."""
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return _METRICS

    def environment(self, run: ProfiledRun) -> Mapping[str, str]:  # noqa: ARG002
        return {METRICS_VARIABLE: "1"}


class TorchProfiler(Profiler):
    """PyTorch's profiler, which writes a trace for Chrome and Perfetto."""

    name: ClassVar[str] = "torchprof"
    accepts: ClassVar[Mapping[str, str]] = {
        "epochs=NUMBERS": "which epochs, as 2-3 or 1,5; the second, or the only one, if not given",
        "steps=NUMBER": "stop after that many steps, where the script reports them (100)",
        "memory": "every allocation",
        "stack": "where in the source each operation was called",
        "shapes": "the shapes of inputs",
    }

    @classmethod
    def probe(cls) -> Availability:
        """Everywhere: whether there is PyTorch depends on the environment of the row."""
        return Availability(True)

    @classmethod
    def check_option(cls, word: str, value: str | None) -> None:
        if word == "epochs":
            _check_epochs(value or "")
        elif word == "steps":
            if not _STEPS.fullmatch(value or ""):
                raise ValueError(f"steps={value or ''} is not a number of steps; write steps=20")
        elif value is not None:
            raise ValueError(f"{word} has no value; write {cls.name}:{word}")

    def environment(self, run: ProfiledRun) -> Mapping[str, str]:
        options = ":".join(
            word if value is None else f"{word}={value}" for word, value in run.options.items()
        )
        return {TRACE_VARIABLE: str(run.reports), TRACE_OPTIONS_VARIABLE: options}


def _check_epochs(text: str) -> None:
    if not _EPOCHS.fullmatch(text):
        raise ValueError(
            f"epochs={text} is not a list of epochs; write epochs=2, epochs=2-3 or epochs=1,5"
        )
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"epochs={part} end before they begin; write epochs={last}-{first}")
