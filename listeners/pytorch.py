"""PyTorch's memory statistics and its profiler, both inside the run's process.

Neither imports torch. They set variables that `radt.Run` in the training script reads; a script
without a ``with radt.Run()`` block records nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from radt.listeners.api import Availability, Metric, ProfiledRun, Profiler
from radt.model import Scope, SeriesKind

#: Read by `radt.Run`; the same names as in `radt.run.torch_options`.
METRICS_VARIABLE = "RADT_TORCH"
TRACE_VARIABLE = "RADT_TORCHPROF"
TRACE_OPTIONS_VARIABLE = "RADT_TORCHPROF_OPTIONS"

_EPOCHS = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")
_STEPS = re.compile(r"[1-9][0-9]*")


def _memory(name: str, description: str, method: str = "") -> Metric:
    return Metric(name, "By", Scope.PROCESS, description=description, method=method)


def _count(name: str, description: str) -> Metric:
    return Metric(name, "1", Scope.PROCESS, SeriesKind.COUNTER, description)


_METRICS = (
    _memory("torch.memory.allocated", "device memory of the process's tensors"),
    _memory("torch.memory.reserved", "device memory of PyTorch's allocator, in use or not"),
    _memory(
        "torch.memory.allocated.peak",
        "peak of allocated memory so far",
        "PyTorch's own maximum, which starts over when the script resets it",
    ),
    _count("torch.memory.retries", "allocations that succeeded only after the cache was emptied"),
    _count("torch.memory.ooms", "out-of-memory errors"),
)


class TorchMetrics(Profiler):
    """PyTorch's memory on each of its devices, each second."""

    name: ClassVar[str] = "torch"
    reads: ClassVar[Sequence[Metric]] = _METRICS
    disturbs: ClassVar[bool] = False

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)  # the row's environment decides whether PyTorch is installed

    def environment(self, run: ProfiledRun) -> Mapping[str, str]:  # noqa: ARG002
        return {METRICS_VARIABLE: "1"}


class TorchProfiler(Profiler):
    """PyTorch's profiler, which writes a trace for Chrome and Perfetto."""

    name: ClassVar[str] = "torchprof"
    accepts: ClassVar[Mapping[str, str]] = {
        "epochs=NUMBERS": "which epochs, as 2-3 or 1,5; default: the second, or the only one",
        "steps=NUMBER": "stop after that many steps, where the script reports them (100)",
        "memory": "every allocation",
        "stack": "the source location of each operation",
        "shapes": "the shapes of inputs",
    }

    @classmethod
    def probe(cls) -> Availability:
        return Availability(True)  # see TorchMetrics

    @classmethod
    def check_option(cls, word: str, value: str | None) -> None:
        if word == "epochs":
            _check_epochs(value or "")
        elif word == "steps":
            if not _STEPS.fullmatch(value or ""):
                raise ValueError(f"steps={value or ''} is not a number of steps; write steps=20")
        elif value is not None:
            raise ValueError(f"{word} takes no value; write {cls.name}:{word}")

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
            raise ValueError(f"epochs={part} ends before it begins; write epochs={last}-{first}")
