"""What pages say of a real run is what `radt.load` says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import radt
from radt.frontend.charts.stacks import strip_figure
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.workload.devices import devices_of
from radt.frontend.data.workload.run_facts import RecordedMachine, gaps_of, tags_of
from radt.frontend.data.workload.stacks import stack_data
from radt.frontend.data.workload.strips import read_all
from radt.frontend.data.workload.subject import find_subject
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from tests.support.bench import Bench, bench_in

#: A burst of writing between two readings, and another one while nothing is read for more than a
#: second, as on a machine with too much to do: a gap.
_SCRIPT = """
import os, signal, time
from pathlib import Path
from radt.files import PidLock
from radt.store.reader import StoreReader
run_id = os.environ["RADT_RUN_ID"]
folder = Path(os.environ["RADT_RUNTIME_DIR"])
def is_read(since_ns):
    with StoreReader("radt-data/radt.db") as reader:
        return any(
            one.metric == "process.io.written"
            and (reader.samples(run_id, one.series_no).times_ns > since_ns).any()
            for one in reader.series([run_id])
        )
def wait_for_a_reading():
    since_ns = time.time_ns()
    while not is_read(since_ns):
        time.sleep(0.02)
def write():
    with open(os.devnull, "wb", buffering=0) as sink:
        for _ in range(20):
            sink.write(bytes(100_000))
wait_for_a_reading()
write()
wait_for_a_reading()
collector = [PidLock(folder / f"{name}.lock").holder() for name in ("guardian", "worker")]
for pid in collector:
    os.kill(pid, signal.SIGSTOP)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    pass
write()
for pid in collector:
    os.kill(pid, signal.SIGCONT)
wait_for_a_reading()
"""
_EXPERIMENT = """\
Experiment, Workload, Devices, Collocation, Listeners, File
facts     , 1       , cpu    , -          , iostat@200ms, train.py
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path, columns=80, with_mlflow=False, RADT_FLUSH_S="0.2") as made:
        yield made


def test_the_legend_of_a_counter_is_its_growth_over_the_runs_life(bench: Bench) -> None:
    bench.script("train.py", _SCRIPT)
    bench.radt(str(bench.experiment(_EXPERIMENT)))
    (writing,) = bench.reader.runs()
    samples = radt.load(writing.run_id, home=bench.home, metrics="process.io.written")
    growth_bytes = samples.value.iloc[-1] - samples.value.iloc[0]
    life_s = samples.elapsed_s.iloc[-1] - samples.elapsed_s.iloc[0]
    assert growth_bytes >= 4_000_000
    assert samples.elapsed_s.diff().max() > 1

    with closing(CachedStore(bench.home / "radt.db")) as source:
        subject = find_subject(source, View(workload=writing.workload_id))
        reading = read_all(source, subject)
        # A count of CPUs is no CPU's number: the run is pinned to none.
        machines = {writing.host: RecordedMachine()}
        (processor,) = devices_of(subject, tags_of(source, subject), machines, ()).processors
        assert (processor.cores, processor.pinned) == (len(os.sched_getaffinity(0)), {})
        strip = next(one for one in reading.strips if one.resource.key == "io-write")
        data = stack_data(
            source,
            subject,
            strip,
            gaps_of(source, subject.run_ids),
            window=reading.whole,
            zoomed=False,
            cores=2,
        )
    drawn = strip_figure(data, Scheme.LIGHT, 2)

    assert data.bands[0].runs[0].run_id == writing.run_id
    value, unit = drawn.readings[0].text.split()
    assert float(value) * {"MB/s": 1e6, "KB/s": 1e3}[unit] == pytest.approx(
        growth_bytes / life_s, rel=0.01
    )
