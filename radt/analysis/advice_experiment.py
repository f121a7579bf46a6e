"""Write the next experiment as a CSV file: missing runs, or candidates to verify."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from radt.analysis.advice import Advice
from radt.analysis.advice_model import Prediction
from radt.analysis.baselines import BaselineKey
from radt.errors import RadtError, UsageError
from radt.experiment.columns import Column
from radt.experiment.plan import RunPlan
from radt.experiment.table import parse_table
from radt.model import DEFAULT_LISTENERS
from radt.store.records import RunRecord
from radt.units import plural, seconds_text

#: Columns of every written file; others only if a row has a value.
_ALWAYS = frozenset(
    {
        *(Column.EXPERIMENT, Column.WORKLOAD, Column.NAME, Column.STATUS, Column.RUN),
        *(Column.DEVICES, Column.COLLOCATION, Column.LISTENERS, Column.FILE, Column.PARAMS),
    }
)
#: Parameters that are columns of radt.
_OWN = frozenset(column.value.lower() for column in Column)
_BRACED = re.compile(r"\{([^{}]*)\}")
_NEEDS_QUOTES = re.compile(r'[,"\r\n]|^\s|\s$|^#')
_MAX_VERIFIED = 8


@dataclass(frozen=True, slots=True)
class Written:
    """A written file, and its purpose."""

    path: Path
    runs: int
    workloads: int
    purpose: str

    @property
    def text(self) -> str:
        """Return a sentence for messages."""
        what = f"{plural(self.workloads, 'workload')}, {plural(self.runs, 'run')}"
        return f"{self.path}: {what} {self.purpose}"


@dataclass(frozen=True, slots=True)
class _Template:
    """Cells of a model's rows; workload and collocation are the file's."""

    cells: Mapping[Column, str]
    others: Mapping[str, str] = field(default_factory=dict)


def write_experiment(advice: Advice, path: Path) -> Written:
    """Write the missing runs; if none are missing, the runs that verify the advice.

    Raises:
        UsageError: The file exists, its name does not end in .csv, or no run is missing.
        RadtError: The file cannot be written.
    """
    if path.suffix.lower() != ".csv":
        raise UsageError(
            f"Expected a file name that ends in .csv, got {path}",
            f"Run with --write {path.stem}.csv",
        )
    workloads, purpose = _workloads(advice)
    if not workloads:
        raise UsageError(
            "No run is missing, and no candidate can be verified",
            "Run the models once, each in a workload of its own",
        )
    text = _text(advice.measurements.experiment, workloads, purpose, path)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists, and radt does not overwrite it", "Set another name"
        ) from None
    except OSError as error:
        raise RadtError(f"{path} cannot be written: {error.strerror}") from error
    return Written(path, sum(len(rows) for rows in workloads.values()), len(workloads), purpose)


_Workloads = dict[str, list[tuple[_Template, str]]]


def _workloads(advice: Advice) -> tuple[_Workloads, str]:
    """Return rows and their collocation by the labels of new workloads, and the file's purpose."""
    taken = set(advice.measurements.labels)
    workloads: _Workloads = {}
    needed = {need.key: need.name for need in advice.needs if need.key is not None}
    for key, name in needed.items():
        if key is not None and (template := _template(advice, key, measured_badly=True)):
            workloads[_label(f"{name} alone", taken)] = [(template, "-")]
    if workloads:
        return workloads, "to know what models do alone"
    for prediction in _to_verify(advice):
        rows = []
        for row in prediction.candidate.rows:
            template = _template(advice, row.solo.key)
            if template is not None:
                rows.append((template, str(row.collocation)))
        name = f"{prediction.candidate.models_text} {prediction.candidate.sharing_text}"
        workloads[_label(name, taken)] = rows
    return workloads, "to verify what is advised"


def _to_verify(advice: Advice) -> Iterator[Prediction]:
    """Yield unmeasured recommended candidates; without any, those with the largest gain."""
    best = [
        recommendation.best
        for recommendation in advice.recommendations
        if recommendation.best is not None
    ]
    chosen = [prediction for prediction in best if not prediction.measured]
    if not chosen:
        others = [
            prediction
            for prediction in advice.predictions
            if not prediction.measured
            and prediction.measured_fit is None
            and prediction.gain is not None
        ]
        chosen = sorted(others, key=lambda prediction: -(prediction.gain or 0.0))
    seen = set()
    for prediction in chosen:
        if prediction.candidate.identity not in seen:
            seen.add(prediction.candidate.identity)
            yield prediction
        if len(seen) >= _MAX_VERIFIED:
            return


def _label(wanted: str, taken: set[str]) -> str:
    """Return a new label: another start of a known workload would replace it in reports."""
    label, number = wanted, 2
    while label in taken:
        label, number = f"{wanted} {number}", number + 1
    taken.add(label)
    return label


def _template(
    advice: Advice, key: BaselineKey, *, measured_badly: bool = False
) -> _Template | None:
    """Return the file's row if a file was given, otherwise the recorded run.

    The store does not distinguish the user's own columns from logged params.
    """
    row = advice.planned.rows().get(key[:3])
    known = advice.measurements.records.get(key)
    if row is not None:
        template = _of_row(row)
    elif known is not None:
        template = _of_record(*known)
    else:
        return None
    return _listening(template) if measured_badly else template


