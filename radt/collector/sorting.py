"""Which of a listener's readings concern which run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from radt.errors import ListenerError
from radt.listeners.api import Metric, Occurrence, Reading
from radt.model import Scope


class SortedReadings:
    """What a listener has read at one instant, looked through once for all runs.

    A value of the host concerns every run, one of a device the runs on it, one of a process tree
    its run only.

    Raises:
        ListenerError: A reading of a device or a process tree does not say of which.
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
            elif (reading.run_id if scope is Scope.PROCESS else reading.gpu) is None:
                assert isinstance(reading, Reading)
                lack = "run_id" if scope is Scope.PROCESS else "gpu"
                raise ListenerError(f"its {reading.metric} (scope {scope}) comes without {lack}")
            elif scope is Scope.PROCESS:
                self._by_run.setdefault(reading.run_id, []).append(reading)
            else:
                self._by_gpu.setdefault(reading.gpu, []).append(reading)

    def concerning(self, run_id: str, devices: Sequence[str]) -> Iterator[Reading | Occurrence]:
        """What a run on these devices gets, each of it once.

        Two devices of a run may be instances of one card, which is read for both.
        """
        yield from self._everybody
        yield from self._by_run.get(run_id, ())
        if len(devices) == 1:
            yield from self._by_gpu.get(devices[0], ())
            return
        told: set[tuple[str, str]] = set()
        for device in devices:
            for reading in self._by_gpu.get(device, ()):
                if _what(reading) not in told:
                    yield reading
            told |= {_what(reading) for reading in self._by_gpu.get(device, ())}


def _what(reading: Reading | Occurrence) -> tuple[str, str]:
    if isinstance(reading, Occurrence):
        return reading.name, reading.detail
    return reading.metric, reading.entity


def _scope_of(occurrence: Occurrence) -> Scope:
    if occurrence.run_id is not None:
        return Scope.PROCESS
    return Scope.HOST if occurrence.gpu is None else Scope.GPU
