"""A store with a run and its neighbour, and what a trace viewer insists on."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from radt.cli.trace import command as trace
from radt.model import RunStatus
from radt.store.records import RunRecord, Samples, SeriesBatch, SeriesRecord, WorkloadRecord
from radt.store.writer import StoreWriter

RUN_ID = "0123456789abcdef0123456789abcdef"
OTHER_ID = "fedcba9876543210fedcba9876543210"
START_NS = 1_790_000_000_123_456_789
S = 1_000_000_000

Event = dict[str, Any]


class Trace:
    """A written trace, held against the format when it is read."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        self.document = json.loads(text, parse_constant=_no_number)
        self.events: list[Event] = self.document["traceEvents"]
        self.other: Event = self.document["otherData"]
        for event in self.events:
            _check(event)
        self.processes = {
            event["pid"]: event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "process_name"
        }
        self.threads = {
            event["tid"]: event["args"]["name"]
            for event in self.events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        assert len(set(self.processes.values())) == len(self.processes), "processes of one name"
        self._check_numbers()
        self._check_nesting()
        self._check_counters()

    def _check_numbers(self) -> None:
        """Threads belong to one process, and all processes have names."""
        owner: dict[int, int] = {}
        for event in self.events:
            assert event["pid"] in self.processes, event
            if "tid" in event:
                assert owner.setdefault(event["tid"], event["pid"]) == event["pid"], event
        assert not owner.keys() & self.processes.keys(), "a thread has a process's number"

    def _check_nesting(self) -> None:
        """Slices of one thread lie apart or inside each other, parents first."""
        rows = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                start = round(event["ts"] * 1000)
                rows[event["tid"]].append((start, start + round(event["dur"] * 1000)))
        for row in rows.values():
            ends: list[int] = []
            for start, end in sorted(row, key=lambda slice_: (slice_[0], -slice_[1])):
                while ends and ends[-1] <= start:
                    ends.pop()
                assert not ends or end <= ends[-1], "slices overlap"
                ends.append(end)

    def _check_counters(self) -> None:
        """Each track's times go on, and its argument stays the same."""
        last: dict[tuple[int, str], float] = {}
        labels: dict[tuple[int, str], str] = {}
        for event in self.events:
            if event["ph"] == "C":
                key = event["pid"], event["name"]
                assert last.get(key, -1.0) <= event["ts"], event
                last[key] = event["ts"]
                (label,) = event["args"]
                assert labels.setdefault(key, label) == label, event

    def pid(self, beginning: str) -> int:
        """The process whose name begins so."""
        (found,) = (pid for pid, name in self.processes.items() if name.startswith(beginning))
        return found

    def slices(self, pid: int, row: str) -> list[tuple[str, float, float]]:
        """Name, begin and end of the slices of a row; seconds since `START_NS`."""
        return [
            (event["name"], self.seconds(event["ts"]), self.seconds(event["ts"] + event["dur"]))
            for event in self.events
            if event["ph"] == "X" and event["pid"] == pid and self.threads[event["tid"]] == row
        ]

    def counter(self, pid: int, name: str) -> tuple[str, list[tuple[float, float]]]:
        """Unit and points of a counter; seconds since `START_NS`."""
        events = [
            event
            for event in self.events
            if event["ph"] == "C" and event["pid"] == pid and event["name"] == name
        ]
        (unit,) = {label for event in events for label in event["args"]} or {"nothing"}
        return unit, [(self.seconds(event["ts"]), event["args"][unit]) for event in events]

    def seconds(self, us: float) -> float:
        base_ns = int(self.other["time_0_ns"])
        return round((base_ns - START_NS + round(us * 1000)) / 1e9, 9)


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _check(event: Event) -> None:
    assert isinstance(event.get("pid"), int), event
    assert isinstance(event.get("name"), str), event
    phase = event["ph"]
    if phase != "M":
        assert isinstance(event["ts"], int | float), event
        assert 0 <= event["ts"] < 1e13, "since the beginning of the trace, not since 1970"
    match phase:
        case "X":
            assert isinstance(event["tid"], int), event
            assert event["dur"] >= 0, event
        case "i":
            assert isinstance(event.get("tid", 0), int), event
            assert event["s"] in ("t", "p", "g"), event
        case "C":
            (value,) = event["args"].values()
            assert isinstance(value, int | float), event
            assert math.isfinite(value), event
        case "M" | "s" | "f":
            pass
        case _:
            raise AssertionError(f"unexpected phase {phase}")


@dataclass
class Store:
    """A data folder whose runs are made up, and the command on it."""

    home: Path
    writer: StoreWriter

    def run(self, run_id: str = RUN_ID, **fields: object) -> RunRecord:
        defaults: dict[str, object] = {
            "workload_id": "w" * 32,
            "experiment": "digits",
            "workload": "1",
            "letter": "a",
            "name": "cnn",
            "created_ns": START_NS - 60 * S,
            "status": RunStatus.FINISHED,
            "host": "node1",
            "spool": str(self.home / "runs" / run_id),
            "started_ns": START_NS,
            "ended_ns": START_NS + 10 * S,
        }
        run = RunRecord(run_id, **(defaults | fields))  # type: ignore[arg-type]
        self.writer.put_workload(
            WorkloadRecord(run.workload_id, run.experiment, "1", run.created_ns)
        )
        self.writer.put_run(run)
        return run

    def series(
        self, series: SeriesRecord, seconds: list[float], values: list[float]
    ) -> SeriesRecord:
        """Add a series with points at these seconds after the start."""
        times_ns = START_NS + np.round(np.array(seconds) * 1e9).astype(np.int64)
        self.writer.add_series([series])
        batch = SeriesBatch(series.series_no, Samples(times_ns, np.array(values, np.float64)))
        self.writer.append(series.run_id, [batch])
        return series

    def trace(self, *arguments: object, run_id: str = RUN_ID) -> tuple[Trace, str]:
        """What ``radt trace`` writes and says."""
        path = self.home / "out.trace.json.gz"
        result = self.invoke(run_id, "-o", path, *arguments)
        assert result.exit_code == 0, result.output
        return Trace(path), result.output

    def invoke(self, *arguments: object) -> Result:
        return CliRunner().invoke(
            trace, [*map(str, arguments), "--home", str(self.home)], catch_exceptions=False
        )
