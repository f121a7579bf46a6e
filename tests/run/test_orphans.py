"""Scripts whose collector is not there, stopped or killed: whoever comes later records them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import radt
from radt.collector.ledger import DAMAGE_REASON
from radt.collector.runs import NO_REPORT
from radt.files import PidLock
from radt.journal.format import BLOCK_BYTES, BLOCK_SLOTS, HEAD_BYTES, SEGMENT_SLOTS
from radt.model import SOFTWARE, RunStatus
from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.bench import has_store, wait_until
from tests.support.waiting import alive, stands_still

WAITING = (
    "import os, radt, sys\n"
    "with radt.Run('told', experiment='digits', params={'lr': 0.1}, tags=None) as run:\n"
    "    for step in range(20_000): run.log_metric('loss', step / 2, step)\n"
    "    print(run.id, flush=True)\n"
    "    open('end.pipe').read()\n"
    "    run.log_metric('last', 1.0)\n"
).replace(", tags=None", "")


def pids(alone: Alone) -> dict[str, int]:
    """The collector's processes that live."""
    folder = Path(alone.env["RADT_RUNTIME_DIR"])
    holders = {
        name: PidLock(folder / f"{name}.lock").holder()
        for name in ("guardian", "worker")
        if (folder / f"{name}.lock").exists()
    }
    return {name: pid for name, pid in holders.items() if pid is not None}


def sync(alone: Alone, *arguments: str) -> subprocess.CompletedProcess[str]:
    return radt_of(alone, "sync", *arguments)


def radt_of(alone: Alone, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radt", *arguments],
        env=alone.env,
        cwd=alone.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def begun(alone: Alone, **env: str) -> tuple[subprocess.Popen[str], str]:
    """A script that has logged its values and waits, and its run."""
    if not (alone.folder / "end.pipe").exists():
        os.mkfifo(alone.folder / "end.pipe")
    process = alone.start(WAITING, **env)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    assert run_id, process.communicate()
    return process, run_id


def collector_of(alone: Alone, run_id: str) -> dict[str, int]:
    """The collector's processes; a script on a busy machine does not wait until it has the run."""
    wait_until(
        lambda: (
            len(pids(alone)) == 2
            and (alone.home / "radt.db").exists()
            and any(run.run_id == run_id and run.pid for run in alone.reader.runs())
        ),
        "the collector has the run",
    )
    return pids(alone)


def stops_between_writes(alone: Alone, worker: int) -> bool:
    """Stop a collector, but not where nobody else could write to the store meanwhile."""
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: stands_still(worker), "it is stopped")
    with closing(sqlite3.connect(alone.home / "radt.db", timeout=0)) as store:
        try:
            store.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            os.kill(worker, signal.SIGCONT)
            return False
    return True


@contextmanager
def stopped_collector(alone: Alone, run_id: str) -> Iterator[None]:
    """Neither the run's collector moves meanwhile, nor its guardian, which would replace it."""
    held = collector_of(alone, run_id)
    os.kill(held["guardian"], signal.SIGSTOP)
    wait_until(lambda: stops_between_writes(alone, held["worker"]), "it stands still")
    try:
        yield
    finally:
        for name in ("worker", "guardian"):
            os.kill(held[name], signal.SIGCONT)


def let_end(alone: Alone, process: subprocess.Popen[str]) -> str:
    (alone.folder / "end.pipe").write_text("")
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return err


def journals(alone: Alone) -> list[Path]:
    return list(alone.home.glob("runs/*/journal/*-*"))


def check_whole(alone: Alone, run_id: str, status: RunStatus = RunStatus.FINISHED) -> None:
    (run,) = [run for run in alone.reader.runs() if run.run_id == run_id]
    assert (run.status, run.name, run.experiment) == (status, "told", "digits")
    assert run.started_ns is not None
    assert run.pid in {process.pid for process in alone.started}
    assert alone.reader.params(run_id)["lr"] == "0.1"
    frame = radt.load(run_id, home=alone.home)
    assert list(frame[frame.metric == "loss"].step) == [*range(20_000)]
    assert sum(frame.metric == "last") == (0 if status is RunStatus.KILLED else 1)
    assert not list((alone.home / "runs" / run_id).glob("journal/*-*"))
    assert not (alone.home / "runs" / run_id / "run.json").exists()


