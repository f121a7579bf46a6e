"""Record PyTorch's own memory statistics from within the training process.

A thread reads them once a second. It asks the allocator, which counts on the host: no call here
waits for the GPU, creates a context on a device that the script does not use, or resets a counter
that the script may use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
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

_ALLOCATED = JournalSeries(METRICS_WORD, "torch.memory.allocated", "By", Scope.PROCESS)
_RESERVED = JournalSeries(METRICS_WORD, "torch.memory.reserved", "By", Scope.PROCESS)
_PEAK = JournalSeries(
    METRICS_WORD,
    "torch.memory.allocated.peak",
    "By",
    Scope.PROCESS,
    method="PyTorch's own maximum, which starts over when the script resets it",
)
_RETRIES = JournalSeries(
    METRICS_WORD, "torch.memory.retries", "1", Scope.PROCESS, SeriesKind.COUNTER
)
_OOMS = JournalSeries(METRICS_WORD, "torch.memory.ooms", "1", Scope.PROCESS, SeriesKind.COUNTER)
#: The key of each series in `torch.cuda.memory_stats`.
CUDA_KEYS = {
    _ALLOCATED: "allocated_bytes.all.current",
    _RESERVED: "reserved_bytes.all.current",
    _PEAK: "allocated_bytes.all.peak",
    _RETRIES: "num_alloc_retries",
    _OOMS: "num_ooms",
}


class MemoryWatch:
    """Records PyTorch's memory from `start` to `close`, in a separate thread.

    Args:
        journal: Where the values go.
    """

    def __init__(self, journal: JournalWriter | NullJournal) -> None:
        self._journal = journal
        self._used: set[str] = set()
        self._failure = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="radt torch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> str:
        """Read a last time. Return why nothing was recorded, or "" if something was."""
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
                if values.get(_RESERVED) or entity in self._used:  # else the device is unused
                    self._used.add(entity)
                    for series, value in values.items():
                        self._journal.sample(replace(series, entity=entity).name, value)
        except Exception as error:  # noqa: BLE001 - other versions of torch may raise anything
            self._failure = f"PyTorch's memory cannot be read: {described(error)}"
            warn_once(f"{self._failure}. Training goes on, without these values")


def _devices(torch: Any) -> Iterator[tuple[str, dict[JournalSeries, float]]]:
    """Yield PyTorch's values for each of its devices, with PyTorch's name of the device."""
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(index)
            yield (
                f"cuda:{index}",
                {series: stats[key] for series, key in CUDA_KEYS.items() if key in stats},
            )
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        allocated, reserved = torch.mps.current_allocated_memory, torch.mps.driver_allocated_memory
        yield "mps", {_ALLOCATED: allocated(), _RESERVED: reserved()}


def _why_nothing() -> str:
    """Return why there was no memory to read, without a call that would initialise CUDA."""
    torch = loaded_torch()
    if torch is None:
        return "the script has not imported torch"
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA, and counts no memory of a CPU"
    if not torch.cuda.is_initialized():
        return "the script has not used CUDA"
    return "the script has put nothing on a GPU"
