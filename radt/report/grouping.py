"""Like runs of a workload together: what a report says of them, from what they measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from radt.model import RunStatus
from radt.report.attempts import Attempt
from radt.report.baselines import Baseline, BaselineKey
from radt.report.estimates import Estimate, of_rows
from radt.report.measures import RunMeasures
from radt.report.memory import Gathered
from radt.report.quantities import ABOUT, Of, Quantity
from radt.report.results import GroupSummary, RunSummary, WorkloadSummary
from radt.report.shortage import MemoryShortage
from radt.report.together import RowWork, together
from radt.report.tracker_cost import tracker_cpu
from radt.store.tags import PROFILED, PROFILED_BESIDE
from radt.units import NO_VALUE


def workload_summary(
    repeats: Sequence[Attempt],
    found: Gathered,
    keys: Mapping[str, BaselineKey],
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
    baselines: Mapping[BaselineKey, Baseline],
) -> WorkloadSummary:
    """What a report says of a workload.

    Args:
        repeats: Its starts.
        found: What was read of them.
        keys: By which runs are alike, by run id.
        names: Of the runs, by id.
        tags: Of the runs, by id.
        baselines: What its runs are put against; those without one have none.
    """
    measured = found.measures
    rows = {letter: _row(row, names, tags) for letter, row in measured.rows.items()}
    work = together(
        repeats,
        [
            RowWork(
                baselines.get(keys[rows[letter].run.run_id]),
                tuple(
                    found.recordings[one.run.run_id].epochs.count
                    for one in row
                    if one is not None and one.run.status is RunStatus.FINISHED
                ),
            )
            for letter, row in measured.rows.items()
        ],
    )
    values = {**measured.devices, **work.values, **found.emissions}
    if (cpu := tracker_cpu(repeats, found.recordings)) is not None:
        values[Quantity.TRACKER_CPU] = cpu
    return WorkloadSummary(
        label=repeats[-1].runs[0].workload or NO_VALUE,
        groups=[
            _group(
                [rows[letter] for letter in letters],
                [measured.rows[letter] for letter in letters],
                baselines.get(keys[rows[letters[0]].run.run_id]),
                found.shortages,
            )
            for letters in _alike(rows, keys)
        ],
        energy=measured.energy,
        host=repeats[-1].host,
        values=values,
        workload_ids=tuple(one.runs[0].workload_id for one in repeats),
        is_adjusted=work.is_adjusted,
    )


def _row(
    row: Sequence[RunMeasures | None],
    names: Mapping[str, str],
    tags: Mapping[str, Mapping[str, str]],
) -> RunSummary:
    known = [one.run for one in row if one is not None]
    finished = [run for run in known if run.status is RunStatus.FINISHED]
    run = (finished or known)[-1]
    return RunSummary(run, names[run.run_id], len(finished), _profiled(tags.get(run.run_id, {})))


def _alike(
    rows: Mapping[str, RunSummary], keys: Mapping[str, BaselineKey]
) -> Iterable[Sequence[str]]:
    """Letters of rows that are compared as one."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for letter, row in rows.items():
        groups.setdefault((keys[row.run.run_id], row.status, row.profiled), []).append(letter)
    return groups.values()


def _profiled(tags: Mapping[str, str]) -> str:
    beside = tags.get(PROFILED_BESIDE, "")
    return tags.get(PROFILED, "") or (f"beside {beside}" if beside else "")


def _group(
    runs: Sequence[RunSummary],
    rows: Sequence[Sequence[RunMeasures | None]],
    baseline: Baseline | None,
    shortages: Mapping[str, MemoryShortage],
) -> GroupSummary:
    name = ", ".join(dict.fromkeys(run.name for run in runs))
    values = {
        quantity: estimate
        for quantity, about in ABOUT.items()
        if about.of is Of.RUNS and (estimate := value_of(rows, quantity)) is not None
    }
    time = values.get(Quantity.TIME_PER_EPOCH)
    alone = None if baseline is None else baseline.time_per_epoch
    if time is not None and alone is not None and alone.mean:
        values[Quantity.SLOWDOWN] = time.over(alone)
    return GroupSummary(
        name=f"{name} ({runs[0].profiled})" if runs[0].profiled else name,
        runs=runs,
        status=runs[0].status,
        values=values,
        baseline=baseline,
        shortage=next(
            (shortages[run.run.run_id] for run in runs if run.run.run_id in shortages), None
        ),
    )


def value_of(rows: Sequence[Sequence[RunMeasures | None]], quantity: Quantity) -> Estimate | None:
    """A quantity of rows, each given by its repeats; None where none has it."""
    found = [[None if one is None else one.values.get(quantity) for one in row] for row in rows]
    known = [value for row in found for value in row if value is not None]
    return of_rows(
        [[None if value is None else value.value for value in row] for row in found],
        ABOUT[quantity].combine,
        metrics=[value.metric for value in known if value.metric],
        methods=[value.method for value in known],
        is_estimated=any(value.is_estimated for value in known),
    )
