"""PyTorch's traces in a run's: on its clock, whole, with numbers of their own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from radt.clock import Clock
from radt.model import MarkerKind
from radt.store.records import MarkerRecord
from radt.trace import chrome
from radt.trace.torch_trace import ClockReadings, clock_map, torch_traces
from tests.support.bench import Bench
from tests.trace.trace_kit import OTHER_ID, RUN_ID, START_NS, Event, S, Store, Trace

#: Monotonic time of the run's start, and radt's wall-clock time less that.
START_MONO_NS = 4_000_000_000_000
OFFSET_NS = START_NS - START_MONO_NS
#: PyTorch's clock is ahead of the run's by something that nobody knows but the marks.
AHEAD_NS = 7_777_777_123
BASE_NS = 1_700_000_000_000_000_000


def at_us(seconds: float) -> float:
    """A time of the trace for a time since the start of the run."""
    return (START_NS + round(seconds * S) + AHEAD_NS - BASE_NS) / 1000


def slice_(name: str, start: float, seconds: float, **more: Any) -> Event:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 25881, "tid": 25881}
    return event | {"ts": at_us(start), "dur": seconds * 1e6} | more


def mark(start: float, **more: Any) -> Event:
    return slice_("radt.clock", start, 20e-6, cat="user_annotation", **more)


def notes(*seconds: float, **more: Any) -> Event:
    return {
        "marker": "radt.clock",
        "monotonic_ns": [START_MONO_NS + round(second * S) for second in seconds],
        "uncertainty_ns": [2000 for _ in seconds],
        "offset_ns": OFFSET_NS,
        "process": "",
        **more,
    }


def write(store: Store, events: list[Event], run_id: str = RUN_ID, **top: Any) -> Path:
    """A trace among the artifacts of a run, as Kineto writes it."""
    folder = store.home / "runs" / run_id / "artifacts" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"torch-epoch-{len(list(folder.iterdir()))}.json.gz"
    named = {"ph": "M", "name": "process_name", "pid": 25881, "tid": 0, "ts": at_us(0)}
    events = [{**named, "args": {"name": "python"}}, *events]
    document = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **top}
    path.write_bytes(gzip.compress(json.dumps(document, indent=1).encode()))
    return path


def named(trace: Trace, name: str) -> list[tuple[float, float]]:
    """Begins and ends of all slices of a name, in seconds since the start of the run."""
    return [
        (trace.seconds(event["ts"]), trace.seconds(event["ts"] + event["dur"]))
        for event in trace.events
        if event["ph"] == "X" and event["name"] == name
    ]


def test_marks_put_it_on_the_clock_of_the_run(store: Store) -> None:
    store.run()
    epoch = MarkerRecord(
        *(RUN_ID, 0, MarkerKind.EPOCH, "epoch", START_NS + S, START_NS + 3 * S),
        step=0,
    )
    store.writer.put_markers([epoch])
    # The shadow of a mark on a GPU begins elsewhere, and the warm-up came before.
    events = [mark(1), slice_("aten::mm", 1.5, 0.25), mark(2)]
    shadow = mark(1.7, tid=7) | {"cat": "gpu_user_annotation"}
    write(store, [*events, shadow], radt_clock=notes(1, 2))
    trace, output = store.trace()
    ((start, end),) = named(trace, "aten::mm")
    assert abs(start - 1.5) <= 2e-6
    assert round(end - start, 9) == 0.25
    ((epoch_start, epoch_end),) = named(trace, "epoch 0")
    assert epoch_start < start < end < epoch_end
    assert "torch-epoch-0.json.gz: 5 events, on the run's clock within 2.00 µs" in output


def test_it_is_whole_and_its_numbers_are_its_own(store: Store) -> None:
    store.run()
    store.run(OTHER_ID, letter="b")
    args = {"shapes": [[8, 64], []], "note": 'a "quoted" ünïcode\n', "nan": float("nan")}
    flow = {"pid": 25881, "tid": 25881, "cat": "fwdbwd", "name": "fwdbwd", "id": 3}
    events = [
        mark(1),
        slice_("first", 1.2, 0.1, args=args),
        {**flow, "ph": "s", "ts": at_us(1.25)},
        {**flow, "ph": "f", "bp": "e", "ts": at_us(1.26)},
        slice_("kernel", 1.3, 0.1, pid=0, tid=7),
        slice_("window", 1, 1, pid="Spans", tid="PyTorch Profiler"),
        {"ph": "i", "s": "g", "name": "end", "pid": "", "tid": "", "ts": at_us(2)},
    ]
    gpu = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}
    other = [gpu, *events, slice_("only here", 5, 1)]
    write(store, [gpu, *events], radt_clock=notes(1))
    write(store, [gpu, *events], radt_clock=notes(1))
    write(store, [gpu, *events], radt_clock=notes(1, process="rank 1"))
    write(store, other, OTHER_ID, radt_clock=notes(1))
    trace, output = store.trace()
    own = [name for name in trace.processes.values() if name.startswith("1a cnn")]
    assert own == [
        "1a cnn [FINISHED] 01234567",
        *("1a cnn: PyTorch python 25881", "1a cnn: PyTorch python 0"),
        *("1a cnn: PyTorch Spans", "1a cnn: PyTorch marks"),
        *("1a cnn rank 1: PyTorch python 25881", "1a cnn rank 1: PyTorch python 0"),
        *("1a cnn rank 1: PyTorch Spans", "1a cnn rank 1: PyTorch marks"),
    ]
    first = [event for event in trace.events if event["name"] == "first"]
    assert len(first) == 4
    assert [event["args"] for event in first] == [args | {"nan": "NaN"}] * 4
    # Both traces of one process are in its rows; the rank's GPU 0 is another.
    assert len({event["pid"] for event in first}) == 3
    flows: dict[int, list[str]] = {}
    for event in trace.events:
        if event["ph"] in "sf":
            flows.setdefault(event["id"], []).append(event["ph"])
    assert list(flows.values()) == [["s", "f"]] * 4
    assert output.count("events, on the run's clock") == 4
    alone, output = store.trace("--alone")
    assert output.count("events, on the run's clock") == 3
    assert not named(alone, "only here")


def test_clocks_that_drifted_are_stretched_between_marks(store: Store) -> None:
    store.run()
    # Between the marks the trace's clock runs 1 % fast.
    drift = 0.01
    events = [mark(1), slice_("outer", 1 + drift / 2, 0.5), slice_("inner", 1 + drift, 0.2)]
    write(store, [*events, mark(2 + drift)], radt_clock=notes(1, 2))
    trace, output = store.trace()
    ((outer_start, outer_end),) = named(trace, "outer")
    assert abs(outer_start - (1 + drift / 2 / (1 + drift))) < 1e-6
    assert abs(outer_end - (1 + (drift / 2 + 0.5) / (1 + drift))) < 1e-6
    assert "drift of 10.0 ms taken out" in output


def test_without_marks_the_wall_clock_has_to_do(store: Store) -> None:
    store.run()
    write(store, [slice_("op", -20, 0.5)])  # where the clocks are far apart, before the run
    write(store, [mark(1), slice_("op", 2, 0.5)], radt_clock=notes(1, offset_ns=None))
    trace, output = store.trace()
    ahead = AHEAD_NS / S
    assert [round(start - ahead, 6) for start, _ in named(trace, "op")] == [-20, 2]
    assert output.count("placed by the wall clock") == 2


def test_a_trace_that_was_cut_off_is_left_out(store: Store) -> None:
    store.run()
    whole = write(store, [mark(1), slice_("op", 2, 0.5)], radt_clock=notes(1))
    cut = write(store, [mark(1)] * 500)
    cut.write_bytes(cut.read_bytes()[:-40])
    text = whole.with_name("torch-text.json")
    text.write_text("no trace")
    (whole.parent / "1a.nsys-rep").write_bytes(b"x")
    trace, output = store.trace()
    assert len(named(trace, "op")) == 1
    assert f"{cut} is left out: " in output
    assert f"{text} is left out: it does not begin with" in output
    assert "1a.nsys-rep needs NVIDIA's own viewer" in output


@pytest.mark.parametrize("window", [1, 7, 4096])
def test_events_are_read_one_by_one_whatever_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(chrome, "_WINDOW", window)
    events = [{"ts": 1.5e3, "args": {"text": 'br{ack]et "é\\'}}, {}, {"n": -12.25, "x": [1, [2]]}]
    top = {"a": 12, "traceEvents": events, "z": {"deep": [None, True]}}
    path = tmp_path / "t.json"
    expected = [("a", 12), *(("traceEvents", event) for event in events), ("z", top["z"])]
    for indent in (None, 3):
        path.write_text(json.dumps(top, indent=indent, ensure_ascii=False))
        assert list(chrome.trace_parts(path)) == expected
    no_traces = ("", "{", '{"a"', '{"traceEvents": [{}', '{"traceEvents": 1}', "[1,", "7", "{3:4}")
    for broken in no_traces:
        path.write_text(broken)
        with pytest.raises(chrome.BrokenTraceError):
            list(chrome.trace_parts(path))


def test_the_narrowest_of_all_marks_decides() -> None:
    noted = ClockReadings("m", "", (1000, 2000, 3000), (500, 5, 300), 0)
    # The trace is 100 behind; marks are read late by up to their uncertainty.
    found = clock_map([1000 - 100 + 400, 2000 - 100 - 3, 3000 - 100], noted, 0)
    assert len(found.anchors_ns) == 1
    assert found.to_wall_ns(10_000) - 10_100 in range(-8, 9)
    assert found.error_ns is not None
    assert found.error_ns <= 5
    cut_off = clock_map([900], noted, 0)
    assert cut_off.to_wall_ns(900) == 1000


TRAIN = """
import torch, radt
model = torch.nn.Linear(8, 8)
with radt.Run() as run:
    for epoch in run.epochs(2):
        with run.span("work"):
            model(torch.randn(4, 8)).sum().backward()
