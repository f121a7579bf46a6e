"""W&B's run folders, ``offline-run-*`` and ``run-*``, read without W&B's server.

A run's file is a log in LevelDB's format with W&B's own header; each record is a message of W&B
(``wandb_internal_pb2.Record``). Until 0.19 the package had a reader for it
(``wandb.sdk.internal.datastore``); since then, only its binaries have one, so the few lines that
extract records from blocks are our own. After damage, reading continues with the next block.

Values that a script logs become metrics, with nested names joined by dots; W&B's own measurements
become series of the listener ``wandb``. A resumed run has several folders with its id and is
imported as one run.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

from radt.errors import SourceError, UsageError
from radt.importers.below import SourceFile, find_files
from radt.importers.files import (
    MAX_DEPTH,
    FileRun,
    FileSource,
    ImportedPoint,
    RecordFile,
    file_run,
    flattened,
    guarded,
    time_ns,
)
from radt.importers.source import Media, RunFacts, SourceSeries
from radt.model import NO_STEP, RunStatus, Scope
from radt.tags import GIT_COMMIT, HOST

_messages: Any = wandb_internal_pb2
#: ``listener`` of series that W&B itself measures.
WANDB = "wandb"
_PATTERN = "run-*.wandb"
_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
#: Header of a fragment: checksum of its kind and data, length, kind.
_HEAD = struct.Struct("<IHB")
_BLOCK_BYTES = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_CHECKSUMS = {kind: zlib.crc32(bytes([kind])) for kind in (_FULL, _FIRST, _MIDDLE, _LAST)}
#: Number of records at the start of a file that contain the run's record.
_FIRST_RECORDS = 20
#: W&B's name for runs without a project.
_NO_PROJECT = "uncategorized"
_GPU = re.compile(r"gpu\.(\d+)\.(.+)")
_UNITS = {"percent": "%", "mb": "MB", "gb": "GB", "watts": "W"}
_METHOD = "W&B read it"


def source(place: Path) -> FileSource:
    """Return the runs of a folder, or of one run folder or file, as a source.

    Raises:
        UsageError: There are none.
    """
    found = find_files(place, _PATTERN)
    # The folders' names contain their start times.
    files = sorted(
        found.files,
        key=lambda file: (file.full.parent.name.removeprefix("offline-"), file.full),
    )
    if not files:
        raise UsageError(
            f"no runs of W&B in {place}", "Give a folder wandb, offline-run-… or run-…"
        )
    by_key: dict[tuple[str, str, str], list[SourceFile]] = {}
    names: dict[tuple[str, str, str], str] = {}
    for file in files:
        about = _about(file)
        run_id = about.run_id or file.full.stem.removeprefix("run-")
        key = (about.entity, about.project or _NO_PROJECT, run_id)
        by_key.setdefault(key, []).append(file)
        names[key] = about.display_name or names.get(key, "") or run_id
    runs = [
        file_run("wandb:" + "/".join(key), key[1], names[key], of_run)
        for key, of_run in by_key.items()
    ]
    return FileSource(str(place), runs, _read, found.left_out)


def _about(file: SourceFile) -> Any:
    """Return the run's record at the start of a file; an empty one if the file is damaged."""
    # Unreadable parts are reported when the run is imported.
    for record in islice(guarded(str(file), _messages_of(file), RunFacts()), _FIRST_RECORDS):
        if record.WhichOneof("record_type") == "run":
            return record.run
    return _messages.RunRecord()


def _messages_of(file: SourceFile) -> Iterator[Any]:
    for _, data in _Records(file):
        yield _messages.Record.FromString(data)


