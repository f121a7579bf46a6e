"""64 runs at once: one collector, one store."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from radt.model import MarkerKind, RunStatus
from tests.collector.collector_kit import Project, Run, holder, wait_for
from tests.support.power import check_store

RUNS = 64
EPOCHS = 5
STEPS = 200
#: What the worker may take: about 60 MB with one run, and a little for each.
MOST_BYTES = 200 * 2**20

#: A cheap script: forks two runs' worth of nothing, and logs.
CHEAP = f"""\
import sys
from radt.journal.format import RecordKind
from radt.journal.writer import JournalWriter
writer = JournalWriter(sys.argv[1], rank=None, warn=print)
print("up", flush=True)
sys.stdin.readline()
step = 0
for epoch in range({EPOCHS}):
    token = writer.begin(RecordKind.EPOCH_BEGIN, "epoch", epoch)
    for _ in range({STEPS}):
        writer.scalar("loss", step * int(sys.argv[2]), step)
        writer.scalar("accuracy", step / 7, step)
        step += 1
    writer.end(RecordKind.EPOCH_END, "epoch", epoch, token)
writer.close()
sys.stdin.readline()
"""


@pytest.mark.long
def test_64_runs_at_once(project: Project, capsys) -> None:
    runs: list[Run] = []
    for number in range(RUNS):
        run, warnings = project.register("top", "ps", interval_s=0.5)
        assert not warnings
        run.start(CHEAP, str(Path(run.registration.spool) / "journal"), str(number))
        runs.append(run)
    for run in runs:
        _say(run)
    wait_for(
        lambda: all(run.counts["loss"] == EPOCHS * STEPS for run in runs), "all is in the store"
    )
    wait_for(lambda: all(run.ledger["ps"].received >= 3 for run in runs), "all are sampled")
    worker = holder("worker")
    assert worker is not None
    rss_bytes = psutil.Process(worker).memory_info().rss
    with capsys.disabled():
        print(f" [worker with {RUNS} runs: {rss_bytes / 2**20:.0f} MiB]", end="")
    assert rss_bytes < MOST_BYTES
    for run in runs:
        run.finish(timeout_s=180)
    for number, run in enumerate(runs):
        assert run.row.status is RunStatus.FINISHED
        values = {}
        for series in project.reader.series([run.run_id]):
            values[series.metric] = project.reader.samples(run.run_id, series.series_no).values
        assert list(values["loss"]) == [step * number for step in range(EPOCHS * STEPS)]
        assert len(values["accuracy"]) == EPOCHS * STEPS
        assert values["system.load"].size == run.ledger["top"].received > 0
        markers = project.reader.markers([run.run_id])
        epochs = [one for one in markers if one.kind is MarkerKind.EPOCH]
        assert [one.step for one in epochs] == list(range(EPOCHS))
        for ledger in run.ledger.values():
            assert ledger.expected == ledger.received + ledger.missed
            assert ledger.state == "ended"
    check_store(project.home.store_path)
    assert len(project.reader.runs()) == RUNS


def _say(run: Run) -> None:
    assert run.process is not None
    assert run.process.stdin is not None
    run.process.stdin.write("\n")
    run.process.stdin.flush()
