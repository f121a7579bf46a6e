"""Merge complete PyTorch traces into the file, on radt's clock and with unique ids.

A trace has its own clock. `radt.run.torch_trace` ties it to the monotonic clock by events with a
known name (marks), whose monotonic start times it records with an uncertainty. So each mark gives a
range for the difference of the two clocks; a difference within all ranges is as accurate as the
narrowest of them. If there is none, the clocks drifted (PyTorch uses the wall clock, which is
slewed and stepped), and times between two marks are interpolated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radt.home import RunDir
from radt.trace.chrome import EVENTS_KEY, TraceFile, trace_parts

# Alignment of a PyTorch trace with radt's clock ---------------------------------------------------


#: The trace's top-level key that ties it to the monotonic clock (`radt.run.torch_trace`).
CLOCK_KEY = "radt_clock"
#: The trace's top-level key with the wall-clock time of its time 0.
BASE_KEY = "baseTimeNanoseconds"
#: Category of marks on the CPU; their copies on a GPU begin later.
MARK_CATEGORY = "user_annotation"


@dataclass(frozen=True, slots=True)
class ClockReadings:
    """Clock readings of the profiled process, in order of time (N,).

    ``offset_ns``, added to monotonic times, gives times of radt's clock. (The wall clock's readings
    are recorded, too, but it may have been stepped since radt's was set.)
    """

    marker: str
    process: str
    monotonic_ns: tuple[int, ...]
    uncertainty_ns: tuple[int, ...]
    offset_ns: int

    @classmethod
    def read(cls, value: object) -> ClockReadings | None:
        """Return the readings in the value of `CLOCK_KEY`; None if it is invalid."""
        if not isinstance(value, Mapping) or not isinstance(value.get("marker"), str):
            return None
        offset_ns = value.get("offset_ns")
        monotonic_ns = _numbers(value.get("monotonic_ns"))
        uncertainty_ns = _numbers(value.get("uncertainty_ns"))
        if not isinstance(offset_ns, int) or not monotonic_ns:
            return None
        if list(monotonic_ns) != sorted(monotonic_ns):
            return None
        return cls(
            value["marker"],
            str(value.get("process", "")),
            monotonic_ns,
            (*uncertainty_ns, *(0 for _ in monotonic_ns[len(uncertainty_ns) :])),
            offset_ns,
        )


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) and all(type(x) is int for x in value) else ()


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Maps times of the trace to times of radt's clock, never backwards; nanoseconds.

    ``error_ns`` is the maximum error; None if the trace was placed by the wall clock because it has
    no marks or no clock readings.
    """

    anchors_ns: tuple[int, ...]  # times of the trace
    offsets_ns: tuple[int, ...]  # to be added at the anchors
    error_ns: int | None

    @property
    def drift_ns(self) -> int:
        """Return how much the clocks drifted apart from the first mark to the last; 0 for none."""
        return self.offsets_ns[-1] - self.offsets_ns[0]

    def to_wall_ns(self, trace_ns: int) -> int:
        """Return the time on radt's clock."""
        anchors, offsets = self.anchors_ns, self.offsets_ns
        place = bisect_right(anchors, trace_ns)
        if place == 0:
            return trace_ns + offsets[0]
        if place == len(anchors):
            return trace_ns + offsets[-1]
        before, after = anchors[place - 1], anchors[place]
        growth = offsets[place] - offsets[place - 1]
        return trace_ns + offsets[place - 1] + growth * (trace_ns - before) // (after - before)


def clock_map(marks_ns: Sequence[int], notes: ClockReadings | None, base_ns: int) -> ClockMap:
    """Return the map that aligns a trace with radt's clock.

    Args:
        marks_ns: Starts of the trace's marks, in order; a truncated trace may lack the last ones.
        notes: Clock readings of the profiled process.
        base_ns: Wall-clock time of the trace's time 0.
    """
    if notes is None or not marks_ns:
        return ClockMap((0,), (base_ns,), None)
    ranges = [
        (mark_ns, noted_ns + notes.offset_ns - mark_ns, uncertainty_ns)
        for mark_ns, noted_ns, uncertainty_ns in zip(
            marks_ns, notes.monotonic_ns, notes.uncertainty_ns, strict=False
        )
    ]
    least_ns = max(difference - uncertainty for _, difference, uncertainty in ranges)
    most_ns = min(difference + uncertainty for _, difference, uncertainty in ranges)
    if least_ns <= most_ns:
        middle_ns, error_ns = (least_ns + most_ns) // 2, (most_ns - least_ns + 1) // 2
        return ClockMap((0,), (middle_ns,), error_ns)
    return ClockMap(
        tuple(mark_ns for mark_ns, _, _ in ranges),
        tuple(difference for _, difference, _ in ranges),
        max(uncertainty for _, _, uncertainty in ranges),
    )


_PATTERN = "torch-*.json*"
#: Phases of events that are linked to others by their ``id``.
_BOUND = frozenset("stfbneSTFPNOD")
#: Number of ids per trace, as linked ids are unique only within it. Below 2**53, exact in
#: JavaScript.
_IDS_A_TRACE = 1 << 40
#: radt writes two marks per trace; a more frequent name is not radt's.
_MAX_MARKS = 1000
#: Start of Kineto's sort indices for GPUs, and for the rows that follow them.
_FIRST_GPU, _FIRST_OTHER = 5_000_000, 536_870_912


