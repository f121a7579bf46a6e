"""What recording a run cost is recorded with it."""

from __future__ import annotations

import os
import signal
import textwrap

from collector_kit import Project, holder, wait_for

from radt.journal.format import RECORD_BYTES
from radt.tags import TRACKER_CPU_S, TRACKER_JOURNAL_BYTES

_VALUES = 300
_TRAINING = textwrap.dedent(
    f"""
    import sys, radt
    with radt.Run() as run:
        print("up", flush=True)
        sys.stdin.readline()
        for step in range({_VALUES}):
            run.log_metric("loss", 1.0, step=step)
        print("logged", flush=True)
        sys.stdin.read()
    """
)


def test_a_run_knows_what_recording_it_cost(project: Project) -> None:
    before_s = project.client.status().cpu_s
    run, _ = project.register("top")
    run.start(_TRAINING)
    run.process.stdin.write("\n")
    run.process.stdin.flush()
    assert run.process.stdout.readline() == "logged\n"
    wait_for(lambda: run.has("system.load", 5))
    run.finish()
    after_s = project.client.status().cpu_s
    tags = project.reader.tags(run.run_id)
    assert 0 < float(tags[TRACKER_CPU_S]) <= after_s - before_s
    written = int(tags[TRACKER_JOURNAL_BYTES])
    assert written >= _VALUES * RECORD_BYTES
    assert written < 2 * _VALUES * RECORD_BYTES, "what was prepared and not written is not in it"


def test_what_a_collector_that_died_used_is_not_made_up(project: Project) -> None:
    run = project.run()
    wait_for(lambda: run.has("system.load"))
    killed = holder("worker")
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    count = run.counts["system.load"]
    wait_for(lambda: run.has("system.load", count + 2), "another worker to go on")
    run.finish()
    assert TRACKER_CPU_S not in project.reader.tags(run.run_id)
    # The next run of the new worker knows again.
    other = project.run()
    wait_for(lambda: other.has("system.load"))
    other.finish()
    assert float(project.reader.tags(other.run_id)[TRACKER_CPU_S]) > 0
    # Neither logged anything: there is no journal.
    assert TRACKER_JOURNAL_BYTES not in project.reader.tags(other.run_id)