def ended(alone: Alone, run_id: str) -> Callable[[], bool]:
    """Whether a run has ended and everything of it is in the store."""
    return lambda: (
        any(run.run_id == run_id and run.status.ended for run in alone.reader.runs())
        and not (alone.home / "runs" / run_id / "run.json").exists()
    )


def test_all_that_is_killed_at_once_is_recorded_by_sync(alone: Alone) -> None:
    process, run_id = begun(alone, RADT_FLUSH_S="3600")
    described = json.loads((alone.home / "runs" / run_id / "run.json").read_text())
    assert described["run"]["experiment"] == "digits"
    assert (alone.home / "runs" / run_id / "run.json").stat().st_mode & 0o777 == 0o600
    held = collector_of(alone, run_id)
    for pid in (held["guardian"], held["worker"], process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(map(alive, held.values())), "the end of the collector")
    done = sync(alone)
    assert done.returncode == 0, done.stdout + done.stderr
    check_whole(alone, run_id, RunStatus.KILLED)
    assert sync(alone).returncode == 0
    check_whole(alone, run_id, RunStatus.KILLED)


@pytest.mark.long
def test_a_lost_runtime_folder_loses_no_run(alone: Alone) -> None:
    process, run_id = begun(alone)
    held = collector_of(alone, run_id)
    for pid in (held["guardian"], held["worker"], process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not any(map(alive, held.values())), "the end of the collector")
    alone.env["RADT_RUNTIME_DIR"] = str(alone.folder / "new")
    done = sync(alone)
    assert done.returncode == 0, done.stdout + done.stderr
    check_whole(alone, run_id, RunStatus.KILLED)
    (run,) = alone.reader.runs()
    assert run.end_reason == NO_REPORT


def test_a_collector_that_is_stopped_holds_up_no_script_and_records_it_later(alone: Alone) -> None:
    first, first_id = begun(alone)
    with stopped_collector(alone, first_id):
        second, second_id = begun(alone, RADT_COLLECTOR_PATIENCE_S="0.2")
        first.kill()
        first.communicate()
        err = let_end(alone, second)
        left = sync(alone, "--timeout", "2")
        assert left.returncode == 1, left.stdout + left.stderr
        assert f"{first_id[:12]}: held by a collector" in left.stdout
        check_whole(alone, second_id)
    assert err.count("the run is not recorded yet") == 1
    assert err.count("\n") == 1
    wait_until(ended(alone, first_id), "the first run has ended")
    check_whole(alone, first_id, RunStatus.KILLED)
    check_whole(alone, second_id)


