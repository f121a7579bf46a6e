"""What of runs counts, from planted stores in which every second has its own value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from radt.analysis.measures import WorkloadMeasures, measure
from radt.analysis.quantities import Quantity
from radt.analysis.selection import attempts_of, current_attempts
from radt.analysis.window_spec import WindowKind, WindowSpec
from radt.analysis.windows import Window, overlap_share, window_notes
from radt.errors import UsageError
from radt.model import MarkerKind, RunStatus
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from tests.report.windows_support import BEGAN_NS, Planted, S, Study

CPU, DISK, RATE = "process.cpu.utilization", "process.disk.read", "samples_per_s"
#: Four epochs of 10, 20, 30 and 20 s, with 5 s between the second and the third.
EPOCHS = [(1, (5.0, 15.0)), (2, (15.0, 35.0)), (3, (40.0, 70.0)), (4, (70.0, 90.0))]
#: Each second of them has another level than what is around.
LEVELS = {0: 90.0, 5: 50.0, 15: 2.0, 35: 30.0, 40: 4.0, 70: 8.0, 90: 70.0}
GAUGES = {CPU: LEVELS, RATE: {second: 10 * level for second, level in LEVELS.items()}}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Study:
    """In a store of either database."""
    if request.param == "sqlite":
        return Study(tmp_path / "radt.db")
    return Study(request.getfixturevalue("database"))


@pytest.fixture
def local(tmp_path: Path) -> Study:
    return Study(tmp_path / "radt.db")


def mean(values: dict[float, float]) -> float:
    """Of values by how many seconds they were there."""
    return sum(value * length for value, length in values.items()) / sum(values.values())


def value(study: Study, quantity: Quantity, window: str = "", *, overlap: bool = False) -> float:
    return study.one(window, overlap=overlap).values[quantity].value


def device(study: Study, quantity: Quantity, window: str = "") -> float | None:
    (workload,) = study.measured(window)
    estimate = workload.values.get(quantity)
    return None if estimate is None else estimate.mean


# -- what users write ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        ("", WindowSpec(), "all epochs after the first"),
        ("epoch:0", WindowSpec(WindowKind.EPOCHS, 0, 0), "epoch 0"),
        ("epoch:2-4", WindowSpec(WindowKind.EPOCHS, 2, 4), "epochs 2 to 4"),
        ("epoch:2-", WindowSpec(WindowKind.EPOCHS, 2, None), "epochs from 2 on"),
        ("steady", WindowSpec(WindowKind.STEADY), "the steady state"),
        ("all", WindowSpec(WindowKind.ALL), "whole runs"),
        (
            "train",
            WindowSpec(WindowKind.MARKED, name="train"),
            "phase or span 'train' after the first epoch",
        ),
        (
            "phase:train",
            WindowSpec(WindowKind.MARKED, name="train", marker=MarkerKind.PHASE),
            "phase 'train' after the first epoch",
        ),
        (
            "span:load: images, 100 %",
            WindowSpec(WindowKind.MARKED, name="load: images, 100 %", marker=MarkerKind.SPAN),
            "span 'load: images, 100 %' after the first epoch",
        ),
        (
            "marker:all",
            WindowSpec(WindowKind.MARKED, name="all"),
            "phase or span 'all' after the first epoch",
        ),
    ],
)
def test_windows_are_read_and_described(text: str, spec: WindowSpec, words: str) -> None:
    assert WindowSpec.parse(text) == spec
    # Of a phase or span not the epoch is timed.
    timed = "; time per epoch is its time in each epoch" if spec.name else ""
    assert spec.text == words + timed
    shared = WindowSpec.parse(f"  {text} ", overlap=True)
    assert shared == replace(spec, overlap=True)
    assert shared.text == f"{words}, while all runs of the workload ran{timed}"


def test_windows_are_read_as_people_write_them() -> None:
    assert WindowSpec.parse("Epoch: 2 – 4") == WindowSpec.parse("epoch:2-4")
    assert WindowSpec.parse("STEADY") == WindowSpec.parse("steady")
    # Names are the script's own.
    assert WindowSpec.parse("Train") != WindowSpec.parse("train")
    assert WindowSpec.parse("span:2").name == "2"
    assert WindowSpec.parse("marker:epoch") == WindowSpec(WindowKind.MARKED, name="epoch")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch:4-2", "Write epoch:2-4"),
        ("epoch:two", "Write epoch:2, epoch:2-4 or epoch:2-"),
        ("epoch", "Write epoch:2, epoch:2-4 or epoch:2-"),
        ("epoch:-1", "Write epoch:2, epoch:2-4 or epoch:2-"),
        ("2-4", "Write epoch:2-4"),
        ("epochs:2", "epoch:2, epoch:2-4, epoch:2- (from 2 on), train"),
        ("span:", "phase:train, span:load, steady or all"),
        ("tr\nain", "phase:train, span:load, steady or all"),
    ],
)
def test_what_is_no_window_is_told_what_is_one(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        WindowSpec.parse(text)
    assert repr(text) in caught.value.message
    assert said in (caught.value.remedy or "")


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "time_s", "cpu"),
    [
        # What lies between two epochs that count is measured with them.
        ("", (20 + 30 + 20) / 3, {2: 20, 30: 5, 4: 30, 8: 20}),
        ("epoch:2-", (20 + 30 + 20) / 3, {2: 20, 30: 5, 4: 30, 8: 20}),
        ("epoch:1", 10.0, {50: 10}),
        ("epoch:2", 20.0, {2: 20}),
        ("epoch:1-2", 15.0, {50: 10, 2: 20}),
        ("epoch:3-4", 25.0, {4: 30, 8: 20}),
        ("all", 20.0, {90: 5, 50: 10, 2: 20, 30: 5, 4: 30, 8: 20, 70: 10}),
    ],
)
@pytest.mark.parametrize("chunks", [1, 7])
def test_epochs(
    local: Study, window: str, time_s: float, cpu: dict[float, float], chunks: int
) -> None:
    local.workload(Planted(epochs=EPOCHS, gauges=GAUGES, counters={DISK: LEVELS}), chunks=chunks)
    run = local.one(window)
    found = {quantity: measured.value for quantity, measured in run.values.items()}
    assert found == pytest.approx(
        {
            Quantity.TIME_PER_EPOCH: time_s,
            Quantity.SAMPLES_PER_S: 10 * mean(cpu),
            Quantity.SAMPLES_PER_S_OF_RUN: 10 * mean(cpu),
            Quantity.CPU: mean(cpu),
            Quantity.DISK_READ: mean(cpu),
        },
        rel=1e-9,
    )
    assert run.window.length_s == pytest.approx(sum(cpu.values()))
    assert (run.window.how, run.window.missing) == ("", "")


def test_epochs_are_numbered_as_the_script_numbers_them(local: Study) -> None:
    zero_based = [(number - 1, bounds) for number, bounds in EPOCHS]
    local.workload(Planted(epochs=zero_based, gauges=GAUGES))
    assert value(local, Quantity.TIME_PER_EPOCH, "epoch:0") == 10.0
    assert value(local, Quantity.TIME_PER_EPOCH, "epoch:1") == 20.0
    # The first is the first, whatever its number.
    assert value(local, Quantity.TIME_PER_EPOCH) == pytest.approx(70 / 3)


def test_a_number_that_comes_again_counts_again(local: Study) -> None:
    """Two networks that are trained one after the other."""
    again = [(number % 2 + 1, bounds) for number, (_, bounds) in enumerate(EPOCHS)]
    local.workload(Planted(epochs=again, gauges=GAUGES))
    assert value(local, Quantity.TIME_PER_EPOCH, "epoch:2") == 20.0
    assert value(local, Quantity.CPU, "epoch:2") == pytest.approx((2 + 8) / 2, rel=1e-9)
    assert local.one("epoch:2").window.length_s == 40.0


def test_epochs_that_are_not_there_give_no_values(local: Study) -> None:
    local.workload(Planted(epochs=EPOCHS, gauges=GAUGES, counters={"gpu.energy": LEVELS}))
    run = local.one("epoch:7-9")
    assert not run.values
    assert run.window.missing == "epochs 7 to 9 did not end (1 to 4 did)"
    assert device(local, Quantity.ENERGY_PER_EPOCH, "epoch:7-9") is None
    assert device(local, Quantity.ENERGY_PER_EPOCH, "epoch:2") == pytest.approx(40.0)
    some = local.one("epoch:3-9")
    assert some.values[Quantity.TIME_PER_EPOCH].value == 25.0
    assert some.window.how == "of these epochs only 3 to 4 ended"
    assert local.one("train").window.missing == "no phase or span 'train'"


def test_an_only_epoch_counts_and_that_is_said(local: Study) -> None:
    local.workload(Planted(epochs=EPOCHS[:1], gauges=GAUGES))
    run = local.one()
    assert run.values[Quantity.CPU].value == pytest.approx(50.0)
    assert run.window.how == "only one epoch ended, so it counts"


# -- phases and spans ------------------------------------------------------------------------------

#: In each epoch, the warm-up among them, 2 s of loading and then the rest; and once outside.
SPANS = [
    ("load", (1.0, 4.0)),
    *[
        (name, bounds)
        for _, (start, end) in EPOCHS
        for name, bounds in (("load", (start, start + 2)), ("train", (start + 2, end)))
    ],
    ("child 1:train", (0.0, 100.0)),
]


@pytest.mark.parametrize(
    ("window", "time_s", "cpu"),
    [
        ("train", (18 + 28 + 18) / 3, {2: 18, 4: 28, 8: 18}),
        ("span:load", 2.0, {2: 2, 4: 2, 8: 2}),
    ],
)
def test_spans_of_each_epoch_but_the_first(
    study: Study, window: str, time_s: float, cpu: dict[float, float]
) -> None:
    study.workload(
        Planted(epochs=EPOCHS, spans=SPANS, gauges=GAUGES, counters={DISK: LEVELS}), chunks=5
    )
    run = study.one(window)
    assert run.values[Quantity.TIME_PER_EPOCH].value == pytest.approx(time_s, rel=1e-9)
    assert run.values[Quantity.CPU].value == pytest.approx(mean(cpu), rel=1e-9)
    assert run.values[Quantity.DISK_READ].value == pytest.approx(mean(cpu), rel=1e-9)
    assert len(run.window.stretches) == 3
    assert run.window.length_s == pytest.approx(sum(cpu.values()))


def test_spans_that_overlap_count_once(local: Study) -> None:
    """A function that several threads run."""
    spans = [("train", (16.0, 20.0)), ("train", (18.0, 22.0)), ("train", (22.0, 23.0))]
    local.workload(Planted(epochs=EPOCHS, spans=spans, gauges=GAUGES))
    run = local.one("train")
    assert run.values[Quantity.TIME_PER_EPOCH].value == 7.0
    assert len(run.window.stretches) == 1


def test_a_span_around_epochs_counts_within_each(local: Study) -> None:
    local.workload(Planted(epochs=EPOCHS, spans=[("fit", (4.0, 80.0))], gauges=GAUGES))
    run = local.one("fit")
    assert run.window.epochs_s == (20.0, 30.0, 10.0)
    assert run.values[Quantity.CPU].value == pytest.approx(
        mean({2: 20, 30: 5, 4: 30, 8: 10}), rel=1e-9
    )


def test_what_is_only_before_the_second_epoch_counts_and_that_is_said(local: Study) -> None:
    local.workload(Planted(epochs=EPOCHS, spans=[("load", (1.0, 4.0))], gauges=GAUGES))
    run = local.one("load")
    assert run.values[Quantity.CPU].value == pytest.approx(90.0)
    assert Quantity.TIME_PER_EPOCH not in run.values
    assert run.window.how == "phase or span 'load' only before the end of the first epoch"


def test_phases_are_told_from_spans(study: Study) -> None:
    spans = [("phase:train", (15.0, 20.0)), ("train", (40.0, 50.0)), ("other", (1.0, 2.0))]
    study.workload(Planted(epochs=EPOCHS, spans=spans, gauges=GAUGES))
    assert value(study, Quantity.CPU, "phase:train") == pytest.approx(2.0)
    assert value(study, Quantity.CPU, "span:train") == pytest.approx(4.0)
    assert value(study, Quantity.CPU, "train") == pytest.approx(mean({2: 5, 4: 10}), rel=1e-9)
    run = study.one("phase:other")
    assert not run.values
    assert run.window.missing == "no phase 'other' (the run has 'other', 'train')"


def test_names_are_told_where_one_is_wrong(local: Study) -> None:
    spans = [(f"part{number}", (number, number + 0.5)) for number in range(9)]
    local.workload(Planted(spans=spans, gauges=GAUGES))
    assert local.one("trian").window.missing == (
        "no phase or span 'trian' (the run has 'part0', 'part1', 'part2', 'part3', 'part4', "
        "'part5', …)"
    )


def test_a_name_is_no_pattern(study: Study) -> None:
    name = "100 %_'\"; DROP TABLE marker"
    study.workload(Planted(spans=[(name, (40.0, 50.0)), ("100 x", (5.0, 6.0))], gauges=GAUGES))
    assert value(study, Quantity.CPU, f"marker:{name}") == pytest.approx(4.0)
    assert study.one("100 %").window.missing.startswith("no phase or span '100 %'")


# -- only while all runs ran -----------------------------------------------------------------------


def test_overlap_counts_only_while_all_ran(study: Study) -> None:
    study.workload(
        Planted("a", (0.0, 100.0), EPOCHS, SPANS, GAUGES, {DISK: LEVELS}),
        Planted("b", (12.0, 80.0), [(1, (13.0, 20.0)), (2, (20.0, 75.0))], (), GAUGES),
    )
    run = study.one(overlap=True)
    # The last epoch of a goes on when b has ended: its part is measured, its length is not.
    assert run.window.epochs_s == (20.0, 30.0)
    expected = mean({2: 20, 30: 5, 4: 30, 8: 10})
    assert run.values[Quantity.CPU].value == pytest.approx(expected, rel=1e-9)
    assert run.values[Quantity.DISK_READ].value == pytest.approx(expected, rel=1e-9)
    assert value(study, Quantity.CPU, "all", overlap=True) == pytest.approx(
        mean({50: 3, 2: 20, 30: 5, 4: 30, 8: 10}), rel=1e-9
    )
    assert study.one("train", overlap=True).window.epochs_s == (18.0, 28.0)
    assert study.one(overlap=True, letter="b").window.epochs_s == (55.0,)
    assert study.one("epoch:4", overlap=True).window.how == (
        "no epoch lies within the time in which all runs of the workload ran"
    )


def test_overlap_of_a_run_alone_is_the_run(local: Study) -> None:
    local.workload(Planted(ran=None, epochs=EPOCHS, gauges=GAUGES))
    assert local.one(overlap=True) == local.one()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Planted("b", (95.0, 120.0)), "nothing in the window while all runs of the workload ran"),
        (Planted("b", (100.0, 120.0)), "the runs of the workload never ran all at the same time"),
        (Planted("b", None), "a run of the workload has no recorded start or end"),
        (
            Planted("b", (0.0, 9.0), status=RunStatus.SKIPPED),
            "not all runs of the workload came to a result",
        ),
    ],
)
def test_runs_that_never_ran_together_have_no_overlap(
    local: Study, other: Planted, said: str
) -> None:
    local.workload(Planted("a", epochs=EPOCHS, gauges=GAUGES), other)
    run = local.one(overlap=True)
    assert not run.values
    assert run.window.missing == said
    assert local.one().values


def test_what_ran_out_of_memory_ends_the_overlap(local: Study) -> None:
    local.workload(
        Planted("a", epochs=EPOCHS, gauges=GAUGES),
        Planted("b", (0.0, 38.0), status=RunStatus.OOM),
    )
    assert local.one(overlap=True).window.epochs_s == (20.0,)


def test_the_share_of_the_overlap_ends_with_the_newest_sample_of_runs_that_run() -> None:
    def run(start_s: float | None, end_s: float | None) -> RunRecord:
        start_ns, end_ns = (None if s is None else round(s * S) for s in (start_s, end_s))
        status = RunStatus.RUNNING if end_ns is None else RunStatus.FINISHED
        return RunRecord(
            *("r", "w", "e", "pair", "a", "model", 0, status), started_ns=start_ns, ended_ns=end_ns
        )

    def share(*runs: RunRecord) -> float | None:
        return overlap_share(runs, 20 * S)

    assert share(run(0, 10), run(2, 8)) == 0.6
    assert share(run(0, None), run(5, None)) == 0.75
    assert share(run(0, 10), run(5, None)) == 0.25
    assert share(run(0, 4), run(5, 10)) == 0.0
    assert share(run(0, 4)) is None
    assert share(run(0, None), run(None, None)) is None  # it may start yet
    assert share(run(0, 4), run(None, 4)) == 0.0


# -- energy ----------------------------------------------------------------------------------------


def test_energy_follows_the_epochs_of_all_runs(study: Study) -> None:
    """Whoever counts when, each joule counts once."""
    watts = {"gpu.energy": LEVELS}
    study.workload(
        Planted("a", epochs=EPOCHS, spans=SPANS, gauges=GAUGES, counters=watts),
        Planted("b", epochs=[(1, (0.0, 60.0)), (2, (60.0, 92.0))], gauges=GAUGES, counters=watts),
    )
    # a: 15-35, 40-90 s; b: 60-92 s.
    used_j = 20 * 2 + 30 * 4 + 20 * 8 + 2 * 70
    assert device(study, Quantity.ENERGY_PER_EPOCH) == pytest.approx(used_j / 4, rel=1e-9)
    # The rate of a is that between its epochs, too; b's is that of its second epoch.
    a = 10 * mean({2: 20, 30: 5, 4: 30, 8: 20}) * 70
    b = 10 * mean({4: 10, 8: 20, 70: 2}) * 32
    assert device(study, Quantity.ENERGY_PER_SAMPLE) == pytest.approx(used_j / (a + b), rel=1e-9)
    assert device(study, Quantity.ENERGY_PER_EPOCH, "epoch:2") == pytest.approx(
        (20 * 2 + 10 * 4 + 20 * 8 + 2 * 70) / 2, rel=1e-9
    )
    # Of b, which has no such span, nothing counts.
    assert device(study, Quantity.ENERGY_PER_EPOCH, "train") == pytest.approx(
        (18 * 2 + 28 * 4 + 18 * 8) / 3, rel=1e-9
    )
    whole = 5 * 90 + 10 * 50 + 20 * 2 + 5 * 30 + 30 * 4 + 20 * 8 + 10 * 70
    assert device(study, Quantity.ENERGY, "train") == pytest.approx(whole, rel=1e-9)


def test_energy_of_runs_without_epochs_is_by_sample_only(local: Study) -> None:
    local.workload(Planted(gauges={RATE: {0: 5.0}}, counters={"gpu.energy": {0: 20.0}}))
    assert device(local, Quantity.ENERGY_PER_EPOCH) is None
    assert device(local, Quantity.ENERGY_PER_SAMPLE, "all") == pytest.approx(4.0, rel=1e-9)


# -- runs without epochs ---------------------------------------------------------------------------


def test_without_epochs_the_steady_state_counts_and_that_is_said(study: Study) -> None:
    gauges = {CPU: {0: 0.2, 20: 3.0, 90: 0.1}, "process.memory.rss": {0: 1.0, 20: 5.0, 90: 2.0}}
    study.workload(Planted(gauges=gauges, counters={DISK: {0: 1.0, 20: 7.0, 90: 1.0}}))
    run = study.one()
    assert run.window.how == "no epochs: steady state of process.cpu.utilization"
    assert {quantity: one.value for quantity, one in run.values.items()} == pytest.approx(
        {
            Quantity.CPU: 3.0,
            Quantity.MEMORY: 5.0,
            Quantity.MEMORY_PEAK: 5.0,
            Quantity.DISK_READ: 7.0,
        },
        rel=1e-9,
    )
    assert study.one("steady").window.how == "steady state of process.cpu.utilization"
    assert study.one("steady").values == run.values
    assert value(study, Quantity.CPU, "all") == pytest.approx(
        mean({0.2: 20, 3.0: 70, 0.1: 10}), rel=1e-9
    )


def test_a_run_that_never_settles_counts_as_a_whole_and_that_is_said(local: Study) -> None:
    climbing = {float(second): float(second) for second in range(100)}
    local.workload(Planted(gauges={CPU: climbing}))
    run = local.one()
    assert run.values[Quantity.CPU].value == pytest.approx(49.5)
    assert run.window.how == (
        "no epochs: process.cpu.utilization has no steady state, so the whole run counts"
    )


def test_a_short_run_counts_as_a_whole_and_that_is_said(local: Study) -> None:
    local.workload(Planted(ran=(0.0, 4.0), gauges={CPU: {0: 1.0, 2: 3.0}}))
    run = local.one()
    assert run.values[Quantity.CPU].value == pytest.approx(2.0)
    assert run.window.how == (
        "no epochs: too few values to find a steady state, so the whole run counts"
    )
    # Of a run of which nobody knows when it ran, all there is.
    local.workload(Planted(ran=None, counters={DISK: {0: 6.0}}))
    (found,) = local.measured()[1].rows["a"]
    assert found is not None
    assert found.values[Quantity.DISK_READ].value == pytest.approx(6.0, rel=1e-9)
    assert found.window.length_s is None


def test_the_script_s_own_pace_goes_before_the_gpu_s_and_the_cpu_s(local: Study) -> None:
    gauges = {
        CPU: {0: 1.0, 10: 2.0},
        "gpu.sm.active": {0: 0.1, 20: 0.9},
        RATE: {0: 3.0, 30: 8.0},
    }
    for count in range(3):
        local.workload(Planted(gauges=dict(list(gauges.items())[: count + 1])))
    starts = []
    for measured in local.measured("steady"):
        (run,) = measured.rows["a"]
        assert run is not None
        starts.append((run.window.stretches[0][0] - BEGAN_NS) / S % 100_000)
    assert starts == pytest.approx([10.05, 20.05, 30.05])


def test_epochs_within_the_steady_state_are_timed(local: Study) -> None:
    local.workload(Planted(epochs=EPOCHS, gauges={CPU: {0: 0.1, 18: 2.0}}))
    assert local.one("steady").window.epochs_s == (30.0, 20.0)


# -- many runs, thinned series, notes --------------------------------------------------------------


def test_thinned_chunks_stand_for_all_of_them(local: Study) -> None:
    """Where a series that was thinned was cut, as it is at the default window, nothing changes."""
    noise = {CPU: {second / 2: float(second % 7) for second in range(1000)}}
    epochs = [(1, (5.0, 100.0)), (2, (100.0, 400.0)), (3, (400.0, 450.0))]
    workload_id = local.workload(Planted(ran=(0.0, 500.0), epochs=epochs, gauges=noise), chunks=1)
    windows = ("", "epoch:2-3", "all")
    before = [value(local, Quantity.CPU, window) for window in windows]
    with StoreReader(local.store) as reader:
        pruned = prune_run(reader, local.writer, local.run_id(workload_id), Keep.SUMMARIES)
    assert pruned is not None
    assert pruned.kept_count < pruned.point_count / 10
    after = [value(local, Quantity.CPU, window) for window in windows]
    assert after == pytest.approx(before, rel=1e-12)


@pytest.mark.parametrize("window", ["", "train", "nothing", "steady", "epoch:2"])
def test_many_runs_take_as_few_statements_as_one(local: Study, window: str) -> None:
    counts = []
    for more in (1, 19):
        for _ in range(more):
            local.workload(Planted(epochs=EPOCHS, spans=SPANS, gauges=GAUGES))
        statements: list[str] = []
        with StoreReader(local.store) as reader:
            event.listen(
                reader.engine,
                "before_cursor_execute",
                lambda *given, seen=statements: seen.append(given[2]),
            )
            current = current_attempts(attempts_of(reader.runs(experiment="study"), {}))
            found = list(measure(reader, current, WindowSpec.parse(window)))
            assert len(found) == local.count
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_notes_say_of_how_many_runs(local: Study) -> None:
    for _ in range(2):
        local.workload(Planted(epochs=EPOCHS, gauges=GAUGES))
    local.workload(Planted(epochs=EPOCHS[:1], gauges=GAUGES))
    local.workload(Planted(gauges={}))

    def windows(found: list[WorkloadMeasures]) -> list[Window]:
        return [one.window for workload in found for row in workload.rows.values() for one in row]

    assert window_notes(windows(local.measured())) == (
        "1 run: only one epoch ended, so it counts",
        "1 run: no epochs: too few values to find a steady state, so the whole run counts",
    )
    assert window_notes(windows(local.measured("epoch:2"))) == (
        "1 run: no values: epoch 2 did not end (1 did)",
        "1 run: no values: epoch 2 did not end",
    )
    assert window_notes(windows(local.measured("all"))) == ()
    many = [Window(missing=f"no epoch {number} ended") for number in range(20)]
    assert len(notes := window_notes(many)) == 7
    assert notes[-1] == "14 runs: another window for other reasons"
