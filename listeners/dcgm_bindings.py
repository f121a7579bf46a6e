"""The host engine through DCGM's own Python bindings, which come with DCGM and not from PyPI.

They connect to ``localhost``; with no address they would start a host engine of their own, inside
the collector. Calls go through ``dcgm_agent``, whose functions are those of NVIDIA's C API one by
one and have kept their form from DCGM 3 on. All from the thread that samples.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radt.listeners.dcgm_engine import (
    MIN_INTERVAL_S,
    Engine,
    HostengineError,
    Key,
    Snapshot,
    Taken,
    Watch,
)
from radt.listeners.dcgm_fields import (
    Refusal,
    Refused,
    Status,
    accept,
    reason_of,
    value_of,
)
from radt.model import MissingReason
from radt.procfs import process_stat

log = logging.getLogger(__name__)

#: Where DCGM 4 and DCGM 3 put them.
FOLDERS = (
    Path("/usr/share/datacenter-gpu-manager-4/bindings/python3"),
    Path("/usr/local/dcgm/bindings/python3"),
)
_MODULE = "pydcgm"

_CONNECT_MS = 2000
#: How long the host engine keeps values: we want the newest, and another of when we come late.
_KEEP_S = 0.0
_KEEP_SAMPLES = 2
#: dcgm_fields.h, dcgm_field_entity_group_t.
_CARD, _INSTANCE = 1, 4
_DOUBLE = ord("d")
_NOT_YET = frozenset({Status.NO_DATA, Status.NOT_WATCHED})
#: Process namespace, process, its start: a group of ours, and whether its maker lives.
_NAME = re.compile(r"radt-(\d+)-(\d+)-(\d+)-\d+$")


def find() -> Path | None:
    """Where the bindings are: where Python looks for modules, or where packages put them.

    Does not load them.
    """
    spec = importlib.util.find_spec(_MODULE)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    return next((path for path in FOLDERS if (path / f"{_MODULE}.py").is_file()), None)


class _Modules:
    """The bindings, imported."""

    def __init__(self, path: Path) -> None:
        # At the end of the path and for these imports only: the folder has modules of such names
        # as "logger" and "utils".
        added = str(path) not in sys.path
        if added:
            sys.path.append(str(path))
        try:
            self.pydcgm: Any = importlib.import_module(_MODULE)
            self.agent: Any = importlib.import_module("dcgm_agent")
            self.structs: Any = importlib.import_module("dcgm_structs")
        finally:
            if added:
                sys.path.remove(str(path))


class BindingsEngine(Engine):
    """A connection to the host engine.

    Raises:
        ImportError, OSError: The bindings or libdcgm cannot be loaded.
        HostengineError: The host engine cannot be reached, or is of another version.
    """

    def __init__(self, path: Path, interval_s: float) -> None:
        modules = _Modules(path)
        self._agent, self._structs = modules.agent, modules.structs
        self.interval_us = round(max(interval_s, MIN_INTERVAL_S) * 1e6)
        self._made = 0
        self._watches: list[BindingsWatch] = []
        try:
            self._connection: Any = modules.pydcgm.DcgmHandle(
                ipAddress="localhost", timeoutMs=_CONNECT_MS
            )
        except self._structs.DCGMError as error:
            raise self._complaint(error) from error
        self._destroy_leftovers()

    def watch(self, uuid: str, instances: frozenset[int], fields: Sequence[int]) -> Watch:
        watch = BindingsWatch(self, uuid, instances, fields)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        for watch in list(self._watches):
            watch.close()
        try:
            self._connection.Shutdown()
        except self._structs.DCGMError as error:  # the host engine has gone before
            log.debug("%s", error)

    def forget(self, watch: BindingsWatch) -> None:
        """It is closed."""
        if watch in self._watches:
            self._watches.remove(watch)

    def call(self, function: str, *arguments: Any) -> Any:
        """A function of dcgm_agent on this connection.

        Raises:
            HostengineError: It failed.
        """
        try:
            return getattr(self._agent, function)(self._connection.handle, *arguments)
        except self._structs.DCGMError as error:
            raise self._complaint(error) from error

    def new_name(self) -> str:
        """For a group or field group of this process, unlike all others of the machine."""
        self._made += 1
        pid = os.getpid()
        return f"radt-{_pid_namespace()}-{pid}-{_started(pid)}-{self._made}"

    def pairs(self, entities: Sequence[tuple[int, int]]) -> list[Any]:
        """Entities as the bindings want them."""
        made = []
        for group, number in entities:
            pair = self._structs.c_dcgmGroupEntityPair_t()
            pair.entityGroupId, pair.entityId = group, number
            made.append(pair)
        return made

    def empty_group(self) -> Any:
        return self.call("dcgmGroupCreate", self._structs.DCGM_GROUP_EMPTY, self.new_name())

    def cards(self) -> dict[str, int]:
        """DCGM's number of each GPU by UUID."""
        numbers = self.call("dcgmGetAllDevices")
        attributes = ((number, self.call("dcgmGetDeviceAttributes", number)) for number in numbers)
        return {_text(found.identifiers.uuid): int(number) for number, found in attributes}

    def instances(self, card: int) -> dict[int, int]:
        """DCGM's number of each GPU instance of a card, by NVML's id."""
        hierarchy = self.call("dcgmGetGpuInstanceHierarchy")
        return {
            int(entry.info.nvmlInstanceId): int(entry.entity.entityId)
            for entry in hierarchy.entityList[: hierarchy.count]
            if entry.entity.entityGroupId == _INSTANCE and entry.parent.entityId == card
        }

    def _destroy_leftovers(self) -> None:
        """Groups of radt processes that are dead. Those of others are nobody's business."""
        for number in self.call("dcgmGroupGetAllIds"):
            group = ctypes.c_void_p(number)
            if _orphaned(_text(self.call("dcgmGroupGetInfo", group).groupName)):
                self.call("dcgmGroupDestroy", group)
        found = self.call("dcgmFieldGroupGetAll")
        for entry in found.fieldGroups[: found.numFieldGroups]:
            if _orphaned(_text(entry.fieldGroupName)):
                self.call("dcgmFieldGroupDestroy", ctypes.c_void_p(entry.fieldGroupId))

    @staticmethod
    def _complaint(error: Any) -> HostengineError:
        status = int(getattr(error, "value", Status.GENERIC_ERROR))
        return HostengineError(f"DCGM: {error}", status)