def _listening(template: _Template) -> _Template:
    """Add the default listeners, which measure the missing quantities."""
    named = template.cells[Column.LISTENERS].split("+")
    names = [name for name in named if name not in ("", "none", DEFAULT_LISTENERS)]
    listeners = "+".join([DEFAULT_LISTENERS, *names])
    return replace(template, cells={**template.cells, Column.LISTENERS: listeners})


def _of_record(run: RunRecord, params: Mapping[str, str]) -> _Template:
    """Return a row as the runner recorded it (`radt.runner.preparation`)."""
    arguments = params.get(Column.PARAMS, "")
    return _Template(
        {
            Column.NAME: run.name,
            Column.DEVICES: run.devices,
            Column.ENVIRONMENT: _unless(params.get(Column.ENVIRONMENT, ""), "local"),
            Column.CPUS: params.get(Column.CPUS, ""),
            Column.TIMEOUT: params.get(Column.TIMEOUT, "").replace(" ", ""),
            Column.MODEL: params.get(Column.MODEL, ""),
            Column.DATA: params.get(Column.DATA, ""),
            Column.LISTENERS: run.listeners or DEFAULT_LISTENERS,
            Column.FILE: _program(run, params.get(Column.FILE, "")),
            Column.PARAMS: arguments,
        }
    )


def _of_row(row: RunPlan) -> _Template:
    """Return a row of the file."""
    own = {name.lower(): value for name, value in row.columns.items()}
    return _Template(
        {
            Column.NAME: row.name,
            Column.DEVICES: str(row.devices),
            Column.ENVIRONMENT: _unless(str(row.environment), "local"),
            Column.CPUS: str(row.cpus) if row.cpus.count or row.cpus.cpus else "",
            Column.TIMEOUT: f"{seconds_text(row.timeout_s)}s" if row.timeout_s is not None else "",
            Column.MODEL: own.get("model", ""),
            Column.DATA: own.get("data", ""),
            Column.LISTENERS: "+".join(map(str, row.listeners)) or "none",
            Column.FILE: f"-m {row.program.module}"
            if row.program.module
            else str(row.program.path),
            Column.PARAMS: row.arguments,
        },
        {name: value for name, value in row.columns.items() if name.lower() not in _OWN},
    )


def _program(run: RunRecord, name: str) -> str:
    """Return the program's path in the command, ``-m MODULE``, or its name."""
    words = _words(run.command)
    if "-m" in words[1:2] and words[2:3] == [name]:
        return f"-m {name}"
    return next((word for word in words[:2] if Path(word).name == name), name)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quote: not written by radt
        return text.split()


def _unless(text: str, usual: str) -> str:
    return "" if text == usual else text


def _text(experiment: str, workloads: _Workloads, purpose: str, path: Path) -> str:
    """Return the file: a comment, the header, padded cells."""
    templates = [template for rows in workloads.values() for template, _ in rows]
    columns = [
        column
        for column in Column
        if column in _ALWAYS or any(template.cells.get(column) for template in templates)
    ]
    others = list(dict.fromkeys(name for template in templates for name in template.others))
    header = [*map(str, columns), *others]
    names = {name.lower() for name in header} | {column.lower() for column in Column}
    lines = [header]
    for label, rows in workloads.items():
        for template, collocation in rows:
            cells = {
                **template.cells,
                Column.EXPERIMENT: experiment,
                Column.WORKLOAD: label,
                Column.COLLOCATION: collocation,
                Column.FILE: _literal(_relative(template.cells[Column.FILE], path), names),
                Column.PARAMS: _literal(template.cells[Column.PARAMS], names),
            }
            lines.append(
                [
                    *(cells.get(column, "") for column in columns),
                    *(template.others.get(name, "") for name in others),
                ]
            )
    text = f"# Written by radt advise: {purpose}.\n" + "".join(_padded(lines))
    _check(text, lines)
    return text


def _relative(file: str, path: Path) -> str:
    """Return a path relative to the new file's folder if that is short."""
    if not Path(file).is_absolute():
        return file
    relative = os.path.relpath(file, path.absolute().parent)
    return file if relative.startswith(os.path.join("..", "..", "..")) else relative  # noqa: PTH118


def _literal(text: str, names: set[str]) -> str:
    """Escape braces around a column's name, which radt would otherwise fill in."""
    return _BRACED.sub(
        lambda match: f"{{{match[0]}}}" if match[1].lower() in names else match[0], text
    )


def _padded(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    quoted = [[_quoted(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*quoted, strict=True)]
    for line in quoted:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield ", ".join(cells).rstrip() + "\n"


def _quoted(cell: str) -> str:
    doubled = cell.replace('"', '""')
    return f'"{doubled}"' if _NEEDS_QUOTES.search(cell) else cell


def _check(text: str, lines: Iterable[Sequence[str]]) -> None:
    """Check that radt reads the same cells back."""
    table = parse_table(text)
    records = [*([table.header] if table.header else []), *table.rows]
    parsed = [[cell.value for cell in record.cells] for record in records]
    expected = [
        [cell.strip() if not _NEEDS_QUOTES.search(cell) else cell for cell in line]
        for line in lines
    ]
    if parsed != expected:
        raise RadtError(
            "a name or parameter of this experiment cannot be written as a CSV cell",
            "Write the rows by hand: `radt advise` lists them",
        )
