"""Runs within a run: several jobs of one script, each a run of its own in the store and MLflow."""

from __future__ import annotations

import os
import signal

import pytest

import radt
from radt.errors import UsageError
from radt.model import SOFTWARE, MarkerKind, RunStatus
from radt.store.records import RunRecord
from radt.usage import KERNEL
from tests.run.conftest import TIMEOUT_S, Alone
from tests.run.test_orphans import collector_of, sync
from tests.support.bench import wait_until
from tests.support.waiting import alive

BEGIN = "import os, radt, sys, threading\n"


def by_letter(alone: Alone) -> dict[str, RunRecord]:
    return {run.letter: run for run in alone.reader.runs()}


def names(alone: Alone, run: RunRecord) -> set[str]:
    return set(radt.load(run.run_id, home=alone.home).metric)


def listeners(alone: Alone, run: RunRecord) -> set[str]:
    return {series.listener for series in alone.reader.series([run.run_id])}


@pytest.mark.shared_collector
def test_each_child_is_a_run_and_the_hardware_is_its_parents(alone: Alone) -> None:
    _, err = alone.run(
        BEGIN + "with radt.Run('many', experiment='jobs', listeners='top@50ms') as run:\n"
        "    slow = run.child('slow')\n"
        "    with run.child('lenet', {'lr': 0.1}) as child:\n"
        "        for epoch in range(2):\n"
        "            with child.epoch(epoch, 2):\n"
        "                child.log_metric('loss', epoch + 0.5, epoch)\n"
        "            with child.span('validate'): child.log_metrics({'acc': 0.9}, step=epoch)\n"
        "        child.step(8, time_s=0.25); child.set_tag('kind', 'small')\n"
        "        child.log_text('a', 'a.txt')\n"
        "    try:\n"
        "        with run.child('broken'): raise ValueError('no data')\n"
        "    except ValueError: pass\n"
        "    with run.child('lenet') as again: again.log_metric('loss', 7.0)\n"
        "    refused = run.child('refused'); refused.finish(RuntimeError('too large'))\n"
        "    slow.log_metric('loss', 1.0); run.log_metric('total', 3.0)\n"
        "    run.child('left').log_metric('loss', 2.0)\n"
    )
    assert err == ""
    runs = by_letter(alone)
    assert {letter: run.status for letter, run in runs.items()} == {
        "a": RunStatus.FINISHED,
        "a.slow": RunStatus.FINISHED,
        "a.lenet": RunStatus.FINISHED,
        "a.lenet 2": RunStatus.FINISHED,
        "a.left": RunStatus.FINISHED,
        "a.broken": RunStatus.FAILED,
        "a.refused": RunStatus.FAILED,
    }
    parent = runs.pop("a")
    workload = alone.reader.workload(parent.workload_id)
    assert workload.status is RunStatus.FINISHED
    assert (workload.barrier_ns, workload.ended_ns) == (parent.started_ns, parent.ended_ns)
    assert runs["a.broken"].end_reason == "ValueError: no data"
    assert runs["a.refused"].end_reason == "RuntimeError: too large"
    for run in runs.values():
        assert (run.experiment, run.workload_id) == ("jobs", parent.workload_id)
        assert alone.reader.tags(run.run_id)["radt.parent"] == parent.run_id
        assert run.started_ns is not None
        assert run.ended_ns is not None
        assert parent.started_ns is not None
        assert parent.started_ns <= run.started_ns <= run.ended_ns <= (parent.ended_ns or 0)
        assert listeners(alone, run) <= {SOFTWARE, "steps"}
    assert runs["a.lenet"].ended_ns < runs["a.lenet 2"].started_ns  # type: ignore[operator]
    assert {SOFTWARE, KERNEL} <= listeners(alone, parent)
    assert {"total"} <= names(alone, parent)
    assert "loss" not in names(alone, parent)
    lenet = runs["a.lenet"].run_id
    assert alone.reader.params(lenet) == {"lr": "0.1"}
    assert alone.reader.tags(lenet)["kind"] == "small"
    frame = radt.load(lenet, home=alone.home)
    assert list(frame[frame.metric == "loss"].value) == [0.5, 1.5]
    assert list(frame[frame.metric == "loss"].step) == [0, 1]
    marks = alone.reader.markers([lenet])
    assert [(mark.kind, mark.step) for mark in marks if mark.kind is MarkerKind.EPOCH] == [
        (MarkerKind.EPOCH, 0),
        (MarkerKind.EPOCH, 1),
    ]
    assert [mark.name for mark in marks if mark.kind is MarkerKind.SPAN] == ["validate"] * 2
    assert all(mark.end_ns is not None for mark in marks)
    assert list(alone.home.rglob("a.txt"))
    assert not list(alone.home.glob("runs/*/run.json"))


@pytest.mark.shared_collector
@pytest.mark.long
def test_threads_train_children_at_once(alone: Alone) -> None:
    alone.run(
        BEGIN + "def train(number):\n"
        "    with run.child(f'job {number}') as child:\n"
        "        everybody.wait()\n"
        "        for step in range(500): child.log_metric('loss', number, step)\n"
        "everybody = threading.Barrier(8)\n"
        "with radt.Run() as run:\n"
        "    threads = [threading.Thread(target=train, args=(n,)) for n in range(8)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
    )
    runs = by_letter(alone)
    assert len(runs) == 9
    for number in range(8):
        run = runs[f"a.job {number}"]
        assert run.status is RunStatus.FINISHED
        frame = radt.load(run.run_id, home=alone.home)
        assert list(frame.step) == [*range(500)]
        assert set(frame.value) == {number}


