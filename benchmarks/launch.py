"""Overhead of workloads of one-second scripts, compared with PyPI radt 0.2.30.

Two workloads of N rows run one after the other. The script is either *plain* or *tracked*: it opens
the original's ``RADTBenchmark`` block, which both versions have, and logs five values in it. The
compared values are

- *whole*: wall time of the command beyond the scripts' two seconds; databases exist already.
- *first*: from the command to the first line of the first script; no collector runs yet.
- *between*: from the end of the first workload's scripts to the first line of the second's: the
  overhead of each further workload once the runner is up. For tracked scripts the end is that of
  the block's body.
- *start skew*: between the first and the last row of a workload, at their first line.
- *block skew*: the same inside the block.
- *CPU*: of all processes below the command until the last has ended, including collectors, minus
  the CPU time of the bare script.

Each number is the median of the launches, followed by the minimum and maximum. The peer has its
own environment (it needs pandas below 3). Both use SQLite for MLflow and the listener ``top``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks.peers import peer_python

PEER = ("radt==0.2.30", "pandas<3")
BODY_S = 1.0
WORKLOADS = 2
#: Timeout for processes that outlive the command.
LINGER_S = 120.0
PR_SET_CHILD_SUBREAPER = 36

_STAMP = """\
import os, pathlib, sys, time
def stamp(what):
    path = pathlib.Path(os.environ["STAMPS"], f"{sys.argv[-1]}-{what}-{os.getpid()}")
    path.write_text(str(time.monotonic_ns()))
stamp("begin")
"""
SCRIPTS = {
    "plain": _STAMP + f"time.sleep({BODY_S})\nstamp('end')\n",
    "tracked": _STAMP
    + f"""\
from radt.run import RADTBenchmark
with RADTBenchmark() as run:
    stamp("block")
    for epoch in range(5):
        run.log_metric("loss", 1 / (epoch + 1), epoch)
        time.sleep({BODY_S} / 5)
    stamp("end")
""",
}
HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params\n"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of two workloads. ``block_skew_s`` is 0 for plain scripts."""

    whole_s: float
    first_s: float
    between_s: float
    skew_s: float
    block_skew_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Contender:
    """A radt to launch, with its value of the device column for the CPU."""

    name: str
    command: Path
    device: str


def launch(contender: Contender, folder: Path, script: str, rows: int) -> Launch:
    """Run two workloads of ``rows`` rows, in a folder that has the databases."""
    stamps = folder / f"stamps-{time.monotonic_ns()}"
    stamps.mkdir(parents=True)
    (folder / "row.py").write_text(SCRIPTS[script], encoding="utf-8")
    (folder / "launch.csv").write_text(
        HEADER
        + "".join(
            f"0,{workload},row,,,{contender.device},-,top,row.py,w{workload}\n"
            for workload in range(1, WORKLOADS + 1)
            for _ in range(rows)
        ),
        encoding="utf-8",
    )
    env = dict(os.environ, STAMPS=str(stamps), RADT_HOME=str(folder / "radt-data"))
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    env["PATH"] = f"{contender.command.parent}:{env['PATH']}"
    env["RADT_COLLECTOR_IDLE_S"] = "1"  # so that the collector ends and can be awaited
    before_s = _children_cpu_s()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="radt-") as runtime:
        done = subprocess.run(
            [contender.command, "launch.csv"],
            cwd=folder,
            env=env | {"RADT_RUNTIME_DIR": runtime},
            capture_output=True,
            text=True,
            check=False,
        )
        wall_s = time.monotonic() - started_s
        _wait_for_the_rest()
    cpu_s = _children_cpu_s() - before_s
    begin, block, end = (_stamps(stamps, what) for what in ("begin", "block", "end"))
    if any(len(begin[workload]) != rows for workload in begin):
        raise SystemExit(
            f"{contender.command}: not all of {rows} rows started\n{done.stdout}{done.stderr}"
        )
    return Launch(
        whole_s=wall_s - WORKLOADS * BODY_S,
        first_s=min(begin[1]) - started_s,
        between_s=min(begin[2]) - max(end[1]),
        skew_s=max(map(_spread, begin.values())),
        block_skew_s=max(map(_spread, block.values())),
        cpu_s=cpu_s,
    )


