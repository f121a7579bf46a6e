"""Workloads with a planted truth: what their page has to say is known to the digit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

BEGAN_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000
EVIL = "<img src=x onerror=\"document.title='broken in'\">"
GB = 1e9
PLANTED_SETUP_S = 5.0


@dataclass
class Planted:
    """One run: seconds are since the barrier."""

    letter: str
    name: str = "resnet26"
    epoch_s: float = 4.2
    epochs: int = 3
    start_s: float = 0.0
    end_s: float | None = None
    status: RunStatus = RunStatus.FINISHED
    reason: str = ""
    devices: str = "cpu"
    collocation: str = "-"
    cores: float | None = 1.0
    gap_s: tuple[float, float] | None = None
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    spool: str = ""

    @property
    def until_s(self) -> float:
        """When it ended, or the last that is known of it."""
        return 1.0 + self.epochs * self.epoch_s + 0.4 if self.end_s is None else self.end_s


class Bench:
    """Writes workloads as the runner and the collector would."""

    def __init__(self, store: Path, host: str = "bench-1") -> None:
        store.parent.mkdir(parents=True, exist_ok=True)
        self.store, self.host = store, host
        self.writer = StoreWriter(store)
        self.now_ns = BEGAN_NS

    def close(self) -> None:
        self.writer.close()

    def workload(
        self,
        label: str,
        runs: Sequence[Planted],
        *,
        experiment: str = "planted",
        skew_ns: int | None = 6_000_000,
    ) -> str:
        """A workload from its set-up to its end; returns its id."""
        workload_id = uuid.uuid4().hex
        barrier_ns = self.now_ns
        created_ns = barrier_ns - round(PLANTED_SETUP_S * SECOND_NS)
        with self.writer.transaction():
            self.writer.put_workload(
                WorkloadRecord(
                    workload_id,
                    experiment,
                    label,
                    created_ns,
                    status=RunStatus.FINISHED,
                    barrier_ns=barrier_ns,
                    start_skew_ns=skew_ns,
                )
            )
            for run in runs:
                self._run(experiment, label, workload_id, run, created_ns, barrier_ns)
        self.now_ns += round((max(run.until_s for run in runs) + 30) * SECOND_NS)
        return workload_id

    def _run(
        self,
        experiment: str,
        label: str,
        workload_id: str,
        run: Planted,
        created_ns: int,
        barrier_ns: int,
    ) -> None:
        ended = run.status.ended
        self.writer.put_run(
            RunRecord(
                run.run_id,
                workload_id,
                experiment,
                label,
                run.letter,
                run.name,
                created_ns,
                status=run.status,
                devices=run.devices,
                collocation=run.collocation,
                listeners="top",
                command=f"train.py --model {run.name}",
                host=self.host,
                spool=run.spool,
                started_ns=at(barrier_ns, run.start_s),
                ended_ns=at(barrier_ns, run.until_s) if ended else None,
                exit_code=0 if run.status is RunStatus.FINISHED else 1 if ended else None,
                end_reason=run.reason,
            )
        )
        self.writer.put_params(run.run_id, {"File": "train.py", "Params": "-s", **run.params})
        if run.tags:
            self.writer.put_tags(run.run_id, run.tags)
        self.writer.put_markers(_markers(run, barrier_ns))
        if run.cores is not None:
            self._cpu(run, barrier_ns)

    def _cpu(self, run: Planted, barrier_ns: int) -> None:
        ticks_s = np.arange(run.start_s + 0.5, run.until_s, 0.5)
        missed = 0
        if run.gap_s is not None:
            hole = (ticks_s > run.gap_s[0]) & (ticks_s < run.gap_s[1])
            missed = int(hole.sum())
            ticks_s = ticks_s[~hole]
            self.writer.put_gaps(
                [
                    GapRecord(
                        run.run_id,
                        "top",
                        -1,
                        at(barrier_ns, run.gap_s[0]),
                        at(barrier_ns, run.gap_s[1]),
                        MissingReason.LOST,
                        "the collector was restarted",
                    )
                ]
            )
        count = len(ticks_s)
        self.series(
            run,
            "process.cpu.utilization",
            "cores",
            Scope.PROCESS,
            barrier_ns,
            ticks_s,
            np.full(count, run.cores),
        )
        self.writer.put_ledger(
            LedgerRecord(
                run.run_id,
                "top",
                0.5,
                count + missed,
                count,
                missed,
                count * 400_000,
                "ended",
                late_ns=count * 100_000,
                late_max_ns=3_000_000,
            )
        )

    def series(
        self,
        run: Planted,
        metric: str,
        unit: str,
        scope: Scope,
        barrier_ns: int,
        ticks_s: Any,
        values: Any,
        *,
        entity: str = "",
        kind: SeriesKind = SeriesKind.GAUGE,
        estimated: bool = False,
        listener: str = "top",
    ) -> None:
        """Points of one series of a run."""
        number = self._numbers.get(run.run_id, 0)
        self._numbers[run.run_id] = number + 1
        self.writer.add_series(
            [
                SeriesRecord(
                    run.run_id,
                    number,
                    listener,
                    metric,
                    unit,
                    scope,
                    kind,
                    entity,
                    0.5,
                    estimated=estimated,
                )
            ]
        )
        times_ns = barrier_ns + np.round(np.asarray(ticks_s) * SECOND_NS).astype(np.int64)
        points = Samples(times_ns, np.asarray(values, dtype=np.float64))
        self.writer.append(run.run_id, [SeriesBatch(number, points)])

    @property
    def _numbers(self) -> dict[str, int]:
        if not hasattr(self, "_series_numbers"):
            self._series_numbers: dict[str, int] = {}
        return self._series_numbers

    def gpu(self, run: Planted, barrier_ns: int, share_bytes: float, watts: float) -> None:
        """What a run had of GPU 0, and what its neighbours' listener read of the whole card."""
        ticks_s = np.arange(0.5, run.until_s, 0.5)
        count = len(ticks_s)
        self.series(
            run,
            "process.gpu.memory",
            "By",
            Scope.PROCESS,
            barrier_ns,
            ticks_s,
            np.full(count, share_bytes),
            entity="gpu0",
            listener="smi",
        )
        self.series(
            run,
            "process.gpu.energy",
            "J",
            Scope.PROCESS,
            barrier_ns,
            ticks_s,
            watts * ticks_s,
            entity="gpu0",
            kind=SeriesKind.COUNTER,
            estimated=True,
            listener="smi",
        )
        self.series(
            run,
            "gpu.memory.used",
            "By",
            Scope.GPU,
            barrier_ns,
            ticks_s,
            np.full(count, 38.9 * GB),
            entity="gpu0",
            listener="smi",
        )
        self.series(
            run,
            "gpu.memory.total",
            "By",
            Scope.GPU,
            barrier_ns,
            ticks_s,
            np.full(count, 40.0 * GB),
            entity="gpu0",
            listener="smi",
        )
        self.series(
            run,
            "gpu.power",
            "W",
            Scope.GPU,
            barrier_ns,
            ticks_s,
            np.full(count, 281.0),
            entity="gpu0",
            listener="smi",
        )
        self.series(
            run,
            "gpu.utilization",
            "1",
            Scope.GPU,
            barrier_ns,
            ticks_s,
            np.full(count, 0.94),
            entity="gpu0",
            listener="smi",
        )


