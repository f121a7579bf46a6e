"""Runs that are being recorded, on disk: how a worker that was restarted knows what to go on with.

One small file a run below the runtime folder, without the environment that the run came with.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radt.collector.processes import ProcessId
from radt.collector.protocol import Registration, StandaloneRun
from radt.collector.runs import Ending
from radt.model import RunStatus
from radt.procfs import boot_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunState:
    """What is needed to go on with a run. ``owner`` is None when it cannot be watched."""

    registration: Registration
    owner: ProcessId | None
    standalone: StandaloneRun | None = None
    pid: int | None = None
    started_ns: int | None = None
    ending: Ending | None = None
    boot: str = ""

    def to_json(self) -> dict[str, Any]:
        registration = replace(self.registration, env={})
        standalone = self.standalone and replace(self.standalone, registration=registration)
        ending = self.ending
        return {
            "boot": boot_id(),
            "registration": registration.to_json(),
            "standalone": standalone and standalone.to_json(),
            "owner": self.owner and [self.owner.pid, self.owner.started_ticks],
            "pid": self.pid,
            "started_ns": self.started_ns,
            "ending": ending
            and {
                "ended_ns": ending.ended_ns,
                "status": ending.status,
                "exit_code": ending.exit_code,
                "reason": ending.reason,
                "fallback": ending.fallback,
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunState:
        """
        Raises:
            ValueError: It is not what `to_json` makes.
        """
        try:
            ending, owner, standalone = data["ending"], data["owner"], data["standalone"]
            return cls(
                registration=Registration.from_json(data["registration"]),
                owner=ProcessId(*owner) if owner else None,
                standalone=StandaloneRun.from_json(standalone) if standalone else None,
                pid=data["pid"],
                started_ns=data["started_ns"],
                ending=ending
                and Ending(
                    ended_ns=ending["ended_ns"],
                    status=RunStatus(ending["status"]) if ending["status"] else None,
                    exit_code=ending["exit_code"],
                    reason=ending["reason"],
                    fallback=RunStatus(ending["fallback"]),
                ),
                boot=data["boot"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a remembered run: {error!r}") from error


class RunStates:
    """The folder of these files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def keep(self, run: RunState) -> None:
        """Remember a run, or what has changed about it."""
        path = self._path(run.registration.run_id)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(run.to_json()), encoding="utf-8")
        os.replace(temporary, path)  # noqa: PTH105 - atomic, and says so

    def has(self, run_id: str) -> bool:
        """Whether a run of this boot is being recorded."""
        try:
            known = json.loads(self._path(run_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        except (ValueError, OSError):
            return True  # nobody knows, so nobody else may take it
        return not isinstance(known, dict) or known.get("boot") == boot_id()

    def forget(self, run_id: str) -> None:
        self._path(run_id).unlink(missing_ok=True)

    def load(self) -> Iterator[RunState]:
        """All runs of this boot; files that cannot be understood are set aside."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                run = RunState.from_json(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, OSError):
                log.exception("%s", path)
                path.rename(path.with_suffix(".broken"))
                continue
            if run.boot != boot_id():
                # All of its processes are gone, and its times are of another clock: it is found
                # again in its store.
                path.unlink()
                continue
            yield run

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"