"""


def test_a_real_run_under_torchprof(bench: Bench) -> None:
    bench.script("train.py", TRAIN)
    bench.experiment("Workload,Listeners,File\n1,torchprof,train.py\n1,,train.py\n")
    bench.radt("experiment.csv")
    first, second = bench.reader.runs()
    (path,) = torch_traces(Path(first.spool))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        clock = json.load(file)["radt_clock"]
    output = bench.shown("trace", first.run_id[:8], "-o", "out.json")
    assert "1 neighbour, " in output
    trace = Trace(bench.folder / "out.json")
    rows = trace.slices(trace.pid(f"1{second.letter}"), "main process")
    assert [name for name, _, _ in rows] == ["epoch 1", "work", "epoch 2", "work"]
    assert named(trace, "aten::linear"), "PyTorch's operations are there"
    # The run's clock is that of the machine: the file has the marks where the process noted them.
    offset_ns = Clock.for_machine().offset_ns
    expected = [(at_ns + offset_ns - START_NS) / S for at_ns in clock["monotonic_ns"]]
    found = [start for start, _ in named(trace, "radt.clock")]
    # The narrowest mark decides; how far the others are off is how late they were read.
    assert len(found) == len(expected)
    for at, noted, uncertainty_ns in zip(found, expected, clock["uncertainty_ns"], strict=True):
        assert at == pytest.approx(noted, rel=0, abs=uncertainty_ns / S + 1e-4)
