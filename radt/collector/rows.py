"""The rows of a run, from what it says of itself."""

from __future__ import annotations

from dataclasses import replace

from radt.clock import Clock
from radt.collector.protocol import StandaloneRun
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import LISTENERS


def row_of(run: StandaloneRun, clock: Clock) -> RunRecord:
    """Return the row of a run, as it describes itself."""
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
        # A runner's listeners include profilers, which are not the collector's.
        listeners=run.tags.get(LISTENERS) or "+".join(map(str, registration.listeners)),
        command=run.command,
        host=run.host,
        spool=registration.spool,
        tracking_uri=registration.tracking_uri,
    )


def put_rows(writer: StoreWriter, reader: StoreReader, run: StandaloneRun, clock: Clock) -> str:
    """Create the rows of a run as it describes itself, and that of its workload if there is none.

    Returns the run's name, with its number if the run has one.

    Raises:
        StoreError: The store cannot be written.
    """
    row = row_of(run, clock)
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
            known = reader.workload(row.workload_id)
            if known.barrier_ns is not None and known.barrier_ns > barrier_ns:
                # A child of this run was found first, which began later.
                writer.update_workload(row.workload_id, barrier_ns=barrier_ns)
            is_late = known.ended_ns is not None and not run.parent_id
            if is_late:  # another rank of a launcher was quicker
                writer.update_workload(row.workload_id, status=RunStatus.RUNNING, ended_ns=None)
        if run.is_numbered:
            row = replace(row, name=writer.numbered_name(run.name, run.experiment))
        writer.put_run(row)
        writer.put_params(row.run_id, run.params)
        writer.put_tags(row.run_id, run.tags)
        if is_late:
            writer.deliver_again(row.run_id)
    return row.name
