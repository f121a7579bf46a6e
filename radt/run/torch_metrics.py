"""Reads PyTorch's own account of its memory, in the process that trains.

A thread reads once a second. It asks the allocator, which counts on the host: no call here waits
for the GPU, none makes a context on a device that the script does not use, and none resets what the
script may be counting itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from radt.errors import described
from radt.journal.values import JournalSeries
from radt.journal.writer import JournalWriter
from radt.model import Scope, SeriesKind
from radt.run.notices import warn_once
from radt.run.off import NullJournal
from radt.run.torch_options import METRICS_WORD, loaded_torch

INTERVAL_S = 1.0
_JOIN_S = 2.0

#: Metric, unit, kind, method; where `torch.cuda.memory_stats` has it.
_CUDA = (
    ("torch.memory.allocated", "By", SeriesKind.GAUGE, "", ("allocated_bytes", "all", "current")),
    ("torch.memory.reserved", "By", SeriesKind.GAUGE, "", ("reserved_bytes", "all", "current")),
    (
        "torch.memory.allocated.peak",
        "By",
        SeriesKind.GAUGE,
        "PyTorch's own maximum, which starts over when the script resets it",
        ("allocated_bytes", "all", "peak"),
    ),
    ("torch.memory.retries", "1", SeriesKind.COUNTER, "", ("num_alloc_retries",)),
    ("torch.memory.ooms", "1", SeriesKind.COUNTER, "", ("num_ooms",)),
)
#: Metric; the function of `torch.mps` that has it. Both are bytes.
_MPS = (
    ("torch.memory.allocated", "current_allocated_memory"),
    ("torch.memory.reserved", "driver_allocated_memory"),
)
_MPS_ENTITY = "mps"
_RESERVED = "torch.memory.reserved"


class MemoryWatch:
    """Records PyTorch's memory from `start` to `close`, in the thread's own time.

    Args:
        journal: Where the values go.
    """

    def __init__(self, journal: JournalWriter | NullJournal) -> None:
        self._journal = journal
        self._names: dict[tuple[str, str], str] = {}
        self._used: set[str] = set()
        self._failure = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="radt torch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> str:
        """Read a last time; returns why nothing was recorded, empty if something was."""
        self._ended.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._read()
        return "" if self._used else self._failure or _why_nothing()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._read()

    def _read(self) -> None:
        torch = loaded_torch()
        if torch is None or self._failure:
            return
        try:
            for entity, values in _devices(torch):
                self._record(entity, values)
        except Exception as error:  # noqa: BLE001 - another version of torch may raise anything
            self._failure = f"PyTorch's memory cannot be read: {described(error)}"
            warn_once(f"{self._failure}. Training goes on, without these values")

    def _record(self, entity: str, values: dict[JournalSeries, float]) -> None:
        reserved = next((v for series, v in values.items() if series.metric == _RESERVED), 0)
        if not reserved and entity not in self._used:
            return  # a device that the process sees and does not use
        self._used.add(entity)
        for series, value in values.items():
            key = series.metric, entity
            name = self._names.get(key)
            if name is None:
                name = self._names[key] = series.name
            self._journal.sample(name, value)


def _devices(torch: Any) -> Iterator[tuple[str, dict[JournalSeries, float]]]:
    """Yield what PyTorch knows of each of its devices, by the names it has for them."""
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            entity = f"cuda:{index}"
            yield entity, _cuda_values(torch.cuda.memory_stats_as_nested_dict(index), entity)
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        yield (
            _MPS_ENTITY,
            {
                _series(metric, "By", SeriesKind.GAUGE, "", _MPS_ENTITY): float(
                    getattr(torch.mps, function)()
                )
                for metric, function in _MPS
            },
        )


def _cuda_values(stats: dict[str, Any], entity: str) -> dict[JournalSeries, float]:
    values = {}
    for metric, unit, kind, method, path in _CUDA:
        value: Any = stats
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            values[_series(metric, unit, kind, method, entity)] = float(value)
    return values


def _series(metric: str, unit: str, kind: SeriesKind, method: str, entity: str) -> JournalSeries:
    return JournalSeries(METRICS_WORD, metric, unit, Scope.PROCESS, kind, entity, method)


def _why_nothing() -> str:
    """Why there was no memory to read, without asking CUDA anything that would start it."""
    torch = loaded_torch()
    if torch is None:
        return "the script has not imported torch"
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA, and counts no memory of a CPU"
    if not torch.cuda.is_initialized():
        return "the script has not used CUDA"
    return "the script has put nothing on a GPU"
