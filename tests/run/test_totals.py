"""Totals of a script on its own: what the kernel counted of it within its block."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

import radt
from radt.collector.client import CollectorClient
from radt.usage import KERNEL, LAST_READING
from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.waiting import alive, wait_until

#: What entering and leaving the block takes besides what is in it, in seconds, and in bytes.
AROUND_S, AROUND = 0.2, 20_000

WORK = """\
import json, os, resource, subprocess, sys, time
import radt

def counted():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return {
        "cpu_time_s": sum(one.ru_utime + one.ru_stime for one in both),
        "io_read_bytes": int(io["rchar"]),
        "io_written_bytes": int(io["wchar"]),
        "rss_peak_bytes": max(one.ru_maxrss for one in both) * 1024,
    }

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

if sys.argv[1:]:
    work(float(sys.argv[1]))
    sys.exit()
work(0.5)  # before the block
with radt.Run(listeners="top") as run:
    before = counted()
    block = b"x" * 100_000_000
    with open("data", "wb") as file:
        file.write(block)
    with open("data", "rb") as file:
        file.read()
    work(1)
    subprocess.run([sys.executable, __file__, "1"], check=True)
    after = counted()
print(run.id)
"""


def test_totals_of_a_script_are_those_of_its_block(alone: Alone) -> None:
    source = WORK.replace(
        "print(run.id)",
        "print(json.dumps({key: after[key] - before[key] for key in after}))\n"
        "print(after['rss_peak_bytes'])",
    )
    # To start a collector, again if it is slow to come, takes CPU time of the script's.
    with CollectorClient(timeout_s=TIMEOUT_S).reach():
        out, err = alone.run(source)
    assert err == ""
    (run,) = alone.reader.runs()
    totals = radt.totals(run.run_id, home=alone.home)
    grown, peak = map(json.loads, out.splitlines())
    assert grown["cpu_time_s"] >= 2
    for key in ("cpu_time_s", "io_read_bytes", "io_written_bytes"):
        around = AROUND_S if key == "cpu_time_s" else AROUND
        assert grown[key] <= totals[key] <= 1.005 * grown[key] + around, key
    assert peak <= totals["rss_peak_bytes"] <= 1.005 * peak + 10_000_000


def test_totals_survive_a_collector_that_was_killed(alone: Alone) -> None:
    os.mkfifo(alone.folder / "go.pipe")
    training = alone.start(
        "import radt, time\n"
        "with radt.Run() as run:\n"
        "    print(run.id, flush=True)\n"
        "    open('go.pipe').read()\n"
        "    end = time.process_time() + 1\n"
        "    while time.process_time() < end: pass\n"
    )
    assert training.stdout is not None
    run_id = training.stdout.readline().strip()
    with CollectorClient(timeout_s=TIMEOUT_S).reach() as client:
        # A script begins while its collector still starts.
        wait_until(lambda: run_id in client.status().runs, "the collector has the run")
        status = client.status()
    assert status.guardian_pid is not None
    for pid in (status.guardian_pid, status.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(status.pid), "the collector is gone")
    (alone.folder / "go.pipe").write_text("")
    training.communicate(timeout=TIMEOUT_S)
    alone.run("import radt\nwith radt.Run(): pass\n")

    def totals() -> dict[str, float]:
        return radt.totals(run_id, home=alone.home)

    wait_until(lambda: "cpu_time_s" in totals(), "the totals of the first run")
    assert 1 <= totals()["cpu_time_s"] < 1.9


@pytest.mark.long
def test_ranks_beside_each_other_are_one_run(alone: Alone) -> None:
    os.mkfifo(alone.folder / "both.pipe")
    source = (
        "import os, radt, time\n"
        "with radt.Run() as run:\n"
        "    open('both.pipe', 'w' if os.environ['RANK'] == '0' else 'r').close()\n"
        "    end = time.process_time() + 0.5\n"
        "    while time.process_time() < end: pass\n"
    )
    # To start a collector, again if it is slow to come, takes CPU time of the script's.
    with CollectorClient(timeout_s=TIMEOUT_S).reach():
        ranks = [
            alone.start(source, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
            for rank in range(2)
        ]
        for rank in ranks:
            _, err = rank.communicate(timeout=TIMEOUT_S)
            assert (rank.returncode, err) == (0, "")
    (run,) = alone.reader.runs()
    assert 1 <= radt.totals(run.run_id, home=alone.home)["cpu_time_s"] < 1.5


@pytest.mark.long
def test_of_a_killed_script_there_is_a_lower_bound(alone: Alone) -> None:
    """Marked as one wherever it goes: it is what the collector has read before the end."""
    os.mkfifo(alone.folder / "work.pipe")
    os.mkfifo(alone.folder / "end.pipe")
    training = alone.start(
        "import radt, time\n"
        "block = b'x' * 60_000_000\n"
        "with radt.Run(listeners='top') as run:\n"
        "    print(run.id, flush=True)\n"
        "    open('work.pipe').read()\n"
        "    end = time.process_time() + 2\n"
        "    while time.process_time() < end: pass\n"
        "    print('worked', flush=True)\n"
        "    open('end.pipe').read()\n"
    )
    assert training.stdout is not None
    run_id = training.stdout.readline().strip()

    def wait_for_samples(start_ns: int) -> None:
        """The collector reads the process's usage at most once a second, and stores samples."""

        def stored() -> bool:
            return any(
                alone.reader.samples(run_id, series.series_no, start_ns=start_ns).times_ns.size
                for series in alone.reader.series([run_id])
            )

        wait_until(stored, "the collector has stored samples")

    wait_for_samples(0)
    (alone.folder / "work.pipe").write_text("")
    assert training.stdout.readline() == "worked\n"
    wait_for_samples(time.time_ns() + 2_000_000_000)
    training.kill()
    training.wait()
    wait_until(lambda: alone.reader.run(run_id).status.ended, "its end is in the store")
    totals = radt.totals(run_id, home=alone.home)
    # The kernel counts in ticks of 10 ms.
    assert 1.9 < totals["cpu_time_s_at_least"] < 3.5
    assert totals["rss_peak_bytes_at_least"] > 60_000_000
    assert "io_written_bytes_at_least" in totals
    assert not {"cpu_time_s", "rss_peak_bytes", "io_written_bytes"} & totals.keys()
    kernel = [one for one in alone.reader.series([run_id]) if one.listener == KERNEL]
    assert {(one.estimated, one.method) for one in kernel} == {(True, LAST_READING)}
