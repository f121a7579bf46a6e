"""Which of a listener's readings concern which run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from radt.listeners.api import Metric, Occurrence, Reading
from radt.model import Scope


class SortedReadings:
    """What a listener has read at one instant, looked through once for all runs.

    A value of the host concerns every run, one of a device the runs on it, one of a process tree
    its run only.
    """

    def __init__(
        self, readings: Iterable[Reading | Occurrence], metrics: Mapping[str, Metric]
    ) -> None:
        self._everybody: list[Reading | Occurrence] = []
        self._by_run: dict[str | None, list[Reading | Occurrence]] = {}
        self._by_gpu: dict[str | None, list[Reading | Occurrence]] = {}
        for reading in readings:
            if isinstance(reading, Occurrence):
                scope = _scope_of(reading)
            else:
                scope = metrics[reading.metric].scope
            if scope is Scope.HOST:
                self._everybody.append(reading)
            elif scope is Scope.PROCESS:
                self._by_run.setdefault(reading.run_id, []).append(reading)
            else:
                self._by_gpu.setdefault(reading.gpu, []).append(reading)

    def concerning(self, run_id: str, devices: Iterable[str]) -> Iterator[Reading | Occurrence]:
        """What a run on these devices gets."""
        yield from self._everybody
        yield from self._by_run.get(run_id, ())
        for device in devices:
            yield from self._by_gpu.get(device, ())


def _scope_of(occurrence: Occurrence) -> Scope:
    if occurrence.run_id is not None:
        return Scope.PROCESS
    return Scope.HOST if occurrence.gpu is None else Scope.GPU
