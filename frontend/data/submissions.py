"""What was submitted to a cluster and is not settled yet, as ``radt status`` says it.

The command runs in a process of its own: clusters are above the dashboard (ARCHITECTURE.md), and a
hanging shared folder must not hang a page. It only looks, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radt.frontend.data.machine import ask_radt


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job on a node; ``beats`` are the signs of life that its newest attempt has given."""

    nodes: str
    workload: str
    runs: int
    job_id: str
    attempt: int
    beats: int


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits; ``reason`` is the cluster's word, ``starts`` its estimate."""

    job_id: str
    workload: str
    runs: int
    reason: str
    starts: str


@dataclass(frozen=True, slots=True)
class Submission:
    """An open submission: ``follower`` is who follows it, "" for nobody.

    ``problem`` is why its state is old or not known, ``held`` why no further job starts.
    """

    file: str
    submission_id: str = ""
    headline: str = ""
    follower: str = ""
    running: Sequence[NodeJob] = ()
    queued: Sequence[QueuedJob] = ()
    queued_count: int = 0
    held: str = ""
    problem: str = ""
    remedy: str = ""


def read_submissions(folder: Path | None) -> Sequence[Submission]:
    """Ask for the open submissions of a data folder, by default of the one in the settings.

    Raises:
        RadtError: The command fails or times out, or this is not Linux.
    """
    options = () if folder is None else ("--home", str(folder))
    return [_parsed(file) for file in ask_radt("status", *options)["files"]]


def _parsed(file: Mapping[str, Any]) -> Submission:
    if "error" in file:
        return Submission(file["file"], problem=file["error"], remedy=file["remedy"] or "")
    holder = file["holder"]
    follower = f"process {holder['pid']} on {holder['host']}" if holder else ""
    one = file["submission"]
    return Submission(
        file["file"],
        one["id"],
        one["headline"],
        follower,
        [
            NodeJob(
                *(job["nodes"], job["label"], len(job["roles"])),
                *(job["job_id"], job["attempt"], job["beats"]),
            )
            for job in one["running"]
        ],
        [
            QueuedJob(
                *(job["job_id"], job["label"], len(job["roles"])),
                *(job["reason"], job["starts"]),
            )
            for job in one["waiting"]
        ],
        sum(one["queued"].values()),
        one["held"],
        one["problem"],
        one["remedy"],
    )
