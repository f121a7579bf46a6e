"""Planted experiments: runs alone and together whose numbers are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radt.analysis.advice import Advice, advise
from radt.analysis.advice_model import Prediction
from radt.model import MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter

S = 1_000_000_000
GB = 1e9
A100 = "NVIDIA A100-SXM4-40GB"
#: As its driver says: 40 GiB.
A100_BYTES = float(40 * 2**30)
IDLE_BYTES = 0.4 * GB
CORES = 16
HOST_FREE_BYTES = 100 * GB


@dataclass
class Run:
    """One row. What is None was not measured.

    ``memory`` is the run's own on the card, or in the machine on the CPU.
    """

    name: str
    epoch_s: float | None = 4.0
    sm: float | None = 0.3
    kernel: float | None = 0.6
    dram: float | None = 0.1
    cores: float | None = 1.0
    memory: float | None = 5 * GB
    collocation: str = "-"
    status: RunStatus = RunStatus.FINISHED
    devices: str = "0"
    host: str = "gpu-01"
    process_memory: bool = True
    params: Mapping[str, str] = field(default_factory=dict)
    logged: Mapping[str, str] = field(default_factory=dict)
    samples_per_s: float | None = None
    data_wait: float | None = None
    spool: str = ""
    script: str = "/lab/train.py"
    listeners: str = "top+smi+gpm"


class Lab:
    """Writes an experiment, workload after workload."""

    def __init__(self, home: Path, experiment: str = "study", *, gpus: str = A100) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.store = home / "radt.db"
        self.experiment = experiment
        self.gpus = gpus
        self.cores: int | None = CORES
        self.host_load: float | None = None
        self.tags: dict[str, str] = {}
        self._writer = StoreWriter(self.store)
        self._count = 0

    def alone(self, run: Run, label: str = "") -> None:
        """A workload of one run."""
        self.together(label or f"{run.name} alone {run.collocation}", [run])

    def together(self, label: str, runs: Sequence[Run]) -> None:
        """A workload of several."""
        self._count += 1
        workload_id = f"{self._count:032x}"
        began_ns = 1_780_000_000 * S + self._count * 1000 * S
        with self._writer.transaction():
            self._writer.put_workload(
                WorkloadRecord(
                    workload_id,
                    self.experiment,
                    label,
                    began_ns,
                    status=RunStatus.FINISHED,
                    barrier_ns=began_ns,
                )
            )
            for number, run in enumerate(runs):
                self._run(workload_id, label, number, run, began_ns)

    def copies(self, count: int, run: Run, label: str = "") -> None:
        """Several of the same."""
        self.together(label or f"{count} {run.name} {run.collocation}", [run] * count)

    def _run(self, workload_id: str, label: str, number: int, run: Run, began_ns: int) -> None:
        run_id = f"{self._count:08x}{number:024x}"
        times_s = [0.0, 10.0]  # warm-up
        times_s += [10.0 + (run.epoch_s or 4.0) * (epoch + 1) for epoch in range(3)]
        ended_ns = began_ns + round((times_s[-1] + 1) * S)
        params = {"model": run.name, **run.params}
        arguments = " ".join(f"--{name} {value}" for name, value in params.items())
        self._writer.put_run(
            RunRecord(
                run_id,
                workload_id,
                self.experiment,
                label,
                chr(ord("a") + number),
                run.name,
                began_ns,
                run.status,
                devices=run.devices,
                collocation=run.collocation,
                listeners=run.listeners,
                command=f"/usr/bin/python {run.script} {arguments}",
                host=run.host,
                started_ns=began_ns,
                ended_ns=ended_ns,
            )
        )
        script = Path(run.script).name
        given = {"File": script, "Params": arguments, **params, **run.logged}
        self._writer.put_params(run_id, given)
        tags = {"radt.gpus": self.gpus, **self.tags}
        if self.cores is not None:
            tags["radt.cpu_count"] = str(self.cores)
        self._writer.put_tags(run_id, tags)
        if run.epoch_s is not None:
            edges = [began_ns + round(second * S) for second in times_s]
            self._writer.put_markers(
                [
                    MarkerRecord(
                        *(run_id, epoch, MarkerKind.EPOCH, f"epoch {epoch + 1}"),
                        *(edges[epoch], edges[epoch + 1], epoch + 1),
                    )
                    for epoch in range(4)
                ]
            )
        self._samples(run_id, run, began_ns, times_s[-1])
        self._writer.seal(run_id)

    def _samples(self, run_id: str, run: Run, began_ns: int, end_s: float) -> None:
        times_s = np.arange(0.0, end_s, 0.5)
        after = times_s >= 10.0
        records: list[SeriesRecord] = []
        batches: list[SeriesBatch] = []

        def add(
            listener: str,
            metric: str,
            scope: Scope,
            warm: float | None,
            then: float | None,
            kind: SeriesKind = SeriesKind.GAUGE,
        ) -> None:
            if warm is None or then is None:
                return
            entity = f"gpu{run.devices}" if scope is Scope.GPU else ""
            number = len(records)
            records.append(
                SeriesRecord(run_id, number, listener, metric, "1", scope, kind, entity, 0.5)
            )
            values = np.where(after, then, warm).astype(np.float64)
            if kind is SeriesKind.COUNTER:
                values = np.cumsum(values) * 0.5
            times_ns = began_ns + np.round(times_s * S).astype(np.int64)
            batches.append(SeriesBatch(number, Samples(times_ns, values)))

        is_gpu = run.devices != "cpu"
        resident = 2 * GB if is_gpu else run.memory
        add("top", "process.cpu.utilization", Scope.PROCESS, 0.1, run.cores)
        add("top", "process.memory.rss", Scope.PROCESS, 0.1 * GB, resident)
        if resident is not None:
            free = HOST_FREE_BYTES
            add("top", "system.memory.available", Scope.HOST, free, free - resident)
        add("top", "system.cpu.utilization", Scope.HOST, self.host_load, self.host_load)
        if run.samples_per_s is not None:
            add("run", "samples_per_s", Scope.RUN, 1.0, run.samples_per_s)
        # Its warm-up waits all the time, for loaders that start.
        add("run", "data_wait", Scope.RUN, 0.99, run.data_wait)
        if is_gpu:
            # Its warm-up is at no load and at little memory: if it counted, all would be wrong.
            add("gpm", "gpu.sm.active", Scope.GPU, 0.0, run.sm)
            add("smi", "gpu.utilization", Scope.GPU, 0.0, run.kernel)
            add("gpm", "gpu.dram.active", Scope.GPU, 0.0, run.dram)
            if run.memory is not None:
                used = IDLE_BYTES + run.memory
                add("smi", "gpu.memory.used", Scope.GPU, IDLE_BYTES, used)
                add("smi", "gpu.memory.total", Scope.GPU, A100_BYTES, A100_BYTES)
                if run.process_memory:
                    add("smi", "process.gpu.memory", Scope.PROCESS, 0.1 * GB, run.memory)
        self._writer.add_series(records)
        self._writer.append(run_id, batches)

    def advice(self, **options: object) -> Advice:
        """What is advised on it."""
        with StoreReader(self.store) as reader:
            return advise(reader, self.experiment, **options)  # type: ignore[arg-type]


def find(advice: Advice, names: Sequence[str], how: str) -> Prediction:
    """The prediction of these models, sharing in this way."""

    (one,) = (
        one
        for one in advice.predictions
        if sorted(row.solo.name for row in one.candidate.rows) == sorted(names)
        and one.candidate.sharing_text == how
    )
    return one
