"""An attempt of a job: the folder that its node writes in the shared one (`radt.cluster.spool`)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radt.experiment.status import RowStatus
from radt.files import write_whole

BEAT_S = 10.0
#: Reasons of an attempt that was asked to end: by SIGTERM, by the signal before the time limit.
PREEMPTED = "preempted"
TIME_LIMIT = "the job's time limit"
_STATUSES = re.compile(r"statuses\.(\d+)\.json")
_BEAT = re.compile(r"beat\.(\d+)")


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """Where and when an attempt began, and the seconds between its heartbeats.

    ``job_id`` is the engine's, such as ``1234_7``.
    """

    host: str
    job_id: str
    pid: int
    radt_version: str
    restarts: int = 0
    beat_s: float = BEAT_S


@dataclass(frozen=True, slots=True)
class AttemptView:
    """An attempt as its folder shows it.

    ``beats`` counts its heartbeats; only its growth is meaningful. ``statuses`` are keyed by the
    lines of the submitted file. ``ended`` says that the attempt itself reported its end; ``reason``
    is why it did not run all of its workloads. ``kept`` are the ids of its ended runs and of those
    that it keeps from earlier attempts: all other runs of earlier attempts are invalid. None before
    its first report.
    """

    number: int
    start: AttemptStart | None
    beats: int
    statuses: Mapping[int, RowStatus]
    ended: bool
    reason: str = ""
    kept: frozenset[str] | None = None


class JobAttempt:
    """The folder of one start of a job; only its node writes to it."""

    def __init__(self, path: Path, number: int | None = None) -> None:
        self.path = path
        self.number = int(path.name) if number is None else number
        self._beats = 0
        self._written = 0

    @property
    def output_log(self) -> Path:
        return self.path / "output.log"

    def run_folder(self, run_id: str) -> Path:
        """Return the folder for the archive of a run."""
        return self.path / "runs" / run_id

    def run_folders(self) -> Sequence[Path]:
        folder = self.path / "runs"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def part(self, node: int) -> JobAttempt:
        """Make the folder of another node of this attempt, with the same structure."""
        path = self.path / "nodes" / str(node)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return JobAttempt(path, self.number)

    def parts(self) -> dict[int, JobAttempt]:
        """Return the folders of the other nodes, by number."""
        folder = self.path / "nodes"
        names = sorted(entry.name for entry in os.scandir(folder)) if folder.is_dir() else []
        return {int(name): JobAttempt(folder / name, self.number) for name in names}

    def begin(self, start: AttemptStart) -> None:
        put(self.path / "start.json", json.dumps(asdict(start)))

    def beat(self) -> None:
        """Write a heartbeat."""
        before, after = (self.path / f"beat.{self._beats + more}" for more in (0, 1))
        if self._beats == 0:
            after.touch(mode=0o600)
        else:
            try:
                before.rename(after)
            except FileNotFoundError:  # it was renamed, but the server's answer was lost
                after.touch(mode=0o600)
        self._beats += 1

    def put_statuses(
        self,
        statuses: Mapping[int, RowStatus],
        *,
        ended: bool = False,
        reason: str = "",
        kept: Iterable[str] = (),
    ) -> None:
        """Report the statuses of all rows; the last time with ``ended``.

        Args:
            kept: See `AttemptView`.

        Raises:
            OSError: It cannot be written; the next call reports them again.
        """
        rows = {line: asdict(status) for line, status in statuses.items()}
        content = {"rows": rows, "ended": ended, "reason": reason, "kept": sorted(kept)}
        number = self._written + 1
        put(self.path / f"statuses.{number}.json", json.dumps(content))
        before, self._written = self._written, number
        (self.path / f"statuses.{before}.json").unlink(missing_ok=True)
        if ended:  # leave as few files as possible
            (self.path / f"beat.{self._beats}").unlink(missing_ok=True)

    def view(self) -> AttemptView:
        """Return the current content of the folder."""
        names = [entry.name for entry in os.scandir(self.path)]
        beats = [int(match[1]) for name in names if (match := _BEAT.fullmatch(name))]
        start = _json(self.path / "start.json") if "start.json" in names else None
        numbers = sorted(int(m[1]) for name in names if (m := _STATUSES.fullmatch(name)))
        content: dict[str, Any] = {}
        for number in reversed(numbers):  # the newest may be replaced while reading
            if found := _json(self.path / f"statuses.{number}.json"):
                content = found
                break
        return AttemptView(
            self.number,
            AttemptStart(**start) if start else None,
            max(beats, default=0),
            {int(line): RowStatus(**row) for line, row in content.get("rows", {}).items()},
            bool(content.get("ended", False)),
            str(content.get("reason", "")),
            frozenset(content["kept"]) if "kept" in content else None,
        )


def put(path: Path, text: str) -> None:
    """Write a small file atomically."""
    write_whole(path, text, mode=0o600, durable=True)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):  # ValueError: cut off by a full disk
        return None