def torch_traces(spool: Path) -> list[Path]:
    """Return the profiler traces in the artifacts of a run, sorted by name.

    Links that lead out of the run's folder are ignored.
    """
    real = spool.resolve()
    return sorted(
        path
        for path in (RunDir(spool).artifacts / "profiles").rglob(_PATTERN)
        if path.is_file() and path.resolve().is_relative_to(real)
    )


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """A trace before its events are written."""

    path: Path
    clock: ClockMap
    first_ns: int | None
    process: str

    @classmethod
    def look(cls, path: Path) -> TorchTrace:
        """Read a trace once to find its marks and its first time.

        Raises:
            BrokenTraceError: The file is not a trace or is truncated.
            OSError: The file cannot be read.
        """
        header: dict[str, Any] = {}
        begun_us: dict[str, list[float]] = {}
        first_us: float | None = None
        for key, value in trace_parts(path):
            if key != EVENTS_KEY:
                header[key] = value
                continue
            at_us = value.get("ts") if isinstance(value, dict) else None
            if not isinstance(at_us, int | float) or value.get("ph") == "M":
                continue
            first_us = at_us if first_us is None else min(first_us, at_us)
            if value.get("cat") == MARK_CATEGORY and value.get("ph") == "X":
                name = str(value.get("name", ""))
                if len(begun := begun_us.setdefault(name, [])) < _MAX_MARKS:
                    begun.append(at_us)
        notes = ClockReadings.read(header.get(CLOCK_KEY))
        marks_us = [] if notes is None else sorted(begun_us.get(notes.marker, []))
        base_ns = header.get(BASE_KEY)
        clock = clock_map(
            [_ns(at_us) for at_us in marks_us],
            notes,
            base_ns if isinstance(base_ns, int) else 0,
        )
        first_ns = None if first_us is None else clock.to_wall_ns(_ns(first_us))
        return cls(path, clock, first_ns, "" if notes is None else notes.process)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


#: Label of the profiled process, and the number or word in its trace. Ranks number GPUs
#: independently.
_Process = tuple[str, object]


@dataclass(slots=True)
class TorchMerger:
    """Writes the traces of one run with unique ids for its processes and threads.

    Traces of one process share its rows, as a process that profiles several epochs writes several.
    """

    file: TraceFile
    run_name: str
    order: int
    _pids: dict[_Process, int] = field(default_factory=dict)
    _tids: dict[tuple[_Process, object], int] = field(default_factory=dict)

    def write(self, trace: TorchTrace, number: int) -> int:
        """Write all events of the trace with this number; return their count."""
        events = 0
        for key, event in trace_parts(trace.path):
            if key == EVENTS_KEY and isinstance(event, dict):
                self._moved(event, trace, (number + 1) * _IDS_A_TRACE)
                self.file.event(event)
                events += 1
        return events

    def _moved(self, event: dict[str, Any], trace: TorchTrace, first_id: int) -> None:
        phase, clock = event.get("ph"), trace.clock
        process = (trace.process, event.get("pid"))
        if phase == "M":
            self._renamed(event, process)
        at_us = event.get("ts")
        if isinstance(at_us, int | float):
            start_ns = _ns(at_us)
            wall_ns = clock.to_wall_ns(start_ns)
            event["ts"] = self.file.us(wall_ns)
            length_us = event.get("dur")
            if len(clock.anchors_ns) > 1 and isinstance(length_us, int | float):
                end_ns = clock.to_wall_ns(start_ns + _ns(length_us))
                event["dur"] = (end_ns - wall_ns) / 1000
        event["pid"] = self._pid(process)
        if "tid" in event:
            event["tid"] = self._tid(process, event["tid"])
        if "id" in event and phase in _BOUND:
            event["id"] = _apart(event["id"], first_id)
        if "bind_id" in event:
            event["bind_id"] = _apart(event["bind_id"], first_id)

    def _pid(self, process: _Process) -> int:
        """Return the number of a process. Kineto also uses words, which then become its name."""
        if process not in self._pids:
            number = self._pids[process] = self.file.number()
            if isinstance(process[1], str):
                name = self._name(process, process[1] or "marks")
                self.file.metadata("process_name", {"name": name}, number)
                self.file.metadata("process_sort_index", {"sort_index": self.order + 2}, number)
        return self._pids[process]

    def _tid(self, process: _Process, tid: object) -> int:
        if (process, tid) not in self._tids:
            number = self._tids[process, tid] = self.file.number()
            if isinstance(tid, str):
                name = {"name": tid or "marks"}
                self.file.metadata("thread_name", name, self._pid(process), number)
        return self._tids[process, tid]

    def _renamed(self, event: dict[str, Any], process: _Process) -> None:
        """Prefix names of processes with the run's name, and order them within the whole file."""
        args = event.get("args")
        if not isinstance(args, dict):
            return
        if event.get("name") == "process_name":
            args["name"] = self._name(process, f"{args.get('name', '')} {process[1]}")
        elif event.get("name") == "process_sort_index":
            index = args.get("sort_index")
            args["sort_index"] = self.order + _place(index if isinstance(index, int) else 0)

    def _name(self, process: _Process, name: str) -> str:
        label = f" {process[0]}" if process[0] else ""
        return f"{self.run_name}{label}: PyTorch {name}"


def _place(index: int) -> int:
    """Map Kineto's sort index, a 32-bit number, to 0 (CPU), 1 (GPU) or 2 (other)."""
    if index >= _FIRST_OTHER:
        return 2
    return 1 if index >= _FIRST_GPU else 0


def _apart(value: object, first: int) -> object:
    """Return a linked event's id, made distinct from those of other traces."""
    if isinstance(value, int):
        return first + value
    try:
        return f"0x{first + int(str(value), 16):x}"
    except ValueError:
        return f"{first:x} {value}"
