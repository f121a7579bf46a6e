"""What the Workload page says of a workload, against a planted truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from radt.analysis.baselines import Slowdown, mean_ratio
from radt.analysis.lines import on_grid, union
from radt.analysis.quantities import Quantity
from radt.analysis.report import read_report
from radt.errors import RunNotFoundError
from radt.frontend.charts.stacks import strip_figure, y_ticks
from radt.frontend.charts.timeline import timeline
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.lines import series_groups
from radt.frontend.data.metrics import series_of
from radt.frontend.data.run_facts import slowdowns_of
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload import run_facts
from radt.frontend.data.workload.devices import UsedDevices, devices_of, pinned_cores
from radt.frontend.data.workload.model import BarKind, LaneSpan, StackData, binned
from radt.frontend.data.workload.run_facts import (
    RecordedMachine,
    facts_of,
    gaps_of,
    ledger_of,
    tags_of,
    workload_overhead,
)
from radt.frontend.data.workload.stacks import stack_data
from radt.frontend.data.workload.strips import read_all
from radt.frontend.data.workload.subject import ShownWorkload, find_subject, offered
from radt.frontend.pages.workload_texts import devices_text, key_figures, notes, speed_text
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from radt.model import Role, Scope, SeriesKind
from radt.parts import RunPart, to_tag
from radt.store.cells import of_points
from radt.store.reader import StoreReader
from radt.store.records import SERIES_OF_A_NODE, Samples, SeriesBatch, SeriesRecord
from radt.tags import CLUSTER_HARDWARE, CLUSTER_PARTS, ROLE
from radt.usage import KERNEL
from tests.frontend.workload_support import BEGAN_NS, SECOND_NS, Bench, Planted, planted_three


@pytest.fixture
def bench(store_path: Path) -> Iterator[Bench]:
    made = Bench(store_path)
    yield made
    made.close()


def subject_of(source: CachedStore, workload_id: str) -> ShownWorkload:
    return find_subject(source, View(workload=workload_id))


def shown_figures(source: CachedStore, subject: ShownWorkload) -> Mapping[str, str]:
    """The key figures at the top of the page."""
    slowed = slowdowns_of(source, subject.catalog, subject.workload_id)
    ledger, overhead = ledger_of(source, subject), workload_overhead(source, subject)
    figures = key_figures(read_all(source, subject), ledger, slowed, overhead)
    return {figure.name: figure.text for figure in figures}


def stack(
    source: CachedStore,
    subject: ShownWorkload,
    key: str,
    *,
    window: AxisRange | None = None,
    cores: int | None = 4,
) -> StackData:
    """The strip of one resource as it is drawn."""
    reading = read_all(source, subject)
    strip = next(one for one in reading.strips if one.resource.key == key)
    return stack_data(
        source,
        subject,
        strip,
        gaps_of(source, subject.run_ids),
        window=window or AxisRange(0.0, 32.0),
        zoomed=window is not None,
        cores=cores,
    )


def slowdowns(source: CachedStore, subject: ShownWorkload) -> Mapping[str, Slowdown]:
    return slowdowns_of(source, subject.catalog, subject.workload_id)


def test_a_workload_is_found_by_the_beginning_of_its_id_and_the_newest_without_one(
    bench: Bench, source: CachedStore
) -> None:
    first = bench.workload("first", [Planted("a")])
    second = bench.workload("second", [Planted("a")])

    assert subject_of(source, first[:12]).workload_id == first
    newest = find_subject(source, View())
    assert (newest.workload_id, newest.automatic) == (second, True)
    assert newest.neighbour(-1) is not None
    assert newest.neighbour(1) is None
    with pytest.raises(RunNotFoundError, match="no workload zzz"):
        subject_of(source, "zzz")
    assert [one["value"] for one in offered(newest, "firs")] == [second, first]


def test_slowdowns_are_against_the_same_run_alone(bench: Bench, source: CachedStore) -> None:
    workload_id, runs = planted_three(bench)

    found = slowdowns(source, subject_of(source, workload_id))

    assert found[runs[0].run_id].ratio == pytest.approx(1.5)
    assert found[runs[1].run_id].ratio == pytest.approx(2.0)
    assert found[runs[0].run_id].alone_s == pytest.approx(4.2)
    assert runs[2].run_id not in found  # it did not finish


def test_runs_of_nodes_with_the_same_hardware_are_baselines_and_it_is_said(
    bench: Bench, source: CachedStore, store_path: Path
) -> None:
    tags = {CLUSTER_HARDWARE: "64 CPUs"}
    for bench.host, epoch_s in (("node1", 4.1), ("node2", 4.3)):
        bench.workload(f"solo {bench.host}", [Planted("a", epoch_s=epoch_s, tags=tags)])
    pairs = {}
    for bench.host in ("node1", "node3"):
        pair = [Planted(letter, epoch_s=6.3, tags=tags) for letter in "ab"]
        pairs[bench.host] = bench.workload(f"pair {bench.host}", pair)

    own, other = (subject_of(source, pairs[host]) for host in ("node1", "node3"))

    ratios = [one.ratio for one in slowdowns(source, own).values()]
    assert ratios == [pytest.approx(6.3 / 4.1)] * 2
    assert notes(own, {}, slowdowns(source, own)) == []
    found = slowdowns(source, other)
    assert [one.ratio for one in found.values()] == [pytest.approx(1.5)] * 2
    (note,) = notes(other, {}, found)
    assert note == "Compared with runs alone on node2, a node with the same hardware: a, b."
    with StoreReader(store_path) as reader:
        report = read_report(reader, "planted")
    of_report = next(one for one in report.workloads if one.host == "node3")
    assert of_report.groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(1.5)
    assert any("alone on node2, a node with the same" in note for note in report.footnotes)


def test_a_run_of_other_parameters_or_device_is_no_baseline(
    bench: Bench, source: CachedStore
) -> None:
    bench.workload("other", [Planted("a", params={"Params": "--large"})])
    bench.workload("gpu", [Planted("a", devices="1")])
    pair = bench.workload("pair", [Planted("a"), Planted("b")])

    assert slowdowns(source, subject_of(source, pair)) == {}


def test_a_run_with_a_service_is_alone_and_a_service_is_not_compared(
    bench: Bench, source: CachedStore, store_path: Path
) -> None:
    def service() -> Planted:
        return Planted("z", name="loader", tags={ROLE: Role.SERVICE})

    served = bench.workload("served", [Planted("a"), service()])
    runs = [Planted("a", epoch_s=6.3), Planted("b", epoch_s=6.3), service()]
    subject = subject_of(source, bench.workload("pair", runs))

    found = slowdowns(source, subject)

    assert {run_id: one.ratio for run_id, one in found.items()} == {
        run.run_id: pytest.approx(1.5) for run in runs[:2]
    }
    assert mean_ratio(found.values()) == pytest.approx(1.5)
    assert mean_ratio([]) is None
    assert subject.workload.runs[2].second_name == "loader (service)"
    assert read_all(source, subject).overlap == 1.0  # the service ended before the others
    assert shown_figures(source, subject)["Overlap"] == "100 %"
    one = shown_figures(source, subject_of(source, served))
    assert "Start skew" in one
    assert "Overlap" not in one  # a single run overlaps with none
    with StoreReader(store_path) as reader:
        pair = next(one for one in read_report(reader, "planted").workloads if one.label == "pair")
    assert [group.mean(Quantity.SLOWDOWN) for group in pair.groups] == [pytest.approx(1.5), None]


def test_lives_say_when_how_long_and_how_they_ended(bench: Bench, source: CachedStore) -> None:
    workload_id, _ = planted_three(bench)
    subject = subject_of(source, workload_id)

    reading = read_all(source, subject)
    a, _, c = reading.lives

    assert (a.start_s, a.end_s) == (pytest.approx(0.0), pytest.approx(30.0))
    assert a.setup_s == pytest.approx(5.0)
    assert (c.end_text, c.reason) == ("OOM", "CUDA ran out of memory at 38.9 of 39.6 GB")
    assert reading.overlap == pytest.approx(9 / 30)
    slowed = slowdowns(source, subject)
    assert speed_text(a, slowed[a.run.run_id]) == "1.50× slower than solo (4.20 s an epoch)"
    assert [bar.is_open for bar in c.bars if bar.kind is BarKind.EPOCH][-1]
    assert devices_text(subject.workload.runs) == "GPU 0 · 3× MPS:40"


def test_the_overlap_of_one_run_and_of_runs_that_never_met(
    bench: Bench, source: CachedStore
) -> None:
    alone = bench.workload("alone", [Planted("a")])
    apart = bench.workload("apart", [Planted("a", end_s=5.0), Planted("b", start_s=6.0)])

    assert read_all(source, subject_of(source, alone)).overlap is None
    assert read_all(source, subject_of(source, apart)).overlap == 0.0


def test_thin_neighbours_become_one_bar_that_says_how_many(
    bench: Bench, source: CachedStore
) -> None:
    epochs = [LaneSpan(BarKind.EPOCH, i, i + 0.9, f"epoch {i}", str(i)) for i in range(1000)]

    found = binned(epochs, AxisRange(0.0, 1000.0), shortest_s=10.0)

    assert len(found) <= 101
    assert sum(bar.count for bar in found) == 1000
    assert found[0].text.startswith("epochs 0 to 9 · mean 900 ms")
    assert [one.count for one in binned(epochs, AxisRange(3.0, 5.0), 0.1)] == [1] * len(
        [bar for bar in epochs if bar.end_s >= 3 and bar.start_s <= 5]
    )
    many = bench.workload("many", [Planted("a", epoch_s=0.05, epochs=900)])
    lives = read_all(source, subject_of(source, many)).lives
    figure = timeline(lives, AxisRange(0.0, 50.0), Scheme.LIGHT)
    assert figure["layout"]["meta"]["bars"] < 800


def test_shares_stack_to_the_sum_and_are_missing_where_one_is_not_known(
    bench: Bench, source: CachedStore
) -> None:
    workload_id, _ = planted_three(bench)

    data = stack(source, subject_of(source, workload_id), "cpu")

    def total(at_s: float) -> float | None:
        cell = int(np.searchsorted(data.edges_s, at_s, "right")) - 1
        if cell >= len(data.known) or not data.known[cell]:
            return None
        return float(sum(band.values[cell] for band in data.bands))

    assert total(2.0) == pytest.approx(0.5)  # a alone
    assert total(8.0) == pytest.approx(0.5 + 0.25 + 0.5)
    assert total(12.0) is None  # the gap of b
    assert total(20.0) == pytest.approx(0.5 + 0.25)  # c is gone
    assert total(31.5) is None


def test_a_device_has_its_own_line_and_estimated_shares_are_said_to_be(
    bench: Bench, source: CachedStore
) -> None:
    workload_id, _ = planted_three(bench)
    subject = subject_of(source, workload_id)

    power = stack(source, subject, "gpu-power")
    drawn = strip_figure(power, Scheme.LIGHT, 4)
    busy = strip_figure(stack(source, subject, "gpu"), Scheme.DARK, 4)

    assert [one.name for one in drawn.readings] == ["a", "b", "c", "gpu0"]
    texts = [one.text for one in drawn.readings]
    assert texts == ["100 W", "80.0 W", "60.0 W", "281 W"]
    assert [one.is_estimated for one in drawn.readings] == [True, True, True, False]
    assert "runs: estimated" in drawn.notes
    assert [one.text for one in busy.readings] == ["94.0 %"]
    assert "cannot be divided" in busy.notes[0]


def test_a_zoom_reads_its_stretch_only(bench: Bench, source: CachedStore) -> None:
    workload_id, _ = planted_three(bench)

    data = stack(source, subject_of(source, workload_id), "cpu", window=AxisRange(7.0, 9.0))

    assert data.edges_s[0] == 6.75  # readings every half second are in the middle of cells
    assert data.known.all()
    assert np.allclose(sum(band.values for band in data.bands), 1.25)


def test_readings_of_the_same_device_count_once_and_one_run_s_gap_is_filled_by_another() -> None:
    whole = of_points(np.arange(0.0, 20.0), np.ones(20), 3.5)
    broken = of_points(np.array([0.0, 1.0, 2.0, 9.0, 10.0]), np.ones(5), 3.5)

    both = union([broken, whole], 3.5)

    assert both.first.tolist() == whole.first.tolist()
    assert not both.gap.any()
    inside = np.array([4.0, 5.0])
    assert on_grid(of_points(broken.first, np.ones(5)), inside).mean.tolist() == [1.0]
    assert np.isnan(on_grid(broken, inside).mean).all()


def test_a_stack_s_cells_are_means_of_the_readings_in_them(
    bench: Bench, source: CachedStore
) -> None:
    """Also of more readings than are kept singly, read at an uneven pace."""
    noise = np.random.default_rng(2)
    at_s = np.cumsum(0.001 + noise.exponential(0.001, 60_000)).round(6)
    values = noise.exponential(1.0, len(at_s))
    run = Planted("a", end_s=float(at_s[-1]), cores=None)
    workload_id = bench.workload("long", [run])
    for metric, scope in (
        ("process.cpu.utilization", Scope.PROCESS),
        ("system.cpu.utilization", Scope.HOST),
    ):
        bench.series(run, metric, "cores", scope, BEGAN_NS, at_s, values)

    data = stack(source, subject_of(source, workload_id), "cpu", window=AxisRange(0.0, at_s[-1]))

    cell = np.searchsorted(data.edges_s, at_s, "right") - 1
    assert 200 < len(data.at_s) <= 401
    counts = np.bincount(cell)
    means = np.bincount(cell, weights=values) / counts
    assert data.bands[0].values == pytest.approx(means)
    assert data.bands[0].mean == pytest.approx(values.mean())
    assert data.bands[0].peak == values.max()
    (total,) = data.totals
    assert total.line.high is not None
    assert total.line.high.max() == 4 * values.max()
    assert total.mean == pytest.approx(4 * values.mean())


def test_the_ledger_says_what_is_missing_of_whom_and_why(bench: Bench, source: CachedStore) -> None:
    workload_id, _ = planted_three(bench)

    ledger = ledger_of(source, subject_of(source, workload_id))

    due_s = np.arange(3.5, 29.5, 0.5)
    missed = int(((due_s > 10) & (due_s < 14)).sum())
    assert ledger.missed == missed > 0
    assert ledger.text == f"missed {missed} of {ledger.expected}"
    assert ledger.why == "top of b: the collector was restarted"
    b = next(entry for entry in ledger.entries if entry.run.record.letter == "b")
    assert b.overhead.mean_s == pytest.approx(0.0004)
    assert b.late_s == pytest.approx(0.0001)


def test_series_of_two_nodes_stand_by_themselves(bench: Bench, source: CachedStore) -> None:
    part = RunPart(1, "node2", "node2", -2 * SECOND_NS, error_ns=40_000, drift_ns=-1_000)
    run = Planted("a", gap_s=(5.0, 7.0), tags={CLUSTER_PARTS: to_tag([part])})
    workload_id = bench.workload("wide", [run])
    ticks_s = np.arange(0.5, run.until_s, 0.5)
    halves = np.full(len(ticks_s), 0.5)
    gpu = ("gpu.power", "W", Scope.GPU, BEGAN_NS, ticks_s, halves)
    bench.series(run, *gpu, entity="gpu0")
    bench._numbers[run.run_id] = SERIES_OF_A_NODE
    bench.series(run, *gpu, entity="node2/gpu0")
    cpu = ("process.cpu.utilization", "cores", Scope.PROCESS, BEGAN_NS, ticks_s, halves)
    bench.series(run, *cpu, entity="node2")

    subject = subject_of(source, workload_id)
    reading = read_all(source, subject)
    strips = {(one.host, one.device): one for one in reading.strips if one.resource.key == "cpu"}
    assert list(strips) == [("bench-1", ""), ("node2", "")]
    assert reading.several_hosts
    gaps = gaps_of(source, subject.run_ids)
    for host, holes in (("bench-1", 1), ("node2", 0)):
        ((record,),) = [share.series for share in strips[host, ""].shares]
        of_series = [gap for gap in gaps if gap.listener == record.counted_as]
        assert len(of_series) == holes, host
    lines = series_groups(subject.runs, series_of(source, subject.run_ids)["gpu.power"])
    assert [line.label for line in lines] == ["wide  bench-1 gpu0", "wide  node2 gpu0"]
    (note,) = notes(subject, tags_of(source, subject), {})
    clocks = "agree within 40.0 µs (node2, after a drift of 1.00 µs)"
    assert note == f"Ran on 2 nodes, whose clocks {clocks}."
    about = {fact.name: fact.values for fact in facts_of(source, subject).about}
    assert about["other nodes"] == ("node2: clock offset −2.00 s, error 40.0 µs, drift −1.00 µs",)


def test_cards_show_who_sat_where(bench: Bench, source: CachedStore) -> None:
    mps, runs = planted_three(bench)
    mig = bench.workload(
        "mig",
        [
            Planted(
                "a",
                devices="0",
                collocation="3g.20gb",
                cores=None,
                tags={
                    "radt.mig.profile": "3g.20gb",
                    "radt.mig.placement": "4:4",
                    "radt.mig.uuid": "MIG-1",
                },
            ),
            Planted(
                "b",
                devices="0",
                collocation="1g.5gb#x",
                cores=None,
                tags={
                    "radt.mig.profile": "1g.5gb",
                    "radt.mig.placement": "0:1",
                    "radt.mig.uuid": "MIG-2",
                },
            ),
            Planted(
                "c",
                devices="0",
                collocation="1g.5gb#x",
                cores=None,
                tags={
                    "radt.mig.profile": "1g.5gb",
                    "radt.mig.placement": "0:1",
                    "radt.mig.uuid": "MIG-2",
                },
            ),
        ],
    )
    pinned = bench.workload(
        "pinned",
        [
            Planted("a", cores=None, tags={"radt.cpus": "0-2", "radt.cpu_count": "4"}),
            Planted("b", cores=None, tags={"radt.cpus": "3", "radt.cpu_count": "4"}),
        ],
    )

    def devices(workload_id: str) -> UsedDevices:
        subject = subject_of(source, workload_id)
        summaries = read_all(source, subject).summaries.values()
        machines = {"bench-1": RecordedMachine(logical_cores=4, gpus={0: "A100"})}
        return devices_of(subject, tags_of(source, subject), machines, summaries)

    (card,) = devices(mps).cards
    assert [(one.run.run_id, one.percentage) for one in card.mps] == [
        (run.run_id, 40.0) for run in runs
    ]
    assert (card.peak_bytes, card.memory_bytes, card.name) == (38.9e9, 40e9, "A100")
    assert [one.peak_bytes for one in card.mps] == [12e9, 16e9, 10e9]
    (card,) = devices(mig).cards
    assert [(one.profile, one.start, one.size, len(one.tenants)) for one in card.instances] == [
        ("1g.5gb", 0, 1, 2),
        ("3g.20gb", 4, 4, 1),
    ]
    boxes = [(start, size, box is not None) for start, size, box in card.boxes]
    assert boxes == [(0, 1, True), (1, 3, False), (4, 4, True)]
    facts = {"gpus": [{"index": 1, "name": "A100", "memory_bytes": 5}]}  # GPU 0 did not answer
    recorded = run_facts._described("bench-1", facts, {})
    assert (recorded.gpus, recorded.gpu_memory_bytes) == ({1: "A100"}, {1: 5})
    (processor,) = devices(pinned).processors
    assert [[run.record.letter for run in processor.owners(core)] for core in range(4)] == [
        ["a"],
        ["a"],
        ["a"],
        ["b"],
    ]


@pytest.mark.parametrize(
    ("tags", "cores"),
    [
        ({"radt.cpu_count": "16"}, frozenset()),
        ({"radt.cpu_count": "16", "radt.cpus": "3"}, frozenset({3})),
        # Written before there was a tag for the count.
        ({"radt.cpus": "16"}, None),
        ({"radt.cpus": "0-1,4"}, frozenset({0, 1, 4})),
    ],
)
def test_a_count_of_cpus_is_not_the_number_of_one(
    tags: dict[str, str], cores: frozenset[int] | None
) -> None:
    assert pinned_cores(tags) == cores


def test_what_differs_between_runs_comes_first(bench: Bench, source: CachedStore) -> None:
    workload_id, _ = planted_three(bench)

    params = facts_of(source, subject_of(source, workload_id)).params

    assert [(fact.name, fact.differs) for fact in params] == [
        ("lr", True),
        ("File", False),
        ("Params", False),
    ]


def test_what_the_kernel_counted_is_a_table_and_no_curve(bench: Bench, source: CachedStore) -> None:
    workload_id, _ = planted_three(bench)
    run = StoreReader(bench.store).runs(workload_id=workload_id)[0]
    series = SeriesRecord(
        *(run.run_id, 1000, KERNEL, "process.io.written", "By"),
        *(Scope.PROCESS, SeriesKind.COUNTER),
    )
    points = Samples(np.array([1, 2], np.int64), np.array([0.0, 5e6]))
    with bench.writer.transaction():
        bench.writer.add_series([series])
        bench.writer.append(run.run_id, [SeriesBatch(1000, points)])

    totals = facts_of(source, subject_of(source, workload_id)).totals

    (written,) = [fact for fact in totals if fact.name == "written"]
    assert sorted(written.values, key=str) == ["5.00 MB", None, None]
    assert "process.io.written" not in series_of(source, (run.run_id,))


@pytest.mark.parametrize("highest", [0.003, 0.98, 1.0, 2.1, 52.0, 999.0, 1e6])
def test_an_axis_has_one_to_three_round_labels(highest: float) -> None:
    assert 1 <= len(y_ticks(highest)) <= 3
    assert max(y_ticks(highest)) <= highest * (1 + 1e-9)
