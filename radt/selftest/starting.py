"""How runs start: what ``import radt`` takes, and workloads of eight rows at their barrier."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from dataclasses import dataclass

from radt.errors import LaunchError
from radt.selftest.shelter import Shelter
from radt.store.reader import StoreReader

ROWS = 8
WORKLOADS = 3
_IMPORTS = 9
_SCRIPT_S = 0.2
_EXPERIMENT = "starts"


@dataclass(frozen=True, slots=True)
class Starts:
    """Workloads that were started, one after the other.

    ``skews_s`` is from the first to the last row at each barrier; ``betweens_s`` from the end of
    one workload's rows to the start of the next one's.
    """

    skews_s: tuple[float, ...]
    betweens_s: tuple[float, ...]


def import_s(shelter: Shelter) -> float:
    """Median of what ``import radt`` adds to bare Python, over pairs of processes.

    Raises:
        LaunchError: It cannot be imported.
    """
    programs = ("pass", "import radt")
    added = []
    for number in range(_IMPORTS + 1):
        order = programs if number % 2 else programs[::-1]
        taken_s = {}
        for program in order:
            begun_s = time.perf_counter()
            shelter.run([sys.executable, "-P", "-c", program])
            taken_s[program] = time.perf_counter() - begun_s
        if number:  # the first pair reads modules from the disk
            added.append(taken_s["import radt"] - taken_s["pass"])
    return statistics.median(added)


def start_workloads(shelter: Shelter) -> Starts:
    """Have the runner run them.

    Raises:
        LaunchError: It failed.
    """
    folder = shelter.home.path
    (folder / "row.py").write_text(f"import time\ntime.sleep({_SCRIPT_S})\n", encoding="utf-8")
    lines = [
        f"{_EXPERIMENT},{workload},row,cpu,none,row.py"
        for workload in range(1, WORKLOADS + 1)
        for _ in range(ROWS)
    ]
    file = folder / f"{_EXPERIMENT}.csv"
    header = "Experiment,Workload,Name,Devices,Listeners,File,Status,Run"
    file.write_text("\n".join([header, *(f"{line},," for line in lines), ""]), encoding="utf-8")
    shelter.run(shelter.command("radt", "run", str(file), "--quiet", "--yes"))
    return _read(shelter)


def _read(shelter: Shelter) -> Starts:
    with StoreReader(shelter.home.store_path) as reader:
        workloads = reader.workloads(_EXPERIMENT)
        ended_ns = {
            one.workload_id: max(
                run.ended_ns or 0 for run in reader.runs(workload_id=one.workload_id)
            )
            for one in workloads
        }
    skews = [one.start_skew_ns for one in workloads if one.start_skew_ns is not None]
    if len(skews) < WORKLOADS:
        raise LaunchError(
            f"of {WORKLOADS} workloads only {len(skews)} started",
            "radt doctor shows what does not work",
        )
    betweens = [
        ((later.barrier_ns or 0) - ended_ns[earlier.workload_id]) / 1e9
        for earlier, later in itertools.pairwise(workloads)
    ]
    return Starts(tuple(skew / 1e9 for skew in skews), tuple(betweens))