def bare_cpu_s(folder: Path) -> float:
    """Return the CPU time of the plain script without any radt."""
    folder.mkdir()
    (folder / "row.py").write_text(SCRIPTS["plain"], encoding="utf-8")
    before_s = _children_cpu_s()
    count = 5
    for _ in range(count):
        env = dict(os.environ, STAMPS=str(folder))
        subprocess.run([sys.executable, "row.py", "w"], cwd=folder, env=env, check=True)
    return (_children_cpu_s() - before_s) / count


def _stamps(folder: Path, what: str) -> dict[int, list[float]]:
    """Return the times in seconds of each workload's rows."""
    return {
        workload: [
            int(path.read_text(encoding="ascii")) / 1e9
            for path in folder.glob(f"w{workload}-{what}-*")
        ]
        for workload in range(1, WORKLOADS + 1)
    }


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values) if values else 0.0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait_for_the_rest() -> None:
    """Reap processes that outlived the command; as subreaper this process inherits them."""
    deadline = time.monotonic() + LINGER_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            return
    raise SystemExit(f"processes are still there {LINGER_S:.0f} s after the command")


def measure(
    contender: Contender, folder: Path, script: str, rows: int, count: int, bare_s: float
) -> list[Launch]:
    """Return several launches, with their CPU time minus that of the bare scripts."""
    launches = [launch(contender, folder, script, rows) for _ in range(count)]
    own_s = WORKLOADS * rows * bare_s
    return [replace(one, cpu_s=one.cpu_s - own_s) for one in launches]


def _text(launches: Sequence[Launch], value: Callable[[Launch], float]) -> str:
    values = sorted(map(value, launches))
    return f"{statistics.median(values):7.3f} s ({values[0]:.3f}-{values[-1]:.3f})"


def _report(script: str, rows: int, found: Mapping[str, Sequence[Launch]]) -> Iterable[str]:
    for field in fields(Launch):
        if "skew" in field.name and (rows == 1 or (script == "plain" and "block" in field.name)):
            continue

        def value(one: Launch, name: str = field.name) -> float:
            return float(getattr(one, name))

        medians = [statistics.median(map(value, launches)) for launches in found.values()]
        ratio = f"{medians[1] / medians[0]:7.1f}×" if len(medians) > 1 and medians[0] > 0 else ""
        cells = "".join(f"{_text(launches, value):>28}" for launches in found.values())
        yield f"{script:8}{rows:>4}  {field.name.removesuffix('_s'):12}{cells}{ratio}"


def main() -> None:
    """Print a table of both, for plain and tracked scripts and several numbers of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--scripts", nargs="*", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--only", choices=["radt", "0.2.30"], help="one of the two alone")
    args = parser.parse_args()
    contenders = [
        Contender("radt", Path(sys.executable).with_name("radt"), "cpu"),
        Contender("0.2.30", peer_python("radt-0.2.30", PEER).with_name("radt"), "0"),
    ]
    contenders = [one for one in contenders if args.only in (None, one.name)]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    print(f"{'script':8}{'rows':>4}  {'':12}" + "".join(f"{one.name:>28}" for one in contenders))
    with tempfile.TemporaryDirectory() as scratch:
        bare_s = bare_cpu_s(Path(scratch, "bare"))
        folders = {one.name: Path(scratch, one.name) for one in contenders}
        for one in contenders:  # creates the databases and loads the modules from disk
            launch(one, folders[one.name], "tracked", 1)
        for script in args.scripts:
            for rows in args.rows:
                found = {
                    one.name: measure(one, folders[one.name], script, rows, args.launches, bare_s)
                    for one in contenders
                }
                for line in _report(script, rows, found):
                    print(line, flush=True)
        print(f"the bare script takes {bare_s:.3f} s of CPU; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
