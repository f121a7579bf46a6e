"""Create the rows of a run from its description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radt.clock import Clock
from radt.collector.protocol import RunRequest
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import LISTENERS


def row_of(run: RunRequest, clock: Clock) -> RunRecord:
    """Return the row of a run from its description."""
    registration = run.registration
    return RunRecord(
        run_id=registration.run_id,
        workload_id=run.workload_id,
        experiment=run.experiment,
        workload=run.workload,
        letter=run.letter,
        name=run.name,
        created_ns=clock.to_wall_ns(run.started_monotonic_ns),
        devices=run.devices,
        collocation=run.collocation,
        # A runner's listeners include profilers, which the collector does not run.
        listeners=run.tags.get(LISTENERS) or "+".join(map(str, registration.listeners)),
        command=run.command,
        host=run.host,
        spool=registration.spool,
        tracking_uri=registration.tracking_uri,
    )


def record_runs(
    writer: StoreWriter, reader: StoreReader, runs: Sequence[RunRequest], clock: Clock
) -> list[str]:
    """Create the rows of a runner's runs, and return their names.

    Raises:
        StoreError: The store cannot be written; no row was created.
    """
    with writer.transaction():
        return [put_rows(writer, reader, run, clock).name for run in runs]


def put_rows(writer: StoreWriter, reader: StoreReader, run: RunRequest, clock: Clock) -> RunRecord:
    """Create the rows of a run from its description, unless they exist.

    The workload's row is created with its first run.

    Returns:
        The run's row, whose name includes its number if it has one.

    Raises:
        StoreError: The store cannot be written.
    """
    row = row_of(run, clock)
    for known in reader.runs(run_ids=[row.run_id]):
        return known
    barrier_ns = None if run.has_runner else row.created_ns
    is_late = False
    with writer.transaction():
        if not reader.runs(workload_id=row.workload_id):
            writer.put_workload(
                WorkloadRecord(
                    workload_id=row.workload_id,
                    experiment=row.experiment,
                    label=row.workload,
                    created_ns=row.created_ns,
                    status=RunStatus.SCHEDULED if run.has_runner else RunStatus.RUNNING,
                    tracking_uri=row.tracking_uri,
                    barrier_ns=barrier_ns,
                )
            )
        elif barrier_ns is not None:
            workload = reader.workload(row.workload_id)
            if workload.barrier_ns is not None and workload.barrier_ns > barrier_ns:
                # A child of this run, which began later, was found first.
                writer.update_workload(row.workload_id, barrier_ns=barrier_ns)
            is_late = workload.ended_ns is not None and not run.parent_id
            if is_late:  # another rank of a launcher was faster
                writer.update_workload(row.workload_id, status=RunStatus.RUNNING, ended_ns=None)
        if run.is_numbered:
            row = replace(row, name=writer.numbered_name(run.name, run.experiment))
        writer.put_run(row)
        writer.put_params(row.run_id, run.params)
        writer.put_tags(row.run_id, run.tags)
        if is_late:
            writer.deliver_again(row.run_id)
    return row
