"""The rows of a submission's workloads, from the experiment file as it was submitted.

Only names and places are read: the file may ask for what this machine does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from radt.cluster.settle import SubmittedRow
from radt.cluster.shape import WorkloadKey
from radt.cluster.spool import Spool
from radt.errors import ClusterError
from radt.experiment.check import positions_of, read_header
from radt.experiment.columns import Column, parse_repeats, parse_role
from radt.experiment.source import ExperimentFile
from radt.experiment.table import Table


def submitted_table(spool: Spool) -> Table:
    """Return the experiment file as it was submitted.

    Raises:
        ExperimentError: It cannot be read.
    """
    return ExperimentFile.read(spool.experiment_csv).table


def submitted_rows(spool: Spool) -> Mapping[WorkloadKey, Sequence[SubmittedRow]]:
    """Return the rows of each workload of a submission.

    Raises:
        ExperimentError: The file cannot be read.
        ClusterError: The file is not that of the submission.
    """
    file = ExperimentFile.read(spool.experiment_csv)
    header = read_header(file.shown, file.table)
    default = Path(spool.submission.file).stem
    asked = int(spool.submission.options.get("repeat", 1))
    records = file.table.rows
    cells = [
        (
            header.value(record, Column.EXPERIMENT).strip() or default,
            header.value(record, Column.WORKLOAD).strip(),
        )
        for record in records
    ]
    rows: dict[WorkloadKey, list[SubmittedRow]] = {}
    for record, spot in zip(records, positions_of(cells), strict=True):
        names = (header.value(record, column).strip() for column in (Column.NAME, Column.MODEL))
        program = Path(header.value(record, Column.FILE).strip()).stem
        row = SubmittedRow(
            line=record.line,
            done=parse_repeats(header.value(record, Column.STATUS)),
            asked=asked,
            letter=spot.letter,
            name=next(filter(None, names), program),
            role=parse_role(header.value(record, Column.ROLE)),
        )
        rows.setdefault(WorkloadKey(spot.experiment, spot.workload), []).append(row)
    wanted = {key for job in spool.submission.jobs for key in spool.submission.workloads(job)}
    if missing := wanted - rows.keys():
        raise ClusterError(
            f"{spool.experiment_csv} lacks workload {min(missing).label} of its submission",
            f"Restore the file, or close the submission: touch {spool.path / 'closed'}",
        )
    return {key: rows[key] for key in wanted}
