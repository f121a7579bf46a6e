"""Queries of the dashboard's first page on a store with many runs."""

from __future__ import annotations

from benchmarks.results import Bar, Findings, Table
from benchmarks.storage.data import SECOND_NS, START_NS
from benchmarks.storage.places import Kind, Places
from benchmarks.timing import median_s
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import PROFILED

EXPERIMENT = "many"
RUNS_A_WORKLOAD = 4
MOST_S = 0.3
_PAGE = "page of an experiment"
_TAGS = {
    "radt.python": "3.11.2",
    "radt.version": "1.0.0",
    "radt.git": "0123456789abcdef0123456789abcdef01234567",
    "radt.cpu": "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz",
    "radt.gpu": "NVIDIA A100-PCIE-40GB",
    "radt.driver": "550.54.15",
    "mlflow.user": "somebody",
    "mlflow.source.name": "train.py",
}
_PARAMS = {"model": "resnet50", "batch-size": "256", "epochs": "5", "lr": "0.1", "seed": "1"}


def measure(places: Places, count: int) -> Findings:
    """Measure lists of ``count`` runs, all in one experiment, which is the worst case."""
    found = Findings()
    table = Table(f"{count:,} runs listed, in ms", ("", *map(str, Kind)))
    columns = [_measure(places, kind, count) for kind in Kind]
    for name in columns[0]:
        table.rows.append((name, *(f"{column[name] * 1e3:,.1f}" for column in columns)))
    found.tables.append(table)
    for kind, column in zip(Kind, columns, strict=True):
        whole = column[_PAGE]
        found.bars.append(
            Bar(f"{count:,} runs listed in 300 ms, {kind}", f"{whole * 1e3:.0f} ms", whole < MOST_S)
        )
    return found


def _measure(places: Places, kind: Kind, count: int) -> dict[str, float]:
    name = "many"
    address = places.new(kind, name)
    ids = _fill(address, count)
    places.settle(kind, name)
    with StoreReader(address) as reader:
        shown = ids[-8:]
        times = {
            _PAGE: median_s(lambda: _page(reader)),
            "  experiments()": median_s(reader.experiments),
            "  runs(experiment)": median_s(lambda: reader.runs(experiment=EXPERIMENT)),
            "  workloads(experiment)": median_s(lambda: reader.workloads(EXPERIMENT)),
            "  tagged(experiment)": median_s(lambda: reader.tagged(PROFILED, EXPERIMENT)),
            "params_of(all)": median_s(lambda: reader.params_of(ids)),
            "tags_of(all)": median_s(lambda: reader.tags_of(ids)),
            "params_of(8), tags_of(8), summary(8)": median_s(
                lambda: (reader.params_of(shown), reader.tags_of(shown), reader.summary(shown))
            ),
            "find_run()": median_s(lambda: reader.find_run(ids[count // 2])),
            "change_token()": median_s(reader.change_token),
        }
    places.drop(kind, name)
    return times


def _page(reader: StoreReader) -> None:
    """Read the same data as `radt.frontend.data.catalog.read_catalog`, and the list beside it."""
    reader.experiments()
    reader.runs(experiment=EXPERIMENT)
    reader.workloads(EXPERIMENT)
    reader.tagged(PROFILED, EXPERIMENT)


def _fill(address: str, count: int) -> list[str]:
    """Write runs, four in a workload, with tags and params."""
    ids = []
    with StoreWriter(address) as writer, writer.transaction():
        for number in range(count):
            place = number // RUNS_A_WORKLOAD
            workload_id = f"{place:032x}"
            created_ns = START_NS + place
            if number % RUNS_A_WORKLOAD == 0:
                writer.put_workload(WorkloadRecord(workload_id, EXPERIMENT, str(place), created_ns))
            run_id = f"{number:032x}"
            ids.append(run_id)
            writer.put_run(
                RunRecord(
                    run_id,
                    workload_id,
                    EXPERIMENT,
                    str(place),
                    "abcd"[number % RUNS_A_WORKLOAD],
                    "resnet50",
                    created_ns,
                    RunStatus.FINISHED,
                    command="python train.py --batch-size 256 --epochs 5 --model resnet50",
                    spool=f"/data/runs/{number:032x}",
                    mlflow_run_id=f"{number:032x}",
                    started_ns=START_NS,
                    ended_ns=START_NS + 1000 * SECOND_NS,
                )
            )
            writer.put_tags(run_id, _TAGS)
            writer.put_params(run_id, _PARAMS)
    return ids
