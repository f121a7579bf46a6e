"""Write the next experiment as a CSV file: missing runs, or candidates to verify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.analysis.advice import Advice
from radt.analysis.advice_model import Fit
from radt.analysis.baselines import BaselineKey, program_in
from radt.errors import RadtError, UsageError
from radt.experiment.columns import IN_EVERY_TABLE, Column
from radt.experiment.status import encoded
from radt.experiment.templates import Placeholders
from radt.model import DEFAULT_LISTENERS
from radt.units import plural

#: Columns of a row that the runner records under the same names.
_RECORDED = (Column.CPUS, Column.MODEL, Column.DATA, Column.PARAMS)
_MAX_VERIFIED = 8

#: Cells of a row by column.
Cells = Mapping[Column, str]


@dataclass(frozen=True, slots=True)
class NextExperiment:
    """The content of an experiment file, the number of its runs, and their purpose."""

    text: str
    summary: str


def next_experiment(advice: Advice, folder: Path | None = None) -> NextExperiment:
    """Return the missing runs; if none are missing, the runs that verify the advice.

    Args:
        advice: The advice.
        folder: The folder of the file: programs below it are named relative to it.

    Raises:
        UsageError: No run is missing, and no candidate can be verified.
    """
    workloads, purpose = _missing(advice), "to know what models do alone"
    if not workloads:
        workloads, purpose = _to_verify(advice), "to verify what is advised"
    if not workloads:
        raise UsageError(
            "No run is missing, and no candidate can be verified",
            "Run the models once, each in a workload of its own",
        )
    labels = _new_labels(advice, [label for label, _ in workloads])
    rows = [
        _row(cells, advice.measurements.experiment, label, folder)
        for label, (_, same) in zip(labels, workloads, strict=True)
        for cells in same
    ]
    text = f"# Written by radt advise: {purpose}.\n" + "".join(_lines(rows))
    count = f"{plural(len(workloads), 'workload')}, {plural(len(rows), 'run')}"
    return NextExperiment(text, f"{count} {purpose}")


def write_experiment(advice: Advice, path: Path) -> str:
    """Write the next experiment. Return a sentence about the file.

    Raises:
        UsageError: The file exists, its name does not end in .csv, or there is nothing to run.
        RadtError: The file cannot be written.
    """
    if path.suffix.lower() != ".csv":
        raise UsageError(
            f"Expected a file name that ends in .csv, got {path}",
            f"Run with --write {path.stem}.csv",
        )
    following = next_experiment(advice, path.absolute().parent)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(following.text)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists, and radt does not overwrite it", "Set another name"
        ) from None
    except OSError as error:
        raise RadtError(f"{path} cannot be written: {error.strerror}") from error
    return f"{path}: {following.summary}"


def _missing(advice: Advice) -> list[tuple[str, list[Cells]]]:
    """Return one workload, with its label, for each model whose measurements are missing.

    The rows also have the default listeners, which take the missing measurements.
    """
    needed = {need.key: need.name for need in advice.needs if need.key is not None}
    workloads: list[tuple[str, list[Cells]]] = []
    for key, name in needed.items():
        cells = _cells(advice, key)
        usual = ("", "none", DEFAULT_LISTENERS)
        names = [each for each in cells[Column.LISTENERS].split("+") if each not in usual]
        listeners = "+".join([DEFAULT_LISTENERS, *names])
        row = {**cells, Column.LISTENERS: listeners, Column.COLLOCATION: "-"}
        workloads.append((f"{name} alone", [row]))
    return workloads


def _to_verify(advice: Advice) -> list[tuple[str, list[Cells]]]:
    """Return recommendations that are not measured; without any, the candidates with most gain."""
    best = [recommendation.best for recommendation in advice.recommendations]
    chosen = [each for each in best if each is not None and each.measured is None]
    if not chosen:
        unmeasured = [
            each
            for each in advice.predictions
            if each.measured is None and each.slowdowns and each.fit is not Fit.NO
        ]
        chosen = sorted(unmeasured, key=lambda prediction: -(prediction.gain or 0.0))
    return [
        (
            f"{each.candidate.models_text} {each.candidate.sharing_text}",
            [
                {**_cells(advice, row.solo.key), Column.COLLOCATION: str(row.collocation)}
                for row in each.candidate.rows
            ],
        )
        for each in chosen[:_MAX_VERIFIED]
    ]


def _new_labels(advice: Advice, wanted: Sequence[str]) -> list[str]:
    """Return new labels: a restart of a known workload would replace it in reports."""
    taken = {workload.label for workload in advice.measurements.report.workloads}
    labels = []
    for label in wanted:
        number, name = 2, label
        while name in taken:
            number, name = number + 1, f"{label} {number}"
        taken.add(name)
        labels.append(name)
    return labels


def _cells(advice: Advice, key: BaselineKey) -> Cells:
    """Return a model's row as the runner recorded it (`radt.runner.preparation`).

    The store does not distinguish the user's own columns from logged params, so they are left out.
    """
    run, params = advice.measurements.records[key]
    environment = params.get(Column.ENVIRONMENT, "")
    return {
        **{column: params.get(column, "") for column in _RECORDED},
        Column.NAME: run.name,
        Column.DEVICES: run.devices,
        Column.ENVIRONMENT: "" if environment == "local" else environment,
        Column.TIMEOUT: params.get(Column.TIMEOUT, "").replace(" ", ""),
        Column.LISTENERS: run.listeners or DEFAULT_LISTENERS,
        Column.FILE: program_in(run.command, params.get(Column.FILE, "")),
    }


def _row(cells: Cells, experiment: str, label: str, folder: Path | None) -> Cells:
    """Return a row of the new file, with its label, a shortened path, and literal braces."""
    file = Path(cells[Column.FILE])
    if folder is not None and file.is_relative_to(folder):
        file = file.relative_to(folder)
    literal = Placeholders({}).escaped  # otherwise a column's name in braces would be filled in
    filled = {Column.FILE: literal(str(file)), Column.PARAMS: literal(cells[Column.PARAMS])}
    return {**cells, **filled, Column.EXPERIMENT: experiment, Column.WORKLOAD: label}


def _lines(rows: Sequence[Cells]) -> Iterator[str]:
    """Yield the header and the rows, with padded cells."""
    columns = [
        column
        for column in Column
        if column in IN_EVERY_TABLE or any(row.get(column) for row in rows)
    ]
    table = [[*map(str, columns)], *([row.get(column, "") for column in columns] for row in rows)]
    quoted = [[encoded(cell, at) for at, cell in enumerate(line)] for line in table]
    widths = [max(map(len, column)) for column in zip(*quoted, strict=True)]
    for line in quoted:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield ", ".join(cells).rstrip() + "\n"