def at(barrier_ns: int, seconds: float) -> int:
    return barrier_ns + round(seconds * SECOND_NS)


def _markers(run: Planted, barrier_ns: int) -> list[MarkerRecord]:
    found: list[MarkerRecord] = []
    for epoch in range(run.epochs):
        start_s = 1.0 + run.start_s + epoch * run.epoch_s
        end_s = start_s + run.epoch_s
        if start_s >= run.until_s:
            break
        is_cut = end_s > run.until_s
        found.append(
            MarkerRecord(
                run.run_id,
                len(found),
                MarkerKind.EPOCH,
                f"epoch {epoch + 1}",
                at(barrier_ns, start_s),
                None if is_cut else at(barrier_ns, end_s),
                step=epoch + 1,
            )
        )
        if not is_cut:
            found.append(
                MarkerRecord(
                    run.run_id,
                    len(found),
                    MarkerKind.SPAN,
                    "validate",
                    at(barrier_ns, end_s - 0.2 * run.epoch_s),
                    at(barrier_ns, end_s),
                )
            )
    return found


def planted_three(bench: Bench, spool: Path | None = None) -> tuple[str, list[Planted]]:
    """A run alone, then three that share GPU 0 under MPS, of which one runs out of memory.

    Alone an epoch takes 4.2 s; beside others 1.5 times (a) and 2 times (b) as long. Starts are 0, 3
    and 6 s after the barrier; the last end is at 30 s; c ends at 15 s: all run from 6 to 15 s.
    """
    solo = Planted("a", devices="0")
    bench.workload("solo", [solo])
    runs = [
        Planted(
            "a",
            epoch_s=6.3,
            epochs=3,
            end_s=30.0,
            devices="0",
            collocation="MPS:40",
            cores=0.5,
            tags={"radt.mps.thread_percentage": "40", "radt.gpus": "A100"},
        ),
        Planted(
            "b",
            epoch_s=8.4,
            epochs=3,
            start_s=3.0,
            end_s=29.5,
            devices="0",
            collocation="MPS:40",
            cores=0.25,
            gap_s=(10.0, 14.0),
            params={"lr": EVIL},
            name=EVIL,
        ),
        Planted(
            "c",
            epoch_s=8.4,
            epochs=3,
            start_s=6.0,
            end_s=15.0,
            status=RunStatus.OOM,
            reason="CUDA ran out of memory at 38.9 of 39.6 GB",
            devices="0",
            collocation="MPS:40",
            cores=0.5,
        ),
    ]
    if spool is not None:
        for run in runs:
            run.spool = str(spool / run.run_id)
    barrier_ns = bench.now_ns
    workload_id = bench.workload("three", runs)
    for run, share, watts in zip(runs, (12.0, 16.0, 10.0), (100.0, 80.0, 60.0), strict=True):
        bench.gpu(run, barrier_ns, share * GB, watts)
    return workload_id, runs
