"""A study of collocation with known numbers, as the runner and the collector leave it behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np

from radt.model import SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
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
BEGAN_NS = 1_780_000_000 * S
FINISHED, OOM, KILLED = RunStatus.FINISHED, RunStatus.OOM, RunStatus.KILLED
GAUGE, COUNTER = SeriesKind.GAUGE, SeriesKind.COUNTER
RULE = "share of the card's energy above idle, by SM time"
#: The first epoch takes longer, and is at full load: if it counted, every mean would be wrong.
WARM_UP_S = 9.0


@dataclass
class Planted:
    """What a run is to show in the epochs that count.

    ``gpu`` are gauges of the card by metric; ``watts`` is how fast its counter of energy grows, and
    ``share_w`` what of it is estimated for the run.
    """

    letter: str
    epoch_s: float
    name: str = "resnet26"
    params: Mapping[str, str] = field(default_factory=dict)
    status: RunStatus = RunStatus.FINISHED
    samples_per_s: float = 1000.0
    cores: float = 0.98
    rss: tuple[float, float] = (2e9, 2.5e9)
    gpu: Mapping[str, float] = field(default_factory=dict)
    watts: float | None = None
    share_w: float | None = None
    disk_per_s: float | None = None
    epochs: int = 3
    devices: str = "0"


class Study:
    """Writes workloads one after the other."""

    def __init__(self, store: Path | str, experiment: str = "study") -> None:
        self.store, self.experiment = store, experiment
        self.writer = StoreWriter(store)
        self.count = 0
        self.now_ns = BEGAN_NS

    def workload(
        self,
        label: str,
        runs: Sequence[Planted],
        *,
        tags: Mapping[str, str] | None = None,
        host: str = "gpu-01",
    ) -> str:
        """A workload from its barrier to its end; returns its id."""
        self.count += 1
        workload_id = f"{self.count:08x}{crc32(self.experiment.encode()):08x}" + "d" * 16
        origin_ns, end_ns = self.now_ns, self.now_ns
        with self.writer.transaction():
            self.writer.put_workload(
                WorkloadRecord(
                    workload_id,
                    self.experiment,
                    label,
                    origin_ns - S,
                    status=RunStatus.FINISHED,
                    barrier_ns=origin_ns,
                )
            )
            for run in runs:
                end_ns = max(end_ns, self._run(label, workload_id, run, origin_ns, host))
                self.writer.put_tags(self.run_id(workload_id, run.letter), tags or {})
        self.now_ns = end_ns + 10 * S
        return workload_id

    @staticmethod
    def run_id(workload_id: str, letter: str) -> str:
        """Of a run of a workload."""
        return workload_id[:16] + f"{ord(letter):02x}" * 8

    def _run(self, label: str, workload_id: str, run: Planted, origin_ns: int, host: str) -> int:
        run_id = self.run_id(workload_id, run.letter)
        edges_s = np.cumsum([1.0, WARM_UP_S, *[run.epoch_s] * (run.epochs - 1)])
        end_ns = origin_ns + round((float(edges_s[-1]) + 1) * S)
        text = " ".join(f"--{key} {value}" for key, value in run.params.items())
        self.writer.put_run(
            RunRecord(
                run_id,
                workload_id,
                self.experiment,
                label,
                run.letter,
                run.name,
                origin_ns - S,
                run.status,
                devices=run.devices,
                host=host,
                started_ns=origin_ns,
                ended_ns=end_ns if run.status.ended else None,
                end_reason="" if run.status is RunStatus.FINISHED else "CUDA out of memory",
            )
        )
        self.writer.put_params(run_id, {"File": "train.py", "Params": text, **run.params})
        edges_ns = origin_ns + np.round(edges_s * S).astype(np.int64)
        self.writer.put_markers(
            [
                MarkerRecord(
                    *(run_id, number, MarkerKind.EPOCH, f"epoch {number + 1}"),
                    *(int(edges_ns[number]), int(edges_ns[number + 1]), number + 1),
                )
                for number in range(run.epochs)
            ]
        )
        self._samples(run, run_id, origin_ns, float(edges_s[1]), float(edges_s[-1]))
        self.writer.seal(run_id)
        return end_ns

    def _samples(
        self, run: Planted, run_id: str, origin_ns: int, warm_s: float, end_s: float
    ) -> None:
        times_s = np.arange(0.0, end_s + 0.25, 0.25)
        counted = times_s >= warm_s
        found: list[tuple[SeriesRecord, np.ndarray]] = []

        def add(
            listener: str, metric: str, unit: str, scope: Scope, kind: SeriesKind, values: object
        ) -> None:
            entity = "gpu0" if scope is Scope.GPU else ""
            estimated = metric == "process.gpu.energy"
            record = SeriesRecord(
                *(run_id, len(found), listener, metric, unit, scope, kind, entity, 0.25),
                method=RULE if estimated else "",
                estimated=estimated,
            )
            found.append((record, np.broadcast_to(np.asarray(values, float), times_s.shape)))

        def gauge(value: float) -> np.ndarray:
            return np.where(counted, value, value * 40)

        add(SOFTWARE, "samples_per_s", "1/s", Scope.RUN, GAUGE, gauge(run.samples_per_s))
        add("top", "process.cpu.utilization", "cores", Scope.PROCESS, GAUGE, gauge(run.cores))
        mean, peak = run.rss
        rss = np.full(len(times_s), mean)
        middle = int(np.searchsorted(times_s, (warm_s + end_s) / 2)) - 1
        # Two points off the mean that leave it as it is.
        rss[middle], rss[middle + 1] = peak, 2 * mean - peak
        add("top", "process.memory.rss", "By", Scope.PROCESS, GAUGE, rss)
        for metric, value in run.gpu.items():
            unit = {"gpu.power": "W", "gpu.memory.used": "By"}.get(metric, "1")
            add("smi", metric, unit, Scope.GPU, GAUGE, gauge(value))
        if run.watts is not None:
            # One counter for all that use the card.
            since_s = (origin_ns - BEGAN_NS) / S
            energy = (since_s + times_s) * run.watts
            add("smi", "gpu.energy", "J", Scope.GPU, COUNTER, energy)
        if run.share_w is not None:
            add("smi", "process.gpu.energy", "J", Scope.PROCESS, COUNTER, times_s * run.share_w)
        if run.disk_per_s is not None:
            add(
                "iostat",
                "process.disk.read",
                "By",
                Scope.PROCESS,
                COUNTER,
                times_s * run.disk_per_s,
            )
        self.writer.add_series([record for record, _ in found])
        times_ns = origin_ns + np.round(times_s * S).astype(np.int64)
        self.writer.append(
            run_id,
            [SeriesBatch(one.series_no, Samples(times_ns, values.copy())) for one, values in found],
        )


def collocation(study: Study) -> Study:
    """One, three and seven at a time, under three ways to share a card, as in a paper."""
    memory = 5.2e9
    for way, slow in (("naive", 1.0), ("MPS", 0.86)):
        for count, factor, active in (
            (1, 1.0, 0.31),
            (2, 1.05, 0.55),
            (3, 1.34, 0.74),
            (7, 1.8, 0.96),
        ):
            for repeat in range(3):
                epoch_s = 4.0 * (1 + (factor - 1) * slow) * (1 + 0.03 * (repeat - 1))
                study.workload(
                    f"{count}x {way}",
                    [
                        Planted(
                            letter,
                            epoch_s * (1 + 0.02 * place),
                            params={"batch-size": "128"},
                            status=OOM if (count, way, letter) == (7, "naive", "g") else FINISHED,
                            samples_per_s=12_500 / epoch_s,
                            cores=0.97 if count < 3 else 0.71,
                            gpu={
                                "gpu.sm.active": active,
                                "gpu.utilization": min(1.0, active * 1.4),
                                "gpu.memory.used": memory * count,
                                "gpu.power": 110 + 210 * active,
                            },
                            watts=110 + 210 * active,
                            share_w=(60 + 200 * active) / count,
                            disk_per_s=3.1e6,
                        )
                        for place, letter in enumerate("abcdefg"[:count])
                    ],
                    tags={"radt.series": "s"},
                )
    study.workload(
        "mix S+L",
        [
            Planted("a", 5.1, params={"batch-size": "128"}),
            Planted("b", 17.3, name="resnet152", params={"batch-size": "32"}, samples_per_s=310.0),
        ],
    )
    for label, letters, status in (("14x naive", "abcdefg", OOM), ("lost", "a", KILLED)):
        study.workload(
            label,
            [Planted(c, 5.0, params={"batch-size": "128"}, status=status) for c in letters],
        )
    return study


def sweep(study: Study, count: int = 8) -> Study:
    """Runs of one script that differ in their parameters."""
    for number in range(count):
        study.workload(
            f"{number:03}",
            [
                Planted(
                    "a",
                    2.0 + number / 8,
                    name="train",
                    params={
                        "lr": f"{0.1 / (1 + number):.3g}",
                        "batch-size": str(2 ** (4 + number % 3)),
                    },
                )
            ],
        )
    return study
