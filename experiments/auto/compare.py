"""Run the rows of experiment.csv in several ways, and print the table of README.md.

Each way is run by the command ``radt`` as an experiment, and the next repeat comes after all ways.
Rows that did not finish run again at the end, one after the other, which counts for the way.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from radt.analysis.estimates import effect, mean_interval
from radt.devices.cgroups import Controller, Hierarchy
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.totals import read_totals

FOLDER = Path(__file__).parent
SERIAL, PAIRS, BEST, AUTO, AGAIN = "serial", "always two", "best fixed", "auto", "auto again"
#: Two rows that compute fill two cores, and rows that wait for data fit beside them.
BEST_GROUPS = (
    *(("double", "waiting"), ("double", "waiting")),
    *(("single", "large", "waiting"), ("single", "large", "waiting")),
    ("single", "single"),
)


@dataclass(frozen=True)
class Outcome:
    """One repeat of a way; ``energy_j`` is None where it is not measured."""

    makespan_s: float
    groups: int
    lost: int
    energy_j: float | None


def rows() -> list[dict[str, str]]:
    """Return the rows of experiment.csv."""
    with (FOLDER / "experiment.csv").open(encoding="utf-8", newline="") as file:
        table = [[cell.strip() for cell in line] for line in csv.reader(file)]
    header, *lines = (line for line in table if not line[0].startswith("#"))
    return [dict(zip(header, line, strict=True)) for line in lines]


def workloads(way: str, kinds: Sequence[str]) -> list[str]:
    """Return the Workload cells of rows of these kinds."""
    if way == SERIAL:
        return ["" for _ in kinds]
    if way == PAIRS:
        return [str(number // 2 + 1) for number in range(len(kinds))]
    if way in (AUTO, AGAIN):
        return ["auto" for _ in kinds]
    cells = ["" for _ in kinds]
    for label, group in enumerate(BEST_GROUPS, start=1):
        for kind in group:
            row = next(at for at, own in enumerate(kinds) if own == kind and not cells[at])
            cells[row] = str(label)
    return cells


def run_way(way: str, folder: Path) -> Outcome:
    """Run all rows, with a new data folder unless measurements are to be known."""
    home = folder / (AUTO if way == AGAIN else way)
    started_s = time.perf_counter()
    table = rows()
    cells = workloads(way, [row["Name"] for row in table])
    left = [row | {"Workload": cell} for row, cell in zip(table, cells, strict=True)]
    left = _unfinished(left, way, folder, home)
    if left:
        _unfinished([row | {"Workload": "", "Status": ""} for row in left], way, folder, home)
    makespan_s = time.perf_counter() - started_s
    with StoreReader(Home(home).store_path) as reader:
        runs = reader.runs(experiment=way)
        totals = read_totals(reader, runs)
    energies: dict[str, float] = {}  # of the machine while a workload ran: of its longest run
    for run in runs:
        own = totals[run.run_id].get("cpu_energy_j", 0.0)
        energies[run.workload_id] = max(own, energies.get(run.workload_id, 0.0))
    lost = sum(run.status is not RunStatus.FINISHED for run in runs)
    return Outcome(makespan_s, len(energies), lost, sum(energies.values()) or None)


def _unfinished(
    table: Sequence[Mapping[str, str]], way: str, folder: Path, home: Path
) -> list[dict[str, str]]:
    """Run rows, and return those that did not finish."""
    path = folder / f"{way}, {len(table)} rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(row | {"Experiment": way} for row in table)
    radt = Path(sys.executable).with_name("radt")
    options = ("--yes", "--quiet", "--home", home, "--tracking-uri", "none")
    subprocess.run([radt, path.name, *options], cwd=folder, check=False)
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if not row["Status"].startswith("FINISHED")]


def lines(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Yield the lines of the table. Ratios are of the ways in the same repeat."""
    yield "| way | makespan | of serial | groups | rows lost to memory | energy |"
    yield "|---|---:|---:|---:|---:|---:|"
    serial_s = [each.makespan_s for each in outcomes[SERIAL]]
    for way, repeats in outcomes.items():
        makespans_s = [each.makespan_s for each in repeats]
        ratio = effect(serial_s, makespans_s, paired=True)
        of_serial = f"{ratio.value:.2f}"
        if ratio.interval is not None:
            of_serial += f" ({ratio.interval.low:.2f} to {ratio.interval.high:.2f})"
        cells = [
            *(way, with_interval(makespans_s, "s"), "–" if way == SERIAL else of_serial),
            " or ".join(map(str, sorted({each.groups for each in repeats}))),
            f"{fmean(each.lost for each in repeats):.3g}",
            with_interval([each.energy_j for each in repeats if each.energy_j is not None], "J"),
        ]
        yield f"| {' | '.join(cells)} |"


def with_interval(values: Sequence[float], unit: str) -> str:
    """Return ``52.1 ± 0.8 s``, with a 95 % confidence interval."""
    if not values:
        return "not measured"
    interval = mean_interval(values)
    half = "" if interval is None else f" ± {(interval.high - interval.low) / 2:.1f}"
    return f"{fmean(values):.1f}{half} {unit}"


def limit_memory(limit_bytes: int) -> None:
    """Move this process into a control group with a memory limit, which root may make."""
    hierarchy = Hierarchy.find(Controller.MEMORY)
    group = None if hierarchy is None else hierarchy.group_of("self")
    if hierarchy is None or group is None:
        sys.exit("compare.py --memory needs control groups, which this machine lacks")
    _, parent = next(hierarchy.around(group))
    folder = parent / "radt-auto"
    folder.mkdir(exist_ok=True)
    name = "memory.limit_in_bytes" if hierarchy.version == 1 else "memory.max"
    (folder / name).write_text(str(limit_bytes), encoding="ascii")
    (folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def main() -> None:
    """Run all ways, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=float, help="limit in GB for all runs together")
    parser.add_argument("--folder", type=Path, default=Path("data"), help="must not exist")
    args = parser.parse_args()
    if args.memory:
        limit_memory(round(args.memory * 1e9))
    outcomes: dict[str, list[Outcome]] = {}
    for repeat in range(1, args.repeats + 1):
        folder = args.folder / str(repeat)
        folder.mkdir(parents=True)
        shutil.copy(FOLDER / "train.py", folder)
        for way in (SERIAL, PAIRS, BEST, AUTO, AGAIN):
            outcomes.setdefault(way, []).append(run_way(way, folder.resolve()))
            print(f"{repeat} {way}: {outcomes[way][-1]}", file=sys.stderr, flush=True)
    print("\n".join(lines(outcomes)))


if __name__ == "__main__":
    main()
