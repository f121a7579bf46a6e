"""How well runs were recorded, and under which conditions: ledger, events, tags, epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import TextClause, bindparam, text

from radt.model import MarkerKind
from radt.store.reader import StoreReader
from radt.store.records import LedgerRecord, RunRecord
from radt.store.tables import LEDGERS
from radt.store.tags import PRUNED, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES

#: Below this share of what was due, means and peaks may have missed something.
COMPLETE = 0.99
#: What happens to listeners and the collector, as `radt.collector` marks it.
_TROUBLE = ("restarted", "dropped", "unavailable", "unreadable")

#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
_RUNS_PER_STATEMENT = 400

_COMMIT, _GPUS, _PYTHON, _DRIVER = "radt.git.commit", "radt.gpus", "radt.python", "radt.driver"
_TAGS = (_COMMIT, _GPUS, _PYTHON, _DRIVER, PRUNED, TRACKER_CPU_S, TRACKER_JOURNAL_BYTES)


def _of_runs(statement: str, **given: object) -> TextClause:
    return text(statement).bindparams(bindparam("ids", expanding=True), **given)


_EPOCHS = _of_runs(
    "SELECT run_id, COUNT(*), MIN(end_ns), MAX(end_ns) FROM marker WHERE run_id IN :ids "
    "AND kind = :kind AND process = '' AND end_ns IS NOT NULL GROUP BY run_id",
    kind=MarkerKind.EPOCH.value,
)
_EVENTS = _of_runs(
    "SELECT run_id, name FROM marker WHERE run_id IN :ids AND kind = :kind "
    "ORDER BY run_id, start_ns, marker_no",
    kind=MarkerKind.EVENT.value,
)
_LEDGERS = _of_runs(f"{LEDGERS.select} WHERE run_id IN :ids ORDER BY run_id, listener")
_TAGS_OF = _of_runs(
    "SELECT run_id, key, value FROM tag WHERE run_id IN :ids AND key IN :keys"
).bindparams(bindparam("keys", expanding=True))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What runs should have in common that are compared; empty where it is not known."""

    commit: str = ""
    gpus: str = ""
    driver: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class Epochs:
    """How many ended; ``period_s`` is from one's end to the next one's, None for fewer than two."""

    count: int = 0
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunRecording:
    """How one run was recorded.

    Attributes:
        epochs: Those that ended.
        incomplete: Listeners that read less than `COMPLETE` of what was due, and what part of it.
        events: What went wrong meanwhile, in order ("listener smi restarted").
        conditions: Under which it ran.
        is_thinned: Its samples were thinned (`radt prune`).
        tracker_cpu_s: CPU time of the collector and what it started, from the run's start to its
            end, whatever else was recorded meanwhile; None where it is not known.
        journal_bytes: What the script's processes wrote into their journals; None likewise.
    """

    epochs: Epochs = Epochs()
    incomplete: tuple[tuple[str, float], ...] = ()
    events: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    is_thinned: bool = False
    tracker_cpu_s: float | None = None
    journal_bytes: int | None = None


Ledgers = Mapping[str, Sequence[LedgerRecord]]


def read_ledgers(reader: StoreReader, runs: Sequence[RunRecord]) -> Ledgers:
    """What listeners of runs should have read and did, by run id; runs without any are left out.

    Raises:
        StoreError: The store cannot be read.
    """
    found: dict[str, list[LedgerRecord]] = {}
    for ledger in map(LEDGERS.read, _rows(reader, _LEDGERS, runs)):
        found.setdefault(ledger.run_id, []).append(ledger)
    return found


def read_recordings(
    reader: StoreReader, runs: Sequence[RunRecord], ledgers: Ledgers
) -> dict[str, RunRecording]:
    """How the runs were recorded, by their ids.

    Args:
        reader: The store.
        runs: These.
        ledgers: Of them.

    Raises:
        StoreError: The store cannot be read.
    """
    epochs = {
        str(run_id): Epochs(count, (last_ns - first_ns) / 1e9 / (count - 1) if count > 1 else None)
        for run_id, count, first_ns, last_ns in _rows(reader, _EPOCHS, runs)
    }
    events: dict[str, list[str]] = {}
    for run_id, name in _rows(reader, _EVENTS, runs):
        if str(name).endswith(_TROUBLE):
            events.setdefault(str(run_id), []).append(str(name))
    tags: dict[str, dict[str, str]] = {}
    for run_id, key, value in _rows(reader, _TAGS_OF, runs, keys=list(_TAGS)):
        tags.setdefault(str(run_id), {})[str(key)] = str(value)
    return {
        run.run_id: _recording(
            epochs.get(run.run_id, Epochs()),
            ledgers.get(run.run_id, ()),
            events.get(run.run_id, ()),
            tags.get(run.run_id, {}),
        )
        for run in runs
    }


def _recording(
    epochs: Epochs, ledgers: Iterable[LedgerRecord], events: Iterable[str], tags: Mapping[str, str]
) -> RunRecording:
    journal_bytes = _number(tags.get(TRACKER_JOURNAL_BYTES, ""))
    shares = ((one.listener, one.received / one.expected) for one in ledgers if one.expected)
    return RunRecording(
        epochs,
        tuple((listener, share) for listener, share in shares if share < COMPLETE),
        tuple(events),
        Conditions(*(tags.get(tag, "") for tag in (_COMMIT, _GPUS, _DRIVER, _PYTHON))),
        PRUNED in tags,
        _number(tags.get(TRACKER_CPU_S, "")),
        None if journal_bytes is None else int(journal_bytes),
    )


def _number(value: str) -> float | None:
    """Tags are texts, and users may set them, too."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def _rows(
    reader: StoreReader, statement: TextClause, runs: Sequence[RunRecord], **given: object
) -> Iterator[Any]:
    for start in range(0, len(runs), _RUNS_PER_STATEMENT):
        some = [run.run_id for run in runs[start : start + _RUNS_PER_STATEMENT]]
        with reader.snapshot() as connection:
            yield from connection.execute(statement, {"ids": some, **given}).all()
