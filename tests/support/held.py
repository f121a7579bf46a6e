"""Runs under the real runner that wait until the test lets them go, and what was read of them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

from radt.collector.start import worker_lock
from radt.store.records import GapRecord, RunRecord, Samples, SeriesRecord
from tests.support.bench import Bench, alive, has_store, wait_until

#: Says who it is, and waits for the test.
_SCRIPT = """
import os, pathlib
here = pathlib.Path(__file__).parent
(here / "new").mkdir(exist_ok=True)
new = here / "new" / str(os.getpid())
new.write_text(os.environ["RADT_RUN_ID"])
new.rename(here / f"{os.getpid()}.up")
open(here / "gate").read()
"""


@dataclass
class Held:
    """The rows of one experiment file, all at once."""

    bench: Bench
    runner: subprocess.Popen[str] = field(init=False)
    #: Process ids by letter.
    pids: dict[str, int] = field(default_factory=dict)

    def start(self, head: str, *rows: str, options: tuple[str, ...] = ()) -> None:
        """Start rows of one workload, and return when all are running."""
        self.bench.script("held.py", _SCRIPT)
        self.bench.signal_ready("gate")
        text = "\n".join((f"Workload,{head},File", *(f"1,{row},held.py" for row in rows))) + "\n"
        path = self.bench.experiment(text)
        self.runner = self.bench.start(path.name, "--yes", *options)
        wait_until(lambda: len(self._up()) == len(rows) or self._over(), "all rows run")
        wait_until(
            lambda: set(self._up().values()) <= self._letters().keys(), "all rows are recorded"
        )
        letters = self._letters()
        self.pids = {letters[run_id]: pid for pid, run_id in self._up().items()}

    def _letters(self) -> dict[str, str]:
        if not has_store(self.bench.home):
            return {}
        return {run.run_id: run.letter for run in self.bench.reader.runs()}

    def _up(self) -> dict[int, str]:
        return {int(path.stem): path.read_text() for path in self.bench.folder.glob("*.up")}

    def _over(self) -> bool:
        assert self.runner.poll() is None, self.runner.communicate()
        return False

    def end(self) -> str:
        """Let them go, and return what the runner has said."""
        gate = self.bench.folder / "gate"
        with suppress(OSError):  # nobody waits just now
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
        gate.unlink()
        gate.touch()
        said, _ = self.runner.communicate(timeout=180)
        assert self.runner.returncode == 0, said
        return said

    # What was read ---------------------------------------------------------------------------

    def run(self, letter: str) -> RunRecord:
        (found,) = [run for run in self.bench.reader.runs() if run.letter == letter]
        return found

    def series(self, letter: str, metric: str = "") -> list[SeriesRecord]:
        found = self.bench.reader.series([self.run(letter).run_id])
        return [one for one in found if metric in ("", one.metric)]

    def samples(self, letter: str, metric: str) -> Samples:
        """All of a metric that the run has one series of."""
        (series,) = self.series(letter, metric)
        return self.bench.reader.samples(series.run_id, series.series_no)

    def count(self, letter: str, metric: str) -> int:
        return len(self.samples(letter, metric)) if self.series(letter, metric) else 0

    def last(self, letter: str, metric: str) -> float | None:
        """The newest value that the store has."""
        if not self.series(letter, metric) or not len(found := self.samples(letter, metric)):
            return None
        return float(found.values[-1])

    def gaps(self, letter: str, metric: str) -> list[GapRecord]:
        numbers = {one.series_no for one in self.series(letter, metric)}
        found = self.bench.reader.gaps([self.run(letter).run_id])
        return [gap for gap in found if gap.series_no in numbers]

    def outages(self, letter: str, listener: str) -> list[GapRecord]:
        """Gaps of a whole listener."""
        found = self.bench.reader.gaps([self.run(letter).run_id])
        return [gap for gap in found if gap.series_no == -1 and gap.listener == listener]

    def goes_on(self, letter: str, metric: str, more: int = 3) -> None:
        """Return when there are more samples than now."""
        before = self.count(letter, metric)
        wait_until(lambda: self.count(letter, metric) >= before + more, f"more of {metric}")


def kill_worker() -> None:
    """SIGKILL the collector's worker and return when another one works."""
    lock = worker_lock()
    killed = lock.holder()
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not alive(killed), "its end")
    wait_until(lambda: lock.holder() not in (None, killed), "the next one")
    lock.close()