class BindingsWatch(Watch):
    """A group with the card and its instances, and the field groups that are watched of it."""

    def __init__(
        self,
        engine: BindingsEngine,
        uuid: str,
        instances: frozenset[int],
        fields: Sequence[int],
    ) -> None:
        self._engine = engine
        self._fields: list[int] = []
        self._field_groups: list[Any] = []
        cards = engine.cards()
        if uuid not in cards:
            raise HostengineError(f"DCGM does not know {uuid}", Status.GPU_NOT_SUPPORTED)
        card = cards[uuid]
        self._places: dict[tuple[int, int], int | None] = {(_CARD, card): None}
        if instances:
            known = engine.instances(card)
            for gpu_id in sorted(instances & known.keys()):
                self._places[_INSTANCE, known[gpu_id]] = gpu_id
        self._unknown = instances - set(self._places.values())
        self._pairs = engine.pairs(list(self._places))
        self._group = engine.empty_group()
        try:
            for group, number in self._places:
                engine.call("dcgmGroupAddEntity", self._group, group, number)
            self._refused: dict[int, Refused] = accept(fields, self._attempt)
        except HostengineError:
            self.close()
            raise

    def read(self) -> Snapshot:
        try:
            found = self._engine.call("dcgmEntitiesGetLatestValues", self._pairs, self._fields, 0)
        except HostengineError as error:
            if error.status == Status.CONNECTION_NOT_VALID:
                raise
            return Snapshot({}, self._refused, error.message, self._unknown)
        now_ns = time.monotonic_ns()
        to_monotonic_ns = now_ns - time.time_ns()
        values: dict[Key, Taken] = {}
        for raw in found:
            if raw.status in _NOT_YET:
                continue
            key = self._places[raw.entityGroupId, raw.entityId], int(raw.fieldId)
            # Microseconds since 1970; an error has no time.
            at_ns = raw.ts * 1000 + to_monotonic_ns if raw.status == Status.OK else now_ns
            # If the wall clock was set back, the newest value seems to be of the future, and those
            # after it would seem to be older than it.
            if at_ns <= now_ns:
                values[key] = Taken(_value(raw), at_ns)
        return Snapshot(values, self._refused, "", self._unknown)

    def close(self) -> None:
        for field_group in self._field_groups:
            self._try("dcgmUnwatchFields", self._group, field_group)
            self._try("dcgmFieldGroupDestroy", field_group)
        self._field_groups.clear()
        self._try("dcgmGroupDestroy", self._group)
        self._engine.forget(self)

    def _attempt(self, fields: Sequence[int]) -> Refusal | None:
        call = self._engine.call
        try:
            field_group = call("dcgmFieldGroupCreate", list(fields), self._engine.new_name())
        except HostengineError as error:
            return self._refusal(error)
        try:
            call(
                "dcgmWatchFields",
                *(self._group, field_group, self._engine.interval_us, _KEEP_S, _KEEP_SAMPLES),
            )
        except HostengineError as error:
            # Those of the fields that are not the trouble may be watched already.
            self._try("dcgmUnwatchFields", self._group, field_group)
            self._try("dcgmFieldGroupDestroy", field_group)
            return self._refusal(error)
        self._field_groups.append(field_group)
        self._fields.extend(fields)
        return None

    @staticmethod
    def _refusal(error: HostengineError) -> Refusal:
        if error.status == Status.CONNECTION_NOT_VALID:
            raise error
        return Refusal(error.status, error.message)

    def _try(self, function: str, *arguments: Any) -> None:
        """Tidy up as far as it goes: the host engine may be gone, or the device."""
        try:
            self._engine.call(function, *arguments)
        except HostengineError as error:
            log.debug("%s: %s", function, error)


def _value(raw: Any) -> float | MissingReason | None:
    if raw.status != Status.OK:
        return reason_of(raw.status)
    return value_of(raw.value.dbl if raw.fieldType == _DOUBLE else int(raw.value.i64))


def _text(raw: bytes | str) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw


def _orphaned(name: str) -> bool:
    """Whether a group is one of radt's whose process is dead; unknown in another container."""
    match = _NAME.match(name)
    if match is None:
        return False
    namespace, pid, started = (int(part) for part in match.groups())
    return namespace == _pid_namespace() and _started(pid) != started


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _started(pid: int) -> int:
    """When a process was started, in ticks after boot; -1 if there is none."""
    stat = process_stat(pid)
    return -1 if stat is None else stat.started_ticks
