"""Print the table of README.md from the experiment's runs: ``python table.py [--home FOLDER]``.

Each workload is put against `untracked`, repeat by repeat, as repeats run in rounds; intervals are
those of the mean log ratio by Student's t (95 %).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from radt.analysis.estimates import mean_interval
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader

BASELINE = "untracked"
METRICS = ("epoch_s", "epoch_cpu_s")
#: By workload: for each repeat that finished, the mean of each metric, and values recorded by
#: listeners.
Found = Mapping[str, Sequence[Mapping[str, float]]]


def read(reader: StoreReader, experiment: str) -> Found:
    """Means over the epochs of each run, workloads in the order of the file, repeats in theirs."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in reader.runs(experiment=experiment, status=RunStatus.FINISHED):
        values: dict[str, float] = {"recorded": 0}
        for one in reader.summary([run.run_id]):
            if one.series.metric in METRICS and one.mean is not None:
                values[one.series.metric] = one.mean
            if one.series.listener not in ("run", "steps", "kernel"):
                values["recorded"] += one.count
        found.setdefault(run.workload, []).append(values)
    return found


def ratio_text(values: Sequence[float], baseline: Sequence[float]) -> str:
    """``1.004 (0.998 to 1.010)``; of the means alone where repeats of one have no partner."""
    if len(values) != len(baseline):
        return f"{fmean(values) / fmean(baseline):.3f}"
    logs = [math.log(one / base) for one, base in zip(values, baseline, strict=True)]
    interval = mean_interval(logs)
    text = f"{math.exp(fmean(logs)):.3f}"
    if interval is None:
        return text
    return f"{text} ({math.exp(interval.low):.3f} to {math.exp(interval.high):.3f})"


def lines(found: Found) -> list[str]:
    """A table in Markdown."""
    table = [
        "| workload | n | s/epoch | against untracked | CPU s/epoch | against untracked | values |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for workload, repeats in found.items():
        cells = [workload, str(len(repeats))]
        for metric in METRICS:
            values = [one[metric] for one in repeats]
            base = [one[metric] for one in found.get(BASELINE, ())]
            cells.append(f"{fmean(values):.3f}")
            cells.append(ratio_text(values, base) if base and workload != BASELINE else "–")
        cells.append(f"{fmean([one['recorded'] for one in repeats]):,.0f}")
        table.append(f"| {' | '.join(cells)} |")
    return table


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", help="the data folder")
    parser.add_argument("--experiment", default="overhead")
    args = parser.parse_args()
    with StoreReader(Home.resolve(args.home).store_path) as reader:
        print("\n".join(lines(read(reader, args.experiment))))


if __name__ == "__main__":
    main()