class _Records(RecordFile):
    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return ((f"record {number:,}", data) for number, data in enumerate(self._data(), start=1))

    def _data(self) -> Iterator[bytes]:
        with self._file.open() as file:
            header = file.read(len(_HEADER))
            if header != _HEADER:
                if _HEADER.startswith(header):
                    self.is_cut = True  # just created
                    return
                raise SourceError(
                    f"expected a run of W&B in {self._file}, got something else",
                    "Give a folder that W&B wrote",
                )
            parts: list[bytes] = []
            file.seek(0)
            number = 0
            while block := file.read(_BLOCK_BYTES):
                start = 0 if number else len(_HEADER)
                for kind, data in self._fragments(block, start, number * _BLOCK_BYTES):
                    if kind in (_FULL, _FIRST):
                        parts = []
                    elif not parts:
                        continue  # its beginning is damaged
                    parts = [] if kind is None else [*parts, data]
                    if kind in (_FULL, _LAST):
                        yield b"".join(parts)
                        parts = []
                number += 1
            self.is_cut |= bool(parts)

    def _fragments(
        self, block: bytes, at: int, block_at: int
    ) -> Iterator[tuple[int | None, bytes]]:
        """Yield kind and data of each fragment of a block; None if the rest is damaged."""
        is_last = len(block) < _BLOCK_BYTES
        while at < len(block) and len(block) - at >= (1 if is_last else _HEAD.size):
            head = block[at : at + _HEAD.size]
            if len(head) < _HEAD.size:
                self.is_cut = True
                return
            checksum, length, kind = _HEAD.unpack(head)
            data = block[at + _HEAD.size : at + _HEAD.size + length]
            if len(data) < length and is_last and kind in _CHECKSUMS:
                self.is_cut = True
                return
            if kind not in _CHECKSUMS or zlib.crc32(data, _CHECKSUMS[kind]) != checksum:
                self._damaged(block_at + at, len(block) - at)
                yield None, b""
                return
            yield kind, data
            at += _HEAD.size + length


def _read(run: FileRun, facts: RunFacts) -> Iterator[ImportedPoint | Media]:
    state = _State(facts, run.files[0])
    for file in run.files:
        state.file = file
        facts.status, facts.end_reason, facts.exit_code = RunStatus.RUNNING, "", None
        records = _Records(file).parts(state.take, facts, at_rest=run.at_rest)
        yield from guarded(str(file), records, facts)
        log = file.beside("files/output.log")
        if os.path.lexists(log.full):
            only = len(run.files) == 1
            yield Media("output.log" if only else f"artifacts/{file.full.stem}.log", log)
    if not facts.status.ended and run.at_rest:
        facts.status = RunStatus.KILLED
        facts.end_reason = "W&B's file has no end of the run"
    if facts.status.ended:
        facts.ended_ns = state.last_ns or None
    facts.params = {key: str(value) for key, value in flattened(state.config) if key}


@dataclass(slots=True)
class _State:
    """State of reading the records of a run."""

    facts: RunFacts
    file: SourceFile
    config: dict[str, object] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    series: dict[str, SourceSeries] = field(default_factory=dict)
    started_ns: int = 0
    last_ns: int = 0

    def take(self, data: bytes) -> Iterator[ImportedPoint | Media]:
        record = _messages.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if (take := _TAKES.get(kind)) is not None:
            yield from take(self, getattr(record, kind)) or ()

    def run(self, record: Any) -> None:
        """Read the run's record, which is repeated when a run resumes."""
        facts = self.facts
        self.started_ns = _time_ns(record.start_time)
        if facts.started_ns is None:
            facts.started_ns = self.started_ns
        self.last_ns = max(self.last_ns, self.started_ns)
        named = {
            "wandb.id": record.run_id,
            "wandb.entity": record.entity,
            "wandb.group": record.run_group,
            "wandb.job_type": record.job_type,
            "wandb.notes": record.notes,
            "wandb.sweep": record.sweep_id,
            "wandb.tags": ", ".join(record.tags),
            HOST: record.host,
            GIT_COMMIT: record.git.commit,
        }
        facts.tags |= {key: str(text) for key, text in named.items() if text}
        self.take_config(record.config)

    def take_config(self, record: Any) -> None:
        _update(self.config, record)
        self.config.pop("_wandb", None)

    def take_summary(self, record: Any) -> None:
        _update(self.summary, record)

    def environment(self, record: Any) -> None:
        """Read the command, whose parts come in several records."""
        if record.program:
            self.facts.command = " ".join([record.program, *record.args])

    def history(self, record: Any) -> Iterator[ImportedPoint | Media]:
        """Yield a row of metrics, and its files."""
        row: dict[str, object] = {}
        for item in record.item:
            _put(row, _keys(item), _value(item))
        logged_s = row.pop("_timestamp", None)
        runtime_s, step = row.pop("_runtime", None), row.pop("_step", record.step.num)
        if isinstance(logged_s, (int, float)):
            at_ns = time_ns(logged_s)
        elif isinstance(runtime_s, (int, float)):
            at_ns = self.started_ns + time_ns(runtime_s)
        else:
            at_ns = self.last_ns
        self.last_ns = max(self.last_ns, at_ns)
        at = int(step) if isinstance(step, (int, float)) else NO_STEP
        self.logged |= row.keys()
        yield from self._numbers(row, at_ns, at)
        yield from self._files(row)

    def stats(self, record: Any) -> Iterator[ImportedPoint]:
        """Yield W&B's measurements."""
        at_ns = _time_ns(record.timestamp)
        self.last_ns = max(self.last_ns, at_ns)
        for item in record.item:
            value = _value(item)
            if isinstance(value, (int, float)) and (number := _float(value)) is not None:
                key = f"system/{item.key}"
                if key not in self.series:
                    self.series[key] = _measured(str(item.key))
                yield ImportedPoint(self.series[key], at_ns, number)

    def output(self, record: Any) -> None:
        self.last_ns = max(self.last_ns, _time_ns(record.timestamp))

    def exit(self, record: Any) -> Iterator[ImportedPoint]:
        """Read the end of the run, and yield metrics that only its summary has."""
        facts = self.facts
        facts.exit_code = int(record.exit_code)
        facts.status = RunStatus.FAILED if facts.exit_code else RunStatus.FINISHED
        if facts.exit_code:
            facts.end_reason = f"exit code {facts.exit_code}"
        self.last_ns = max(self.last_ns, self.started_ns + time_ns(record.runtime))
        more = {
            key: value
            for key, value in self.summary.items()
            if key not in self.logged and not key.startswith("_")
        }
        self.summary = {}  # a resumed run writes a new summary
        yield from self._numbers(more, self.last_ns, NO_STEP)

    def _numbers(self, row: Mapping[str, object], at_ns: int, step: int) -> Iterator[ImportedPoint]:
        for key, value in flattened(_without_media(row)):
            if isinstance(value, (int, float)) and (number := _float(value)) is not None:
                if key not in self.series:
                    self.series[key] = SourceSeries(key)
                yield ImportedPoint(self.series[key], at_ns, number, step)

    def _files(self, row: object) -> Iterator[Media]:
        if not isinstance(row, dict):
            return
        path = row.get("path")
        if "_type" in row and isinstance(path, str):
            yield Media(f"artifacts/{path}", self.file.beside(f"files/{path}"))
            return
        for value in row.values():
            yield from self._files(value)


