"""Recorded facts of runs besides samples: parameters, tags, packages, and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radt import units
from radt.analysis.recording import ListenerOverhead, TrackerOverhead, read_overhead
from radt.errors import RunNotFoundError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.run_files import folders_of, opened
from radt.frontend.data.workload.subject import ShownWorkload
from radt.masking import masked
from radt.model import MissingReason
from radt.parts import from_tag
from radt.store.reader import StoreReader
from radt.store.records import GapRecord, LedgerRecord, RunRecord
from radt.store.totals import read_totals
from radt.tags import CLUSTER_PARTS, CPU, GPUS, HOST
from radt.usage import lower_bound

#: Written by `radt.provenance` before the run starts.
HARDWARE_FILE = "environment/hardware.json"
_MAX_FILE_BYTES = 1_000_000
_MAX_TEXT = 4000


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a table: a name and a value per run, in the order of the runs; None if missing.

    ``differs`` says that the runs have different values.
    """

    name: str
    values: tuple[str | None, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True, slots=True)
class RecordedMachine:
    """The machine as recorded by a run. Unknown values are None or empty.

    ``gpus`` are names and ``gpu_memory_bytes`` sizes, both by NVML's index.
    """

    host: str = ""
    system: str = ""
    cpu_model: str = ""
    logical_cores: int | None = None
    memory_bytes: int | None = None
    driver: str = ""
    gpus: Mapping[int | None, str] = field(default_factory=dict)
    gpu_memory_bytes: Mapping[int | None, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """Tables of a workload, differing values first."""

    params: tuple[Fact, ...]
    tags: tuple[Fact, ...]
    about: tuple[Fact, ...]
    totals: tuple[Fact, ...] = ()

    @property
    def tables(self) -> dict[str, tuple[Fact, ...]]:
        """The tables, by title. Totals exist only once a run has ended."""
        totals = {"Totals": self.totals} if self.totals else {}
        return {"Parameters": self.params, **totals, "Execution": self.about, "Tags": self.tags}


def facts_of(source: CachedStore, subject: ShownWorkload) -> Facts:
    """Return parameters and tags of the runs, their commands, and their total use of resources.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = subject.run_ids
    params = source.remember(("params", run_ids), lambda reader: reader.params_of(run_ids))
    tags = tags_of(source, subject)
    parts = {run_id: from_tag(tags.get(run_id, {}).get(CLUSTER_PARTS, "")) for run_id in run_ids}
    about = {
        run_id: {
            "command": run.record.command,
            "machine": run.record.host,
            "other nodes": "; ".join(part.text for part in parts[run_id]),
            "devices": run.record.devices,
            "collocation": "" if run.record.is_from_mlflow else run.record.collocation,
            "listeners": run.record.listeners,
            "run id": run_id,
            "MLflow's run id": "" if run.record.is_from_mlflow else run.record.mlflow_run_id or "",
            "process id": "" if run.record.pid is None else str(run.record.pid),
            "tracking URI": masked(run.record.tracking_uri),
            "files": run.record.spool,
        }
        for run_id, run in subject.runs.items()
    }
    return Facts(
        facts_table(run_ids, params),
        facts_table(run_ids, tags),
        facts_table(run_ids, about, sort=False),
        facts_table(run_ids, _totals_of(source, subject), sort=False),
    )


#: Totals on the page, with their names and units.
_TOTALS: Mapping[str, tuple[str, str]] = {
    "cpu_time_s": ("CPU time", "s"),
    "rss_peak_bytes": ("peak RSS of the largest process", "By"),
    "io_read_bytes": ("read", "By"),
    "io_written_bytes": ("written", "By"),
    "context_switches_voluntary": ("context switches, voluntary", ""),
    "context_switches_involuntary": ("context switches, involuntary", ""),
    "page_faults_minor": ("page faults, minor", ""),
    "page_faults_major": ("page faults, major", ""),
    "gpu_energy_j": ("energy of its GPUs", "J"),
    "cpu_energy_j": ("energy of the machine's processors", "J"),
}


def _totals_of(source: CachedStore, subject: ShownWorkload) -> Mapping[str, Mapping[str, str]]:
    def read(reader: StoreReader) -> Mapping[str, Mapping[str, str]]:
        texts = {}
        records = [run.record for run in subject.runs.values()]
        for run_id, totals in read_totals(reader, records).items():
            texts[run_id] = {
                name: units.in_unit(totals[key], unit)
                for key, (name, unit) in _TOTALS.items()
                if key in totals
            } | {
                name: f"at least {units.in_unit(totals[lower_bound(key)], unit)}"
                for key, (name, unit) in _TOTALS.items()
                if lower_bound(key) in totals
            }
        return texts

    return source.remember(("workload-totals", subject.run_ids), read)


def tags_of(source: CachedStore, subject: ShownWorkload) -> Mapping[str, Mapping[str, str]]:
    """Return tags by run id, without runs that have none.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = subject.run_ids
    return source.remember(("tags", run_ids), lambda reader: reader.tags_of(run_ids))


def facts_table(
    run_ids: Sequence[str], texts: Mapping[str, Mapping[str, str]], *, sort: bool = True
) -> tuple[Fact, ...]:
    """Return a table of texts by run and name, with differing ones first."""
    names = dict.fromkeys(name for run_id in run_ids for name in texts.get(run_id, ()))
    facts = [
        Fact(
            name,
            tuple(_shortened(texts.get(run_id, {}).get(name) or None) for run_id in run_ids),
        )
        for name in (sorted(names) if sort else names)
    ]
    facts = [fact for fact in facts if any(value is not None for value in fact.values)]
    return tuple(sorted(facts, key=lambda fact: not fact.differs))


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def machine_of(source: CachedStore, record: RunRecord, tags: Mapping[str, str]) -> RecordedMachine:
    """Return the machine of a run: from its inventory if readable here, else from its tags."""
    facts = _hardware(source, record, HARDWARE_FILE)
    return _described(record.host or tags.get(HOST, ""), facts, tags)


def machine_on(
    source: CachedStore, record: RunRecord, tags: Mapping[str, str], node: str
) -> RecordedMachine:
    """Return the machine of another node of a run that is spread over several."""
    for part in from_tag(tags.get(CLUSTER_PARTS, "")):
        if part.node == node:
            inventory = f"node-{part.number}/{HARDWARE_FILE}"
            return _described(node, _hardware(source, record, inventory), {})
    return RecordedMachine(host=node)


def _described(host: str, facts: Mapping[str, Any], tags: Mapping[str, str]) -> RecordedMachine:
    gpus = facts.get("gpus")
    names = tags.get(GPUS, "")
    listed = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    # A list may lack unresponsive GPUs, so positions in it are not indices.
    known = {_count(gpu.get("index", place)): gpu for place, gpu in enumerate(listed)}
    return RecordedMachine(
        host=host,
        system=str(facts.get("system") or ""),
        cpu_model=str(facts.get("cpu_model") or tags.get(CPU, "")),
        logical_cores=_count(facts.get("logical_cores")),
        memory_bytes=_count(facts.get("memory_bytes")),
        driver=str(facts.get("driver") or ""),
        gpus={index: str(gpu.get("name") or "") for index, gpu in known.items()}
        or dict(enumerate(names.split(", "))),
        gpu_memory_bytes={index: _count(gpu.get("memory_bytes")) for index, gpu in known.items()},
    )


def _hardware(source: CachedStore, record: RunRecord, path: str) -> Mapping[str, Any]:
    def read(_: object) -> Mapping[str, Any]:
        for folder in folders_of(record, source.address):
            try:
                with opened(folder.path, path) as file:
                    content = json.loads(file.read(_MAX_FILE_BYTES))
            except (RunNotFoundError, OSError, ValueError):
                continue  # already uploaded, or written by hand
            if isinstance(content, dict):
                return content
        return {}

    return source.remember(("workload-hardware", record.run_id, path), read)


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_count and isinstance(value, int) else None


def workload_overhead(source: CachedStore, subject: ShownWorkload) -> TrackerOverhead:
    """Return the overhead of recording the workload, as in a report.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = subject.run_ids
    return source.remember(("overhead", run_ids), lambda reader: read_overhead(reader, run_ids))


#: Maximum number of gaps of one listener that are listed individually.
MAX_GAPS = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """One listener of one run with its gaps, the longest first."""

    run: RunEntry
    record: LedgerRecord
    gaps: tuple[GapRecord, ...]

    @property
    def late_s(self) -> float | None:
        """Mean delay of readings after their due time."""
        count = self.record.received
        return self.record.late_ns / count / 1e9 if count else None

    @property
    def overhead(self) -> ListenerOverhead:
        """Overhead of its readings."""
        return ListenerOverhead.of(self.record)


@dataclass(frozen=True, slots=True)
class WorkloadLedger:
    """All listeners of a workload."""

    entries: tuple[Entry, ...]

    @property
    def expected(self) -> int:
        return sum(entry.record.expected for entry in self.entries)

    @property
    def missed(self) -> int:
        return sum(entry.record.missed for entry in self.entries)

    @property
    def is_complete(self) -> bool:
        return self.missed == 0

    @property
    def text(self) -> str:
        """Summary such as ``complete`` or ``missed 18 of 412``; empty without due readings."""
        if not self.entries:
            return "no listeners"
        if self.is_complete:
            return "complete"
        return f"missed {self.missed:,} of {self.expected:,}"

    @property
    def why(self) -> str:
        """The listeners that missed readings, and why if known."""
        words: dict[str, None] = {}
        for entry in self.entries:
            if entry.record.missed:
                reason = entry.record.reason or next(
                    (reason_of(gap) for gap in entry.gaps if gap.reason is MissingReason.LOST), ""
                )
                name = f"{entry.record.listener} of {entry.run.letter_or_name}"
                words[f"{name}: {reason}" if reason else name] = None
        return "; ".join(list(words)[:3]) + ("…" if len(words) > 3 else "")


def reason_of(gap: GapRecord) -> str:
    """Return the reason of a gap: ``lost: the collector was restarted``."""
    return gap.detail or gap.reason.value


def ledger_of(source: CachedStore, subject: ShownWorkload) -> WorkloadLedger:
    """Return the ledger of a workload, by listener, then by run.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = subject.run_ids
    records = source.remember(("ledger", run_ids), lambda reader: reader.ledger(run_ids))
    gaps = gaps_of(source, run_ids)
    by_listener: dict[tuple[str, str], list[GapRecord]] = {}
    for gap in gaps:
        by_listener.setdefault((gap.run_id, gap.listener), []).append(gap)
    return WorkloadLedger(tuple(_entries(subject.runs, records, by_listener)))


def gaps_of(source: CachedStore, run_ids: tuple[str, ...]) -> Sequence[GapRecord]:
    """Return the gaps of the runs.

    Raises:
        StoreError: The store cannot be read.
    """
    return source.remember(("gaps", run_ids), lambda reader: reader.gaps(run_ids))


def _entries(
    runs: Mapping[str, RunEntry],
    records: Iterable[LedgerRecord],
    gaps: Mapping[tuple[str, str], Sequence[GapRecord]],
) -> Iterable[Entry]:
    places = {run_id: place for place, run_id in enumerate(runs)}
    for record in sorted(records, key=lambda each: (each.listener, places[each.run_id])):
        own = sorted(
            gaps.get((record.run_id, record.listener), ()),
            key=lambda gap: gap.start_ns - gap.end_ns,
        )
        yield Entry(runs[record.run_id], record, tuple(own))
