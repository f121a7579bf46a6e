"""Runs that a restart of the machine cut off."""

from __future__ import annotations

import platform
import time
from dataclasses import replace

import numpy as np
from collector_kit import Project, wait_for

from radt.clock import Clock
from radt.collector.recovery import REASON
from radt.model import RunStatus, Scope, SeriesKind
from radt.store.records import Samples, SeriesBatch, SeriesRecord, WorkloadRecord


def test_runs_of_before_the_restart_are_ended_and_others_left(project: Project) -> None:
    now_ns = Clock.for_machine().now_ns()
    before_ns = now_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 10**12
    old = replace(
        project.row("1" * 32),
        host=platform.node(),
        created_ns=before_ns,
        status=RunStatus.RUNNING,
        workload_id="w" * 32,
    )
    elsewhere = replace(old, run_id="2" * 32, host="another-machine", workload_id="x" * 32)
    recent = replace(old, run_id="3" * 32, created_ns=now_ns, workload_id="y" * 32)
    project.writer.put_workload(
        WorkloadRecord("w" * 32, "e", "1", before_ns, status=RunStatus.RUNNING)
    )
    failed = replace(old, run_id="4" * 32, status=RunStatus.FAILED, ended_ns=before_ns + 1)
    for row in (old, elsewhere, recent, failed):
        project.writer.put_run(row)
    series = SeriesRecord(old.run_id, 0, "top", "m", "1", Scope.HOST, SeriesKind.GAUGE)
    project.writer.add_series([series])
    points = Samples(np.array([before_ns + 5]), np.array([1.0]))
    project.writer.append(old.run_id, [SeriesBatch(0, points)])

    run = project.run()
    wait_for(lambda: project.reader.run(old.run_id).status.ended)
    ended = project.reader.run(old.run_id)
    assert (ended.status, ended.end_reason) == (RunStatus.KILLED, REASON)
    assert ended.ended_ns == before_ns + 5, "when it was last heard of"
    assert project.reader.workload("w" * 32).status is RunStatus.FAILED, "the worst of its runs"
    assert project.reader.run(elsewhere.run_id).status is RunStatus.RUNNING
    assert project.reader.run(recent.run_id).status is RunStatus.RUNNING
    run.finish()
