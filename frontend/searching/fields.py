"""What a run can be found by: its own fields, its parameters, its tags."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from radt.frontend.catalog import STATUS_WORDS, RunEntry

_NS_PER_S = 1_000_000_000

#: Texts of a run by the names they are searched under.
TEXTS: Mapping[str, Callable[[RunEntry], str]] = {
    "status": lambda run: f"{run.record.status} {STATUS_WORDS[run.record.status]}",
    "device": lambda run: run.record.devices,
    "workload": lambda run: run.record.workload,
    "experiment": lambda run: run.record.experiment,
    "letter": lambda run: run.record.letter,
    "name": lambda run: run.record.name,
    "command": lambda run: run.record.command,
    "host": lambda run: run.record.host,
    "collocation": lambda run: run.record.collocation,
    "listener": lambda run: run.record.listeners,
    "run": lambda run: f"{run.record.run_id} {run.record.mlflow_run_id or ''}",
    "reason": lambda run: run.record.end_reason,
    "profiled": lambda run: run.profiled,
    "pruned": lambda run: run.pruned,
}
#: Ids and lists, of which no part is a number.
WORDS_ONLY = frozenset({"run", "status", "command", "reason"})
ALIASES: Mapping[str, str] = {
    "devices": "device",
    "listeners": "listener",
    "run_id": "run",
    "machine": "host",
}
#: Tags that radt and MLflow set; a word does not find them, their name does.
_OWN_TAGS = ("radt.", "mlflow.")


@dataclass(frozen=True, slots=True)
class Texts:
    """Parameters and tags by run and by key; keys casefolded, values as they are."""

    params: Mapping[str, Mapping[str, str]]
    tags: Mapping[str, Mapping[str, str]]
    keys: frozenset[str]


def duration_s(run: RunEntry, now_ns: int | None = None) -> float | None:
    """How long a run took from its workload's barrier, or has taken until now; None before.

    What an MLflow server says of a run says little of its length.
    """
    record = run.record
    if record.started_ns is None or run.remote is not None:
        return None
    end_ns = record.ended_ns
    if end_ns is None:
        if record.status.ended:
            return None
        end_ns = time.time_ns() if now_ns is None else now_ns
    return max(0, end_ns - run.origin_ns) / _NS_PER_S


def active_ns(run: RunEntry) -> int:
    """When something happened to a run last."""
    record = run.record
    return record.ended_ns or record.started_ns or record.created_ns


def everything(run: RunEntry, texts: Texts) -> str:
    """All that a word may be found in, casefolded."""
    record = run.record
    parts = [f"{run.short} {record.name}", record.experiment, record.command, record.run_id]
    parts += [record.mlflow_run_id or "", TEXTS["status"](run), record.host, record.collocation]
    parts += [f"{key}={value}" for key, value in texts.params.get(record.run_id, {}).items()]
    parts += [
        f"{key}={value}"
        for key, value in texts.tags.get(record.run_id, {}).items()
        if not key.startswith(_OWN_TAGS)
    ]
    return "\n".join(parts).casefold()
