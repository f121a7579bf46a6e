"""So many series that the store gets them every few turns: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from collector_kit import DEADLINE_S, Project, Run, alive, holder, wait_for

from radt.collector.client import CollectorClient
from radt.model import MissingReason
from tests.support.waiting import stands_still

_SERIES = 450
#: Its readings are numbered, also over restarts of the collector: all series have the same number.
_PLUGIN = """
from pathlib import Path
from radt.listeners.api import Availability, Listener, Metric, Reading
from radt.model import Scope

LOG = Path({log!r})

class Numbered(Listener):
    name = "numbered"

    @classmethod
    def probe(cls):
        return Availability(True)

    @classmethod
    def metrics(cls):
        return [Metric("number", "1", Scope.HOST)]

    def sample(self, targets):
        number = LOG.stat().st_size
        with LOG.open("a") as file: file.write("x")
        return [Reading("number", float(number), f"n{{one}}") for one in range({series})]
"""


class Numbers:
    """A run of the numbered listener."""

    def __init__(self, project: Project, log: Path) -> None:
        self.project = project
        self._log = log
        self.run: Run = project.run("numbered")

    @property
    def read(self) -> int:
        """How often the listener has read."""
        return self._log.stat().st_size

    def reads_on(self, more: int = 20) -> None:
        before = self.read
        wait_for(lambda: self.read >= before + more, "more readings")

    def stored(self) -> list[int]:
        """The readings that the store has; each is whole."""
        series = self.project.reader.series([self.run.run_id])
        if not series:
            return []
        reader, counts = self.project.reader, None
        while counts != (counts := reader.point_counts(self.run.run_id)):  # not while it is written
            found = [reader.samples(one.run_id, one.series_no) for one in series]
        assert len({one.entity for one in series}) == len(series) == _SERIES
        for one in found:
            assert np.array_equal(one.values, found[0].values)
            assert np.array_equal(one.times_ns, found[0].times_ns)
        return [int(value) for value in found[0].values]


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Numbers]:
    site, log = tmp_path / "site", tmp_path / "readings"
    info = site / "numbered-1.0.dist-info"
    info.mkdir(parents=True)
    log.touch()
    (site / "numbered.py").write_text(_PLUGIN.format(log=str(log), series=_SERIES))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numbered\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[radt.listeners]\nnumbered = numbered:Numbered\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.setenv("RADT_FLUSH_S", "0.2")
    client = CollectorClient(timeout_s=DEADLINE_S).reach()
    project = Project(tmp_path / "radt-data", client)
    numbers = Numbers(project, log)
    wait_for(lambda: project.reader.point_counts(numbers.run.run_id), "readings in the store")
    yield numbers
    project.close()
    client.close()


def _all_is_there(numbers: Numbers, lost: int = 0) -> None:
    stored, ledger = numbers.stored(), numbers.run.ledger["numbered"]
    assert len(set(stored)) == len(stored) == ledger.received == numbers.read - lost
    assert ledger.expected == ledger.received + ledger.missed


def test_at_the_end_of_a_run_what_waits_is_written(numbers: Numbers) -> None:
    numbers.reads_on()
    numbers.run.finish()
    _all_is_there(numbers)


@contextmanager
def _full_disk(numbers: Numbers) -> Iterator[None]:
    """As long as it lasts, the kernel refuses to let the worker's files grow."""
    worker = holder("worker")
    assert worker is not None
    limits = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    # Less than the store's files need for one turn, more than the readings' log ever has.
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
    wait_for(lambda: numbers.project.client.status().problems, "it cannot write")
    yield
    resource.prlimit(worker, resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_in_between(numbers: Numbers) -> None:
    with _full_disk(numbers):
        numbers.reads_on()
    wait_for(lambda: not numbers.project.client.status().problems, "it can again")
    numbers.reads_on()
    numbers.run.finish()
    _all_is_there(numbers)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("disk", ["free", "was-full"])
def test_a_collector_that_is_told_to_stop_writes_what_waits(numbers: Numbers, disk: str) -> None:
    worker = holder("worker")
    assert worker is not None
    with _full_disk(numbers) if disk == "was-full" else nullcontext():
        numbers.reads_on()
    os.kill(worker, signal.SIGTERM)
    wait_for(lambda: not alive(worker), "its end")
    assert numbers.stored() == list(range(numbers.read))
    numbers.project.client.status()  # starts the next one
    numbers.reads_on()
    numbers.run.finish()
    _all_is_there(numbers)


def _stopped_with_readings(numbers: Numbers, worker: int) -> bool:
    """Stop the collector for good if the store lacks readings now."""
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: stands_still(worker), "it to stop")
    if numbers.read > len(numbers.stored()):
        return True
    os.kill(worker, signal.SIGCONT)
    return False


def test_a_killed_collector_loses_what_waited_and_says_so(numbers: Numbers) -> None:
    numbers.reads_on()
    worker = holder("worker")
    assert worker is not None
    wait_for(lambda: _stopped_with_readings(numbers, worker), "readings that wait")
    before = len(numbers.stored())
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not alive(worker), "its end")
    numbers.reads_on()  # of the next collector
    numbers.run.finish()
    stored = numbers.stored()
    kept = next((at for at, number in enumerate(stored) if number != at), len(stored))
    lost = numbers.read - len(stored)
    assert stored == [*range(kept), *range(kept + lost, numbers.read)]
    assert kept >= before
    _all_is_there(numbers, lost)
    assert numbers.run.ledger["numbered"].missed >= lost
    run_id = numbers.run.run_id
    gaps = numbers.project.reader.gaps([run_id])
    (gap,) = [one for one in gaps if "restarted" in one.detail]
    assert gap.reason is MissingReason.LOST
    times_ns = numbers.run.times_ns("number")
    assert gap.start_ns == times_ns[kept - 1]
    assert gap.end_ns <= times_ns[kept]
