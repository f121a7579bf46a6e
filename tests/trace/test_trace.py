"""``radt trace``: what a viewer gets to see of runs, their series and their gaps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from radt.errors import RunNotFoundError, UsageError
from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.records import GapRecord, MarkerRecord, SeriesRecord
from tests.trace.trace_kit import OTHER_ID, RUN_ID, START_NS, S, Store, Trace

GAUGE, COUNTER = SeriesKind.GAUGE, SeriesKind.COUNTER


def power(run_id: str = RUN_ID, number: int = 0) -> SeriesRecord:
    return SeriesRecord(run_id, number, "smi", "gpu.power", "W", Scope.GPU, GAUGE, "gpu0", 1.0)


def marker(
    number: int, kind: MarkerKind, name: str, start: float, end: float | None, **more: object
) -> MarkerRecord:
    ends_ns = None if end is None else START_NS + round(end * S)
    start_ns = START_NS + round(start * S)
    return MarkerRecord(RUN_ID, number, kind, name, start_ns, ends_ns, **more)  # type: ignore[arg-type]


def test_epochs_and_spans_nest_in_a_row_of_each_process(store: Store) -> None:
    store.run(status=RunStatus.FAILED, end_reason="exit code 3", exit_code=3)
    store.writer.put_params(RUN_ID, {"lr": "0.1"})
    epoch, span = MarkerKind.EPOCH, MarkerKind.SPAN
    store.writer.put_markers(
        [
            marker(0, epoch, "epoch", 1, 4, step=0),
            marker(1, span, "load", 1, 2),
            marker(2, span, "train", 2, 4),
            marker(3, span, "copy", 3, 5),  # another thread's: it overlaps
            marker(4, epoch, "epoch", 5, None, step=1),  # it ended with the run
            marker(5, span, "load", 1.5, 2.5, process="rank 1"),
            marker(6, MarkerKind.EVENT, "listener smi restarted", 6, None, detail="hung"),
        ]
    )
    trace, output = store.trace()
    pid = trace.pid("1a cnn [FAILED]")
    assert trace.slices(pid, "run") == [("1a cnn", 0, 10)]
    assert trace.slices(pid, "main process") == [
        ("epoch 0", 1, 4),
        ("load", 1, 2),
        ("train", 2, 4),
        ("epoch 1", 5, 10),
    ]
    assert trace.slices(pid, "main process (overlapping 1)") == [("copy", 3, 5)]
    assert trace.slices(pid, "rank 1") == [("load", 1.5, 2.5)]
    (event,) = (event for event in trace.events if event["ph"] == "i")
    assert (event["name"], trace.seconds(event["ts"])) == ("listener smi restarted", 6)
    assert event["args"]["detail"] == "hung"
    (life,) = (event for event in trace.events if event.get("cat") == "run")
    assert life["args"]["params"] == {"lr": "0.1"}
    assert life["args"]["reason"] == "exit code 3"
    assert "no neighbours, 7 epochs and spans" in output
    assert "https://ui.perfetto.dev" in output


def test_series_have_units_and_counters_become_rates(store: Store) -> None:
    store.run()
    process, run = Scope.PROCESS, Scope.RUN
    store.series(power(), [0, 1, 2], [100, 150, 120])
    loss = SeriesRecord(RUN_ID, 1, "run", "loss", "", run, GAUGE, "rank 1")
    store.series(loss, [0.5, 3], [2.5, 1.25])
    read = SeriesRecord(
        RUN_ID, 2, "iostat", "process.disk.io", "By", process, COUNTER, "", 2.0, wraps_at=1000.0
    )
    store.series(read, [0, 2, 4], [900, 960, 60])
    energy = SeriesRecord(
        RUN_ID, 3, "smi", "energy", "J", process, COUNTER, "", 1.0, estimated=True
    )
    store.series(energy, [0, 1], [7, 57])
    trace, output = store.trace()
    pid = trace.pid("1a cnn")
    expected = [(0, 100), (1, 150), (2, 120), (3, 0)]
    assert trace.counter(trace.pid("gpu0 of node1"), "gpu.power") == ("W", expected)
    # What a script logs holds until the run ends.
    assert trace.counter(pid, "loss rank 1") == ("value", [(0.5, 2.5), (3, 1.25), (10, 0)])
    # From each reading on, what was used until the next; over the top of the counter, too.
    assert trace.counter(pid, "process.disk.io") == ("bytes/s", [(0, 30), (2, 50), (4, 0)])
    assert trace.counter(pid, "energy (estimated)") == ("W", [(0, 50), (1, 0)])
    assert "4 series of 10 values" in output


def test_tracks_of_one_process_are_told_apart(store: Store) -> None:
    store.run()
    store.series(power(), [0, 1], [100, 150])
    others = [
        ("dcgm", "gpu.power", "W", Scope.GPU, "gpu0"),
        ("dcgm", "gpu.sm.active", "1", Scope.GPU, "gpu0"),
        ("iostat", "system.disk.queue", "{requests}", Scope.HOST, ""),
        ("iostat", "system.disk.queue", "{requests}", Scope.HOST, "sda"),
        ("top", "system.load", "{tasks}", Scope.HOST, ""),
        ("run", "lag", "s", Scope.RUN, ""),
        ("run", "lag", "s", Scope.RUN, "rank 1"),
    ]
    for number, (listener, metric, unit, scope, entity) in enumerate(others, 1):
        series = SeriesRecord(RUN_ID, number, listener, metric, unit, scope, GAUGE, entity)
        store.series(series, [0, 1], [0.5, 1])
    trace, _ = store.trace()
    units = {
        (trace.processes[event["pid"]], event["name"]): next(iter(event["args"]))
        for event in trace.events
        if event["ph"] == "C"
    }
    own = trace.processes[trace.pid("1a cnn")]
    assert units == {
        ("gpu0 of node1", "gpu.power (smi)"): "W",
        ("gpu0 of node1", "gpu.power (dcgm)"): "W",
        ("gpu0 of node1", "gpu.sm.active"): "ratio",
        ("host node1", "system.disk.queue total"): "requests",
        ("host node1", "system.disk.queue sda"): "requests",
        ("host node1", "system.load"): "tasks",
        (own, "lag"): "s",
        (own, "lag rank 1"): "s",
    }


def test_counters_are_nothing_where_nothing_was_measured(store: Store) -> None:
    store.run()
    store.series(power(), [0, 1, 2, 5, 6, 12, 13], [1, 2, 3, 4, 5, 6, 7])
    store.writer.put_gaps(
        [
            GapRecord(
                *(RUN_ID, "smi", -1, START_NS + 2 * S, START_NS + 5 * S),
                *(MissingReason.LOST, "did not return"),
            ),
            GapRecord(RUN_ID, "smi", 0, START_NS, START_NS + S, MissingReason.PAUSED),
            GapRecord(RUN_ID, "smi", 7, START_NS, START_NS + S, MissingReason.PAUSED),
        ]
    )
    trace, output = store.trace()
    _, points = trace.counter(trace.pid("gpu0"), "gpu.power")
    # After 2 s by the ledger, after 6 s because there is nothing for too long, and at the end.
    assert [at for at, value in points if value == 0] == [3, 7, 14]
    assert [value for _, value in points if value] == [1, 2, 3, 4, 5, 6, 7]
    assert trace.slices(trace.pid("1a cnn"), "gaps") == [("smi: paused", 0, 1), ("smi: lost", 2, 5)]
    assert "2 gaps: counters are 0 there" in output


def test_what_is_read_less_often_than_its_listener_has_no_gaps(store: Store) -> None:
    store.run(ended_ns=START_NS + 40 * S)
    pss = SeriesRecord(RUN_ID, 0, "top", "process.memory.pss", "By", Scope.PROCESS, GAUGE, "", 1.0)
    store.series(pss, [0, 5, 10, 15, 35], [1, 2, 3, 4, 5])
    trace, _ = store.trace()
    _, points = trace.counter(trace.pid("1a"), "process.memory.pss")
    assert points == [(0, 1), (5, 2), (10, 3), (15, 4), (20, 0), (35, 5), (40, 0)]


def test_a_loss_that_diverges_is_marked(store: Store) -> None:
    store.run()
    loss = SeriesRecord(RUN_ID, 0, "run", "loss", "", Scope.RUN, GAUGE)
    store.series(loss, [1, 2, 3, 4, 5], [0.5, math.inf, math.nan, 0.25, math.nan])
    trace, _ = store.trace()
    _, points = trace.counter(trace.pid("1a"), "loss")
    assert points == [(1, 0.5), (2, 0), (3, 0), (4, 0.25), (5, 0), (10, 0)]
    said = [(e["name"], trace.seconds(e["ts"])) for e in trace.events if e["ph"] == "i"]
    assert said == [("loss is inf", 2), ("loss is nan", 5)]


def test_neighbours_stand_beside_it_and_devices_once(store: Store) -> None:
    store.run()
    store.run(OTHER_ID, letter="b", started_ns=START_NS - 2 * S, ended_ns=START_NS + 3 * S)
    store.run("c" * 32, letter="c", started_ns=None, ended_ns=None, status=RunStatus.SKIPPED)
    store.run("d" * 32, workload_id="x" * 32, name="earlier")
    store.series(power(), [0, 1, 2], [10, 11, 12])
    # The neighbour began earlier; what both were given of one reading is the same.
    store.series(power(OTHER_ID, 4), [-2, -1, 0, 1], [8, 9, 10, 11])
    memory = "process.memory.rss"
    for number, run_id in enumerate((RUN_ID, OTHER_ID)):
        series = SeriesRecord(run_id, 5, "top", memory, "By", Scope.PROCESS, GAUGE, "", 1.0)
        store.series(series, [0, 1], [100 + number, 200 + number])
    # The neighbour's readings end with it: a gap of its own, while the device was still read.
    store.writer.put_gaps(
        [GapRecord(OTHER_ID, "smi", -1, START_NS + S, START_NS + 3 * S, MissingReason.LOST)]
    )
    trace, output = store.trace()
    assert list(trace.processes.values()) == [
        "1a cnn [FINISHED] 01234567",
        "gpu0 of node1",
        "1b cnn [FINISHED] fedcba98",
    ]
    _, points = trace.counter(trace.pid("gpu0"), "gpu.power")
    assert points == [(-2, 8), (-1, 9), (0, 10), (1, 11), (2, 12), (3, 0)]
    own, other = trace.pid("1a"), trace.pid("1b")
    assert trace.counter(own, memory) == ("bytes", [(0, 100), (1, 200), (2, 0)])
    assert trace.counter(other, memory) == ("bytes", [(0, 101), (1, 201), (2, 0)])
    assert trace.slices(other, "run") == [("1b cnn", -2, 3)]
    assert "1 neighbour," in output

    alone, output = store.trace("--alone")
    assert list(alone.processes.values()) == ["1a cnn [FINISHED] 01234567", "gpu0 of node1"]
    assert alone.counter(alone.pid("gpu0"), "gpu.power")[1][0] == (0, 10)
    assert "no neighbours" in output


def test_long_series_keep_their_extremes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radt.cli.trace.MAX_POINTS", 1000)
    store.run(ended_ns=START_NS + 5000 * S)
    values = [float(number % 7) for number in range(5000)]
    values[1234], values[4321] = 1e6, -1e6
    store.series(power(), [float(n) for n in range(5000)], values)
    short = SeriesRecord(RUN_ID, 1, "run", "loss", "", Scope.RUN, GAUGE)
    store.series(short, [1, 2], [5, 6])
    trace, output = store.trace()
    _, points = trace.counter(trace.pid("gpu0"), "gpu.power")
    assert 500 < len(points) <= 1000
    assert {(1234, 1e6), (4321, -1e6)} <= set(points)
    assert len(trace.counter(trace.pid("1a"), "loss")[1]) == 3
    assert "1 long series shortened to 998 values" in output


def test_a_run_that_is_under_way_ends_with_what_is_known(store: Store) -> None:
    store.run(status=RunStatus.RUNNING, ended_ns=None)
    store.writer.put_markers([marker(0, MarkerKind.EPOCH, "epoch", 1, None, step=0)])
    store.series(power(), [0, 1, 2, 3], [1, 2, 3, 4])
    trace, _ = store.trace()
    assert trace.slices(trace.pid("1a"), "main process") == [("epoch 0", 1, 3)]


def test_the_default_file_is_named_after_the_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.run()
    store.series(power(), [0], [1])
    monkeypatch.chdir(tmp_path)
    assert "0123456789ab.trace.json.gz" in store.invoke(RUN_ID[:6]).output
    Trace(tmp_path / "0123456789ab.trace.json.gz")
    store.invoke(RUN_ID[:6], "-o", tmp_path / "plain.json")
    assert (tmp_path / "plain.json").read_bytes().startswith(b"{")
    Trace(tmp_path / "plain.json")


def test_what_cannot_be_written_leaves_the_old_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunNotFoundError, match="no run matches"):
        store.invoke("ffffffff")
    store.run()
    with pytest.raises(UsageError, match="neither samples nor epochs"):
        store.invoke(RUN_ID)
    store.series(power(), [0], [1])
    with pytest.raises(UsageError, match=r"cannot be written: No such file.*-o"):
        store.invoke(RUN_ID, "-o", tmp_path / "no" / "x.json.gz")
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "x.json.gz").write_text("old")
    with store.writer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE chunk SET checksum = checksum + 1")
    with pytest.raises(Exception, match="damaged"):
        store.invoke(RUN_ID, "-o", folder / "x.json.gz")
    assert [path.name for path in folder.iterdir()] == ["x.json.gz"]
    assert (folder / "x.json.gz").read_text() == "old"
