"""What the observers cost: CPU time and memory of the collector with eight idle runs.

    python benchmarks/observers.py [--runs 8] [--seconds 60]

Each run is a real process with a child, registered as the runner does, with the default listeners
at 1 Hz. Prints the collector's CPU time (worker and guardian) as a share of one core and its
resident memory. Uses a data and a runtime folder of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

_IDLE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("up", flush=True)
child.wait()
"""


def measure(runs: int, seconds: float, folder: Path) -> None:
    """Record idle runs for a while and print what that cost."""
    from radt.clock import Clock
    from radt.collector.client import CollectorClient
    from radt.collector.protocol import Registration
    from radt.home import Home
    from radt.model import ListenerChoice, RunStatus
    from radt.store.reader import StoreReader
    from radt.store.records import RunRecord
    from radt.store.writer import StoreWriter

    home = Home(folder).create()
    listeners = (ListenerChoice("top"), ListenerChoice("smi"))
    run_ids = [uuid.uuid4().hex for _ in range(runs)]
    processes = []
    with StoreWriter(home.store_path) as writer, CollectorClient.connect() as client:
        for run_id in run_ids:
            spool = str(home.run_dir(run_id).create().path)
            now_ns = Clock.for_machine().now_ns()
            writer.put_run(RunRecord(run_id, run_ids[0], "e", "1", "a", "", now_ns, spool=spool))
            warnings = client.register(
                Registration(run_id, str(home.store_path), spool, listeners=listeners)
            )
            process = subprocess.Popen(
                [sys.executable, "-c", _IDLE],
                env=os.environ | {"RADT_RUN_ID": run_id},
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None
            process.stdout.readline()
            client.started(run_id, process.pid, time.monotonic_ns())
            processes.append(process)
        time.sleep(3)  # what starting costs is not what observing costs
        before, before_s = client.status(), time.monotonic()
        time.sleep(seconds)
        after, took_s = client.status(), time.monotonic() - before_s
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for run_id in run_ids:
            client.finish(run_id, RunStatus.KILLED)
        with StoreReader(home.store_path) as reader:
            ledger = [row for row in reader.ledger(run_ids) if row.listener == "top"]
    for warning in warnings:
        print(warning)
    cpu = (after.cpu_s - before.cpu_s) / took_s
    missed, expected = (
        sum(getattr(row, name) for row in ledger) for name in ("missed", "expected")
    )
    print(f"{runs} runs, listeners {'+'.join(after.listeners)}, {took_s:.0f} s")
    print(f"CPU      {cpu:7.2%} of one core    (bar: 2 %)")
    print(f"memory   {after.rss_bytes / 1e6:7.1f} MB             (bar: 150 MB)")
    print(f"readings {expected - missed:7d}, missed {missed}")


def main() -> None:
    """Measure with folders that are gone afterwards."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="radt-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="radt-") as runtime,
    ):
        os.environ["RADT_RUNTIME_DIR"] = runtime
        os.environ["RADT_COLLECTOR_IDLE_S"] = "1"
        measure(arguments.runs, arguments.seconds, Path(folder) / "data")


if __name__ == "__main__":
    main()
