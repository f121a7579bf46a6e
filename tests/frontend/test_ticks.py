"""Boxes of three states, and what clicks make of the picks."""

from __future__ import annotations

import pytest

from radt.errors import UsageError
from radt.frontend.data.catalog import read_catalog
from radt.frontend.data.spec import MAX_PICKS, Pick
from radt.frontend.selection import Tick, Ticks, ticked

NAME = "quickstart"
ALL = Pick(NAME)


@pytest.fixture
def shelf(demo, source):
    """What tests pick from: workloads and runs by label."""
    demo.quickstart()
    catalog = read_catalog(source, NAME)
    found = {
        workload.record.label: Pick.workload(NAME, workload.record.workload_id)
        for workload in catalog.workloads
    }
    return {name: Pick.run(NAME, run_id) for name, run_id in demo.run_ids.items()} | found


@pytest.fixture
def after(source):
    """The picks after one click."""

    def click(picks, targets, *, on):
        return ticked(picks, targets, lambda name: read_catalog(source, name), on=on)

    return click


def boxes(source, picks):
    """State of the experiment's box, the workloads', and of the runs that are ticked."""
    catalog = read_catalog(source, NAME)
    ticks = Ticks.of(catalog, picks)
    return (
        ticks.experiment,
        {one.record.label: ticks.workload(one) for one in catalog.workloads},
        [run.short for run in catalog.runs.values() if ticks.run(run)],
    )


def test_boxes_follow_the_picks(source, shelf):
    off = {"solo": Tick.OFF, "three": Tick.OFF, "mix": Tick.OFF}
    assert boxes(source, ()) == (Tick.OFF, off, [])
    assert boxes(source, (Pick("other"),)) == (Tick.OFF, off, [])
    state, workloads, runs = boxes(source, (shelf["three b"], shelf["mix"]))
    assert state is Tick.MIXED
    assert workloads == {"solo": Tick.OFF, "three": Tick.MIXED, "mix": Tick.ON}
    assert runs == ["three b", "mix a", "mix b"]
    singly = tuple(shelf[name] for name in ("solo a", "three a", "three b", "three c", "mix"))
    assert boxes(source, singly)[:2] == (Tick.ON, dict.fromkeys(off, Tick.ON))
    assert boxes(source, (ALL,))[:2] == (Tick.ON, dict.fromkeys(off, Tick.ON))


@pytest.mark.parametrize(
    ("before", "target", "on", "expected"),
    [
        ([], "three b", True, ["three b"]),
        (["three b"], "three b", False, []),
        (["three b"], "three", True, ["three"]),
        (["three a", "three b", "three c"], "three", True, ["three"]),
        (["three a", "solo"], "three", False, ["solo"]),
        (["three"], "three b", False, ["three a", "three c"]),
        (["solo", "three", "mix"], "three b", False, ["solo", "three a", "three c", "mix"]),
        (["three"], "three b", True, ["three"]),
        ([ALL], "three b", False, ["solo", "three a", "three c", "mix"]),
        ([ALL], "three", False, ["solo", "mix"]),
        ([ALL], "three", True, [ALL]),
        (["three b", "mix"], ALL, True, [ALL]),
        (["three b", "mix"], ALL, False, []),
    ],
)
def test_a_click(shelf, after, before, target, on, expected):
    def pick(one):
        return shelf[one] if isinstance(one, str) else one

    others = (Pick("other"),)
    picks = others + tuple(pick(one) for one in before)
    assert after(picks, [pick(target)], on=on) == others + tuple(pick(one) for one in expected)


def test_several_boxes_at_once(shelf, after):
    runs = [shelf[name] for name in ("three a", "mix b")]
    assert after((shelf["three a"],), runs, on=True) == tuple(runs)
    assert after((ALL,), runs, on=False) == (
        shelf["solo"],
        shelf["three b"],
        shelf["three c"],
        shelf["mix a"],
    )


def test_picks_of_what_is_not_there_stay(shelf, after):
    gone = (Pick.run(NAME, "0" * 12), Pick.workload(NAME, "0" * 12))
    assert after((*gone, shelf["solo"]), [shelf["solo"]], on=False) == gone


def test_more_picks_than_an_address_holds_are_refused(demo, source, shelf, after):
    runs = [demo.run(f"{number:03}", "n", 0.05, epochs=1) for number in range(MAX_PICKS + 1)]
    with demo.writer.transaction():
        for run in runs:
            demo.writer.put_run(record(demo, run))
    source._hold_until = 0.0
    source.revision()
    many = [Pick.run("many", run.run_id) for run in runs]
    assert len(after((), many[:-1], on=True)) == MAX_PICKS
    with pytest.raises(UsageError, match="got 501") as caught:
        after((), many, on=True)
    assert caught.value.remedy


def record(demo, run):
    """A run of a workload of many, without samples."""
    from radt.store.records import RunRecord, WorkloadRecord

    workload = WorkloadRecord("w" * 32, "many", "all", demo.now_ns)
    demo.writer.put_workload(workload)
    return RunRecord(
        run.run_id, workload.workload_id, "many", "all", run.letter, run.name, demo.now_ns
    )
