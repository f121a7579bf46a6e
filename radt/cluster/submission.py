"""A submission: its jobs, their workloads, and what nodes need to run them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from radt.cluster.engine import Shape
from radt.experiment.columns import (
    parse_repeats,
    parse_repeats_asked,
    parse_status,
    status_text,
)
from radt.experiment.plan import FAILURES, WorkloadKey
from radt.home import STORE_VARIABLE, TRACKING_VARIABLE
from radt.model import Role, RunStatus

_KEY = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class JobArray:
    """Jobs of one shape, by index: each runs its workloads one after the other."""

    shape: Shape
    jobs: tuple[tuple[WorkloadKey, ...], ...]


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """A job of a submission: the number of its array, and its index in the array; ``3-17``."""

    array: int
    index: int

    def __str__(self) -> str:
        return f"{self.array}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> JobKey | None:
        """Parse the result of `str`; return None for any other text."""
        match = _KEY.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class SubmittedRow:
    """A row of a job. At submission, ``done`` of ``asked`` repeats had finished."""

    line: int
    done: int = 0
    asked: int = 1
    letter: str = "a"
    name: str = ""
    role: Role = Role.TRAINING

    def text(self, status: str, reason: str = "", before: str = "") -> str:
        """Return the text of its Status cell; its repeat follows those in ``before``."""
        done = max(self.done, parse_repeats(before))
        asked = max(self.asked, parse_repeats_asked(before))
        return status_text(status, reason, min(done + 1, asked), asked)

    def is_over(self, text: str) -> bool:
        """Return True if a job with this status of the row has nothing left to do for it."""
        match parse_status(text):
            case RunStatus.FINISHED:
                return parse_repeats(text) >= self.asked
            case RunStatus.SKIPPED:
                return True
            case status:
                return status in FAILURES


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission with all information that a node needs.

    ``file`` is the experiment file on the submit host; ``options`` are those of the start
    (`StartOptions.for_nodes`); ``settings`` are environment variables for the nodes: with
    ``RADT_TRACKING_URI`` or ``RADT_STORE_URI`` among them, nodes upload runs there, otherwise the
    submit host does. ``home`` is the data folder on the submit host, which gets the runs. ``rows``
    are those of each workload; earlier versions wrote none. ``grouped_by`` is why radt formed
    workloads (`radt.runner.auto`), by label.
    """

    submission_id: str
    engine: str
    file: str
    host: str
    user: str
    radt_version: str
    python: str
    arrays: tuple[JobArray, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    home: str = ""
    rows: Mapping[WorkloadKey, Sequence[SubmittedRow]] = field(default_factory=dict)
    grouped_by: Mapping[str, str] = field(default_factory=dict)

    def workloads(self, job: JobKey) -> tuple[WorkloadKey, ...]:
        return self.arrays[job.array].jobs[job.index]

    @property
    def is_direct(self) -> bool:
        """Return True if nodes reach MLflow or Postgres directly (``record = "direct"``)."""
        return self.reaches_mlflow or bool(self.settings.get(STORE_VARIABLE))

    @property
    def reaches_mlflow(self) -> bool:
        """Return True if nodes upload to MLflow; the submit host only does it for dead nodes."""
        return bool(self.settings.get(TRACKING_VARIABLE))

    @property
    def jobs(self) -> Iterator[JobKey]:
        for number, array in enumerate(self.arrays):
            yield from (JobKey(number, index) for index in range(len(array.jobs)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the result of `to_json`.

        Raises:
            ValueError: It is not a submission.
            TypeError: The same.
            KeyError: The same.
        """
        values = json.loads(text)
        arrays = tuple(
            JobArray(
                Shape(**array["shape"]),
                tuple(tuple(WorkloadKey(**key) for key in job) for job in array["jobs"]),
            )
            for array in values.pop("arrays")
        )
        rows = {
            WorkloadKey(workload["experiment"], workload["label"]): tuple(
                SubmittedRow(**row | {"role": Role(row["role"])}) for row in workload["rows"]
            )
            for workload in values.pop("rows", ())
        }
        return cls(**values, arrays=arrays, rows=rows)

    def to_json(self) -> str:
        rows = [_fields(key) | {"rows": rows} for key, rows in self.rows.items()]
        return json.dumps(_fields(replace(self, rows={})) | {"rows": rows}, default=_fields)


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, like `asdict`, which copies them and is slow."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


@dataclass(frozen=True, slots=True)
class Request:
    """Jobs of an array that are requested from the engine together.

    ``job_id`` is the engine's id of them, "" while it is unknown.
    """

    array: int
    number: int
    indices: tuple[int, ...]
    job_id: str = ""