#: Stops the collector at one point of a script's life, and says how long the script waited from
#: then on: before, it may be patient with a collector that is only slow.
STOPPED = """\
import os, radt, signal, socket, sys, time
from pathlib import Path
from radt.collector import client
from radt.collector.start import worker_lock

pid = worker_lock().holder()
stops = sys.argv[1]
exchange = client.CollectorClient._exchange

def stopping(self, op, arguments, timeout_s):
    answer = exchange(self, op, arguments, timeout_s)
    if op == stops:
        os.kill(pid, signal.SIGSTOP)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            pass
        self.deadline_s = time.monotonic() + 0.5
        os.environ["RADT_COLLECTOR_PATIENCE_S"] = "0.5"
        waited.clear()
    return answer

def waits(self, seconds):
    waited.append(seconds)
    settimeout(self, seconds)

waited = []
settimeout = socket.socket.settimeout
socket.socket.settimeout = waits
client.CollectorClient._exchange = stopping
with radt.Run('told', experiment='digits', params={'lr': 0.1}) as run:
    for step in range(20_000): run.log_metric('loss', step / 2, step)
    print(run.id, flush=True)
    run.log_metric('last', 1.0)
print(max(waited))
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("stops", ["hello", "begin"])
def test_a_collector_that_is_stopped_midway_holds_up_no_script(alone: Alone, stops: str) -> None:
    first, first_id = begun(alone)
    worker = collector_of(alone, first_id)["worker"]
    try:
        out, err = alone.run(STOPPED, stops)
        run_id, longest_s = out.split()
        assert float(longest_s) <= 0.5, "no wait is longer, of begin and of end"
        assert err.count("recorded yet") == 1
        assert err.count("\n") == 1
        assert "is stopped" in err or "does not answer" in err
        assert Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        assert (alone.home / "runs" / run_id / "run.json").exists()
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_until(ended(alone, run_id), "it is recorded")
    check_whole(alone, run_id)
    let_end(alone, first)
    check_whole(alone, first_id)


def test_commands_beside_a_stopped_collector_say_so(alone: Alone) -> None:
    first, first_id = begun(alone)
    worker = collector_of(alone, first_id)["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        told = radt_of(alone, "doctor")
    finally:
        os.kill(worker, signal.SIGCONT)
    assert told.returncode == 1
    text = " ".join(told.stdout.split())
    assert f"pid {worker} is running but does not answer" in text
    assert "journals 1 run with values that are not in the store yet" in text
    let_end(alone, first)


@pytest.mark.long
def test_a_live_script_is_taken_up_by_the_collector_that_goes_on(alone: Alone) -> None:
    first, first_id = begun(alone)
    with stopped_collector(alone, first_id):
        second, second_id = begun(alone, RADT_COLLECTOR_PATIENCE_S="0.2")
    wait_until(
        lambda: (
            any(run.run_id == second_id for run in alone.reader.runs())
            and "process.memory.rss" in set(radt.load(second_id, home=alone.home).metric)
        ),
        "it is recorded while it lives",
    )
    first.kill()
    first.communicate()
    let_end(alone, second)
    wait_until(ended(alone, second_id), "the second run is recorded")
    wait_until(ended(alone, first_id), "the first run has ended")
    check_whole(alone, second_id)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("by", ["next run", "sync"])
def test_a_script_without_a_collector_is_recorded_later(alone: Alone, by: str) -> None:
    public = alone.folder / "public"
    public.mkdir(mode=0o777)
    public.chmod(0o777)
    process, run_id = begun(alone, RADT_RUNTIME_DIR=str(public))
    err = let_end(alone, process)
    assert "is not private to you" in err
    assert len(journals(alone)) == 1
    assert not has_store(alone.home)
    if by == "sync":
        done = sync(alone)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        other, _ = begun(alone)
        wait_until(ended(alone, run_id), "it is recorded")
        let_end(alone, other)
    check_whole(alone, run_id)


def test_sync_says_what_stays(alone: Alone) -> None:
    alone.run("import radt\nwith radt.Run() as run: run.log_metric('loss', 1)\n")
    (run,) = alone.reader.runs()
    wait_until(ended(alone, run.run_id), "the end of the run is recorded")
    nobody = alone.home / "runs" / ("7" * 32)
    (nobody / "journal" / "1-abc").mkdir(parents=True)
    left = sync(alone)
    assert left.returncode == 1
    assert f"{nobody.name[:12]}: not in the store" in left.stdout
    (nobody / "run.json").write_text("{")
    left = sync(alone)
    assert left.returncode == 1
    assert "run.json cannot be read" in left.stdout
    assert alone.reader.run(run.run_id).status is RunStatus.FINISHED


@pytest.mark.long
@pytest.mark.mlflow
def test_sync_does_not_wait_for_uploads_that_give_way_to_runs(alone: Alone) -> None:
    alone.env |= {"RADT_UPLOAD_WAIT_S": "3600", "RADT_COLLECTOR_IDLE_S": "3600"}
    short = "import radt\nwith radt.Run() as run: run.log_metric('loss', 1)\n"
    alone.run(short)
    # The collector's process for MLflow is up from here on, and nothing else uploads beside it.
    wait_until(lambda: alone.reader.runs()[0].mlflow_run_id, "MLflow has the first run")
    long, _ = begun(alone)
    alone.run(short)
    done = sync(alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✔  MLflow" in done.stdout
    assert all(run.mlflow_run_id for run in alone.reader.runs() if run.status.ended)
    let_end(alone, long)


@pytest.mark.long
def test_a_run_that_nothing_can_be_written_of_leaves_no_journal(alone: Alone) -> None:
    public = alone.folder / "public"
    public.mkdir(mode=0o777)
    public.chmod(0o777)
    source = (
        "import radt\n"
        "from radt.collector.manifest import Manifest\n"
        "def no_room(self): raise OSError(28, 'No space left on device')\n"
        "Manifest.write = no_room\n"
        "with radt.Run() as run: run.log_metric('loss', 1)\n"
    )
    _, err = alone.run(source, RADT_RUNTIME_DIR=str(public))
    assert err.count("\n") == 1
    assert "No space left on device" in err
    assert not journals(alone)


def test_a_runtime_folder_with_a_path_of_any_length(alone: Alone) -> None:
    alone.env["RADT_RUNTIME_DIR"] = str(alone.folder / ("long-" * 40))
    process, run_id = begun(alone)
    assert set(collector_of(alone, run_id)) == {"guardian", "worker"}
    let_end(alone, process)
    wait_until(ended(alone, run_id), "its end is recorded")
    check_whole(alone, run_id)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("by_collector", [False, True])
def test_a_damaged_journal_costs_its_block_and_is_named(alone: Alone, by_collector: bool) -> None:
    alone.run("import radt\nwith radt.Run() as run: run.log_metric('loss', 1)\n")
    public = alone.folder / "public"
    public.mkdir(mode=0o777)
    public.chmod(0o777)
    process, run_id = begun(alone, RADT_RUNTIME_DIR=str(public))
    let_end(alone, process)
    (journal,) = journals(alone)
    segment = journal / "segment-000001.bin"
    content = bytearray(segment.read_bytes())
    content[HEAD_BYTES + 3 * BLOCK_BYTES + 100] ^= 4
    segment.write_bytes(content)
    lost = range(SEGMENT_SLOTS + 3 * BLOCK_SLOTS, SEGMENT_SLOTS + 4 * BLOCK_SLOTS)
    if by_collector:
        other, _ = begun(alone)
        wait_until(ended(alone, run_id), "it is recorded")
        let_end(alone, other)
    named = f"{run_id[:12]}: 128 logged values missing: {DAMAGE_REASON}; damaged files are in "
    for _ in range(2):
        done = sync(alone)
        assert done.returncode == 0, done.stdout + done.stderr
        assert named + str(alone.home / "runs" / run_id / "damaged") in done.stdout
    frame = radt.load(run_id, home=alone.home)
    steps = [int(step) for step in frame[frame.metric == "loss"].step]
    assert steps == [step for step in range(20_000) if step not in lost]
    (row,) = [row for row in alone.reader.ledger([run_id]) if row.listener == SOFTWARE]
    assert (row.expected, row.received, row.missed) == (20_001, 20_001 - 128, 128)
    wait_until(lambda: not journals(alone), "the other runs are recorded")
    checked = radt_of(alone, "db", "check", "--no-mlflow", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (note,) = json.loads(checked.stdout)["stores"][0]["notes"]
    assert note.startswith(f"run {run_id}: 128 logged values missing: {DAMAGE_REASON}; ")
    shutil.rmtree(alone.home / "runs" / run_id / "damaged")
    assert run_id[:12] not in sync(alone).stdout, "whoever removes them knows"


@pytest.mark.long
def test_sync_gives_up_on_a_server_that_never_answers(alone: Alone) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alone.env["RADT_TRACKING_URI"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        alone.run("import radt\nwith radt.Run() as run: run.log_metric('loss', 1.0)\n")
        left = sync(alone, "--timeout", "3")
    assert left.returncode == 1, left.stdout + left.stderr
    assert "1 run" in left.stdout


@pytest.mark.long
def test_many_scripts_at_once_beside_a_stopped_collector_are_all_recorded(alone: Alone) -> None:
    first, first_id = begun(alone)
    with stopped_collector(alone, first_id):
        scripts = [
            alone.start(
                "import radt, sys\n"
                "with radt.Run('many', experiment='many') as run:\n"
                "    for step in range(1000): run.log_metric('loss', step, step)\n",
                RADT_COLLECTOR_PATIENCE_S="0.2",
            )
            for _ in range(16)
        ]
        for script in scripts:
            assert script.wait(TIMEOUT_S) == 0
    let_end(alone, first)
    wait_until(
        lambda: (
            [run.status for run in alone.reader.runs() if run.experiment == "many"]
            == [RunStatus.FINISHED] * 16
        ),
        "all runs are recorded",
    )
    for run in alone.reader.runs():
        if run.experiment == "many":
            assert len(radt.load(run.run_id, home=alone.home, metrics="loss")) == 1000
