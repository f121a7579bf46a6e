"""The summary of an experiment, from a real store with known numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.analysis.summaries import WorkloadSummary
from radt.model import SOFTWARE, MarkerKind, RunStatus, Scope, SeriesKind
from radt.render.report import summary_table
from radt.render.terminal import table_lines
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

SECOND_NS = 1_000_000_000


class Study:
    """Writes runs whose epochs take a given time each."""

    def __init__(self, store: Path | str) -> None:
        self.writer = StoreWriter(store)
        self.reader = StoreReader(store)
        self.count = 0

    def run(
        self,
        workload: str,
        letter: str,
        epochs_s: list[float],
        *,
        params: str = "--size small",
        cpu: float = 0.5,
        throughput: float = 100.0,
        status: RunStatus = RunStatus.FINISHED,
        energy_j: tuple[float, float] | None = None,
        workload_id: str | None = None,
        tags: dict[str, str] | None = None,
        host: str = "",
        devices: str = "0",
    ) -> None:
        self.count += 1
        workload_id = workload_id or f"w{workload}"
        run_id = f"{self.count:032x}"
        start_ns = self.count * 1000 * SECOND_NS
        self.writer.put_workload(WorkloadRecord(workload_id, "study", workload, start_ns))
        self.writer.put_run(
            RunRecord(
                *(run_id, workload_id, "study", workload, letter, "net", start_ns, status),
                host=host,
                devices=devices,
            )
        )
        self.writer.put_params(run_id, {"File": "train.py", "Params": params})
        self.writer.put_tags(run_id, tags or {})
        series = [
            SeriesRecord(
                run_id,
                0,
                "top",
                "process.cpu.utilization",
                "cores",
                Scope.PROCESS,
                SeriesKind.GAUGE,
            ),
            SeriesRecord(run_id, 1, SOFTWARE, "samples_per_s", "", Scope.RUN, SeriesKind.GAUGE),
        ]
        if energy_j is not None:
            series.append(
                SeriesRecord(
                    run_id, 2, "smi", "gpu.energy", "J", Scope.GPU, SeriesKind.COUNTER, "gpu0"
                )
            )
        self.writer.add_series(series)
        bounds = np.concatenate([[0.0], np.cumsum(epochs_s)])
        edges_ns = (start_ns + bounds * SECOND_NS).astype(np.int64)
        middles_ns = (edges_ns[:-1] + edges_ns[1:]) // 2
        # The first epoch is full load: if it were counted, every mean would be wrong.
        loads = np.array([99.0] + [cpu] * (len(epochs_s) - 1))
        rates = np.array([1.0] + [throughput] * (len(epochs_s) - 1))
        batches = [
            SeriesBatch(0, Samples(middles_ns, loads)),
            SeriesBatch(1, Samples(middles_ns, rates, np.arange(1, len(epochs_s) + 1))),
        ]
        if energy_j is not None:
            batches.append(SeriesBatch(2, Samples(edges_ns[[0, -1]], np.array(energy_j))))
        self.writer.append(run_id, batches)
        self.writer.put_markers(
            [
                MarkerRecord(
                    run_id,
                    number,
                    MarkerKind.EPOCH,
                    f"epoch {number + 1}",
                    int(edges_ns[number]),
                    int(edges_ns[number + 1]),
                    number + 1,
                )
                for number in range(len(epochs_s))
            ]
        )

    def summarise(self) -> Sequence[WorkloadSummary]:
        return read_report(self.reader, "study").workloads


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path / "radt.db")


def test_slowdown_is_against_the_same_run_alone(study: Study) -> None:
    study.run("solo", "a", [9.0, 2.0, 2.0], cpu=1.0)
    for letter, seconds in (("a", 5.0), ("b", 7.0)):
        study.run("pair", letter, [50.0, seconds, seconds], cpu=0.75, throughput=40.0)
    study.run("pair", "c", [1.0, 3.0], params="--size large")
    solo, pair = study.summarise()
    (alone,) = solo.groups
    assert (alone.mean(Quantity.TIME_PER_EPOCH), alone.mean(Quantity.SLOWDOWN)) == (2.0, None)
    assert (alone.mean(Quantity.SAMPLES_PER_S), alone.mean(Quantity.CPU)) == (100.0, 1.0)
    small, large = pair.groups
    assert (small.mean(Quantity.TIME_PER_EPOCH), small.mean(Quantity.SLOWDOWN)) == (6.0, 3.0)
    assert (small.mean(Quantity.SAMPLES_PER_S), small.mean(Quantity.CPU)) == (80.0, 1.5)
    assert (large.mean(Quantity.TIME_PER_EPOCH), large.mean(Quantity.SLOWDOWN)) == (3.0, None)


def test_a_single_epoch_is_counted_as_there_is_no_other(study: Study) -> None:
    study.run("solo", "a", [4.0])
    ((group,),) = (workload.groups for workload in study.summarise())
    assert group.mean(Quantity.TIME_PER_EPOCH) == 4.0


def test_the_newest_finished_run_of_a_row_counts(study: Study) -> None:
    study.run("solo", "a", [1.0, 10.0])
    study.run("solo", "a", [1.0, 20.0])
    study.run("solo", "a", [1.0, 30.0], status=RunStatus.FAILED)
    ((group,),) = (workload.groups for workload in study.summarise())
    assert group.mean(Quantity.TIME_PER_EPOCH) == 20.0
    assert len(group.runs) == 1


def test_runs_without_a_workload_stand_for_themselves(study: Study) -> None:
    for seconds in (2.0, 3.0):
        study.run("", "a", [1.0, seconds], workload_id=f"w{seconds}")
    first, second = study.summarise()
    assert [workload.groups[0].mean(Quantity.TIME_PER_EPOCH) for workload in (first, second)] == [
        2.0,
        3.0,
    ]
    assert first.label == "–"


def test_a_run_without_markers_or_metrics_has_no_numbers_rather_than_zeros(study: Study) -> None:
    study.writer.put_workload(WorkloadRecord("w", "study", "1", 1))
    study.writer.put_run(RunRecord("f" * 32, "w", "study", "1", "a", "bare", 1, RunStatus.FINISHED))
    ((group,),) = (workload.groups for workload in study.summarise())
    assert (
        group.mean(Quantity.TIME_PER_EPOCH),
        group.mean(Quantity.SAMPLES_PER_S),
        group.mean(Quantity.CPU),
    ) == (None, None, None)


def test_table_at_80_columns(study: Study) -> None:
    study.run("solo", "a", [9.0, 2.0], cpu=0.984)
    study.run("three", "a", [9.0, 5.66], cpu=0.66, throughput=1234.0)
    study.run("three", "b", [9.0, 5.66], cpu=0.66, throughput=1234.0)
    lines = [line.plain for line in table_lines(summary_table(study.summarise()), 80)]
    assert lines == [
        "  workload  runs     took  time/epoch  vs solo  samples/s    cpu",
        "  solo      net         –      2.00 s        –        100   98 %",
        "  three     2 × net     –      5.66 s    2.83×      2,468  132 %",
    ]


def test_of_several_starts_the_newest_that_finished_as_a_whole_counts(study: Study) -> None:
    for start, (status, seconds) in enumerate(
        [(RunStatus.FINISHED, 2.0), (RunStatus.FINISHED, 3.0), (RunStatus.FAILED, 4.0)]
    ):
        study.run("pair", "a", [1.0, seconds], workload_id=f"start{start}")
        study.run("pair", "b", [1.0, seconds], workload_id=f"start{start}", status=status)
    ((group,),) = (workload.groups for workload in study.summarise())
    assert (group.mean(Quantity.TIME_PER_EPOCH), len(group.runs)) == (3.0, 2)


@pytest.mark.parametrize("end", [RunStatus.OOM, RunStatus.TIMEOUT, RunStatus.FAILED])
def test_rows_that_came_to_another_end_are_shown_by_themselves(
    study: Study, end: RunStatus
) -> None:
    study.run("solo", "a", [1.0, 2.0])
    for letter in "abc":
        status = end if letter == "c" else RunStatus.FINISHED
        study.run("three", letter, [1.0, 6.0], status=status)
    study.run("four", "a", [1.0, 6.0], status=end)
    _, three, four = study.summarise()
    finished, other = three.groups
    assert (
        len(finished.runs),
        finished.mean(Quantity.TIME_PER_EPOCH),
        finished.mean(Quantity.SLOWDOWN),
    ) == (2, 6.0, 3.0)
    assert (len(other.runs), other.status) == (1, end)
    assert (
        other.mean(Quantity.TIME_PER_EPOCH),
        other.mean(Quantity.SLOWDOWN),
        other.mean(Quantity.SAMPLES_PER_S),
    ) == (None, None, None)
    assert [group.status for group in four.groups] == [end]


def test_start_that_was_interrupted_counts_for_nothing_beside_a_result(study: Study) -> None:
    study.run("pair", "a", [1.0, 2.0], status=RunStatus.OOM, workload_id="first")
    study.run("pair", "b", [1.0, 2.0], workload_id="first")
    study.run("pair", "a", [1.0, 3.0], workload_id="second")
    study.run("pair", "b", [1.0, 3.0], status=RunStatus.KILLED, workload_id="second")
    (pair,) = study.summarise()
    assert [group.status for group in pair.groups] == [RunStatus.OOM, RunStatus.FINISHED]
    assert pair.groups[1].mean(Quantity.TIME_PER_EPOCH) == 2.0


def test_survivor_of_an_interrupted_workload_is_no_baseline(study: Study) -> None:
    study.run("pair", "a", [1.0, 3.0])
    study.run("pair", "b", [1.0, 3.0], status=RunStatus.KILLED)
    for letter in "ab":
        study.run("other", letter, [1.0, 6.0])
    first, second = study.summarise()
    assert [group.status for group in first.groups] == [RunStatus.FINISHED, RunStatus.KILLED]
    assert second.groups[0].mean(Quantity.SLOWDOWN) is None


@pytest.mark.parametrize("status", [RunStatus.SKIPPED, RunStatus.RUNNING])
def test_workload_without_a_result_is_left_out(study: Study, status: RunStatus) -> None:
    study.run("solo", "a", [1.0, 2.0], status=status)
    assert study.summarise() == []


def test_workload_that_was_killed_is_shown_until_there_is_a_result(study: Study) -> None:
    study.run("pair", "a", [1.0, 2.0], status=RunStatus.KILLED, workload_id="first")
    study.run("pair", "b", [1.0, 2.0], status=RunStatus.KILLED, workload_id="first")
    ((group,),) = (workload.groups for workload in study.summarise())
    assert (group.status, len(group.runs), group.values) == (RunStatus.KILLED, 2, {})
    study.run("pair", "a", [1.0, 3.0], status=RunStatus.OOM, workload_id="second")
    study.run("pair", "b", [1.0, 3.0], status=RunStatus.KILLED, workload_id="second")
    study.run("pair", "a", [1.0, 3.0], status=RunStatus.KILLED, workload_id="third")
    (pair,) = study.summarise()
    assert [group.status for group in pair.groups] == [RunStatus.OOM, RunStatus.KILLED]


def repeats(study: Study, workload: str, letters: str, seconds: list[float], series: str) -> None:
    for number, length_s in enumerate(seconds, 1):
        for letter in letters:
            study.run(
                workload,
                letter,
                [1.0, length_s],
                cpu=length_s / 10,
                energy_j=(0.0, 100.0 * length_s),
                workload_id=f"{series}{workload}{number}",
                tags={"radt.repeat": f"{number}/{len(seconds)}", "radt.series": series},
            )


def test_repeats_of_one_series_are_averaged(study: Study) -> None:
    repeats(study, "solo", "a", [9.0, 9.0], "old")
    repeats(study, "solo", "a", [1.0, 2.0, 3.0], "new")
    repeats(study, "pair", "ab", [3.0, 5.0], "new")
    solo, pair = study.summarise()
    assert (solo.groups[0].mean(Quantity.TIME_PER_EPOCH), solo.groups[0].repeats) == (2.0, 3)
    assert solo.groups[0].mean(Quantity.CPU) == pytest.approx(0.2)
    assert solo.energy.gpus_j == pytest.approx(200.0)
    (group,) = pair.groups
    assert (
        group.mean(Quantity.TIME_PER_EPOCH),
        group.mean(Quantity.SLOWDOWN),
        len(group.runs),
    ) == (4.0, 2.0, 2)
    assert group.mean(Quantity.CPU) == pytest.approx(0.8)  # the sum of the rows, not of the repeats


def test_repeat_that_did_not_finish_is_left_out_of_the_mean(study: Study) -> None:
    repeats(study, "solo", "a", [2.0, 4.0], "s")
    study.run(
        "solo", "a", [1.0, 90.0], status=RunStatus.OOM, workload_id="x", tags={"radt.series": "s"}
    )
    ((group,),) = (workload.groups for workload in study.summarise())
    assert (group.mean(Quantity.TIME_PER_EPOCH), group.repeats, group.status) == (
        3.0,
        2,
        RunStatus.FINISHED,
    )


def test_table_with_repeats_and_runs_that_did_not_fit(study: Study) -> None:
    repeats(study, "solo", "a", [2.0, 2.0], "s")
    for letter in "abcdefg":
        status = RunStatus.OOM if letter == "g" else RunStatus.FINISHED
        study.run("seven", letter, [1.0, 6.0], status=status, throughput=50.0)
    assert [line.plain for line in table_lines(summary_table(study.summarise()), 80)] == [
        "  workload  runs     n  time/epoch  vs solo  samples/s    cpu  energy",
        "  solo      net      2      2.00 s        –        100   20 %   200 J",
        "  seven     6 × net  1      6.00 s    3.00×        300  300 %       –",
        "            net      –         OOM        –          –      –",
    ]