def test_a_killed_script_leaves_no_child_running(alone: Alone) -> None:
    os.mkfifo(alone.folder / "end.pipe")
    process = alone.start(
        BEGIN + "with radt.Run() as run:\n"
        "    with run.child('done') as done: done.log_metric('loss', 1.0)\n"
        "    for name in ('first', 'second'): run.child(name).log_metric('loss', 0.5)\n"
        "    print(run.id, flush=True)\n"
        "    open('end.pipe').read()\n"
    )
    assert process.stdout is not None
    collector_of(alone, process.stdout.readline().strip())
    wait_until(lambda: len(alone.reader.runs()) == 4, "all of them are recorded")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)

    def over() -> bool:
        runs = alone.reader.runs()
        return len(runs) == 4 and all(run.status.ended for run in runs)

    wait_until(over, "all of them have ended")
    runs = by_letter(alone)
    assert runs.pop("a.done").status is RunStatus.FINISHED
    assert {run.status for run in runs.values()} == {RunStatus.KILLED}
    assert len({run.end_reason for run in runs.values()}) == 1
    assert names(alone, runs["a.second"]) == {"loss"}
    # What the kernel counted of the process until then is its parent's.
    assert listeners(alone, runs["a.second"]) == {SOFTWARE}
    assert KERNEL in listeners(alone, runs["a"])


@pytest.mark.long
def test_children_end_while_their_collector_is_dead(alone: Alone) -> None:
    os.mkfifo(alone.folder / "end.pipe")
    process = alone.start(
        BEGIN + "with radt.Run() as run:\n"
        "    child = run.child('open'); child.log_metric('loss', 1.0)\n"
        "    print(run.id, flush=True)\n"
        "    open('end.pipe').read()\n"
        "    child.log_metric('loss', 2.0); child.finish()\n"
        "    with run.child('later') as later: later.log_metric('loss', 3.0)\n"
        "    print('ended', flush=True)\n"
        "    open('end.pipe').read()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    held = collector_of(alone, run_id)
    wait_until(lambda: len(alone.reader.runs()) == 2, "the child is recorded")
    for pid in (held["guardian"], held["worker"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, held.values())), "the end of the collector")
    (alone.folder / "end.pipe").write_text("")
    assert process.stdout.readline() == "ended\n"
    (alone.folder / "end.pipe").write_text("")
    process.communicate(timeout=TIMEOUT_S)
    assert sync(alone).returncode == 0

    def over() -> bool:
        return all(run.status.ended for run in alone.reader.runs())

    wait_until(over, "all of them have ended")
    runs = by_letter(alone)
    assert {letter: run.status for letter, run in runs.items()} == {
        "a": RunStatus.KILLED,
        "a.open": RunStatus.FINISHED,
        "a.later": RunStatus.FINISHED,
    }
    opened = radt.load(runs["a.open"].run_id, home=alone.home)
    assert list(opened.value) == [1.0, 2.0]


@pytest.mark.shared_collector
@pytest.mark.long
def test_what_a_process_forks_ends_no_child(alone: Alone) -> None:
    alone.run(
        BEGIN + "with radt.Run() as run:\n"
        "    with run.child('job') as child:\n"
        "        child.log_metric('loss', 1.0)\n"
        "        pid = os.fork()\n"
        "        if pid == 0: child.log_metric('forked', 5.0)\n"
        "        if pid == 0: sys.exit(3)\n"
        "        os.waitpid(pid, 0)\n"
        "        child.log_metric('loss', 2.0)\n"
    )
    run = by_letter(alone)["a.job"]
    assert run.status is RunStatus.FINISHED
    frame = radt.load(run.run_id, home=alone.home)
    assert list(frame[frame.metric == "loss"].value) == [1.0, 2.0]
    assert list(frame[frame.metric == "forked"].value) == [5.0]


@pytest.mark.long
def test_a_child_whose_folder_cannot_be_written_leaves_nothing(alone: Alone) -> None:
    out, err = alone.run(
        BEGIN + "from radt.collector.manifest import Manifest\n"
        "def fail(self): raise OSError('No space left on device')\n"
        "with radt.Run('many') as run:\n"
        "    Manifest.write = fail\n"
        f"    runs = {str(alone.home / 'runs')!r}\n"
        "    (parent,) = os.listdir(runs)\n"
        "    for _ in range(3): run.child('a').log_metric('loss', 1.0)\n"
        "    open_files = {os.path.realpath(f'/proc/self/fd/{no}') for no in range(1000)}\n"
        "    there = [name for name in open_files if name.startswith(runs)]\n"
        "    print(os.listdir(runs) == [parent] and all(parent in name for name in there))\n"
    )
    assert "No space left on device. Training goes on" in err
    assert out.split()[-1] == "True"


def test_nothing_is_recorded_where_radt_is_off(alone: Alone) -> None:
    source = (
        BEGIN + "with radt.Run() as run:\n"
        "    with run.child('job') as child, child.epoch(1), child.span('x'):\n"
        "        child.log_metric('loss', 1.0); child.log_text('a', 'a.txt')\n"
        "    print([run.id, child.id, child.name])\n"
    )
    assert alone.run(source, RADT_MODE="off") == ("['', '', 'job']\n", "")
    assert not alone.home.exists()


def test_children_need_a_name_and_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    run = radt.Run()
    with pytest.raises(UsageError, match="empty"):
        run.child("")
    with pytest.raises(TypeError):
        run.child(3)  # type: ignore[arg-type]
    run.child("job").log_metric("loss", 1.0)
    assert "outside of `with radt.Run()`" in capsys.readouterr().err