_TAKES: Mapping[str, Callable[[_State, Any], Iterator[ImportedPoint | Media] | None]] = {
    "run": _State.run,
    "config": _State.take_config,
    "environment": _State.environment,
    "summary": _State.take_summary,
    "history": _State.history,
    "stats": _State.stats,
    "output_raw": _State.output,
    "exit": _State.exit,
}


def _measured(key: str) -> SourceSeries:
    """Return the series of a measurement; W&B documents the names."""
    unit = next((unit for ending, unit in _UNITS.items() if key.lower().endswith(ending)), "")
    if (gpu := _GPU.fullmatch(key)) is not None:
        return SourceSeries(f"system/gpu.{gpu[2]}", Scope.GPU, WANDB, unit, f"gpu{gpu[1]}", _METHOD)
    scope = Scope.RUN if key.startswith("proc.") else Scope.HOST
    return SourceSeries(f"system/{key}", scope, WANDB, unit, "", _METHOD)


def _keys(item: Any) -> Sequence[str]:
    return list(item.nested_key) or [str(item.key)]


def _value(item: Any) -> object:
    """Return the value of an item.

    Raises:
        RecursionError: Its brackets are nested too deep.
    """
    try:
        value: object = json.loads(item.value_json)
    except ValueError:
        return str(item.value_json)
    return value


def _update(tree: dict[str, object], record: Any) -> None:
    for item in record.update:
        _put(tree, _keys(item), _value(item))
    for item in record.remove:
        _remove(tree, _keys(item))


def _put(tree: dict[str, object], keys: Sequence[str], value: object) -> None:
    """Set a nested value.

    Raises:
        ValueError: Names are nested too deep.
    """
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"{len(keys):,} nested names")
    for key in keys[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = tree[key] = {}
        tree = below
    tree[keys[-1]] = value


def _remove(tree: dict[str, object], keys: Sequence[str]) -> None:
    for key in keys[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            return
        tree = below
    tree.pop(keys[-1], None)


def _without_media(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row without images, tables and histograms, whose numbers are not metrics."""
    return {
        key: _without_media(value) if isinstance(value, dict) else value
        for key, value in row.items()
        if not (isinstance(value, dict) and "_type" in value)
    }


def _float(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _time_ns(time: Any) -> int:
    return time_ns(time.seconds) + int(time.nanos)
