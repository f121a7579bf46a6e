"""Queries the host engine with ``dcgmi``: discovery, and ``dcgmi dmon``, one process per card.

Formats are taken from DCGM's sources (dcgmi/Query.cpp, dcgmi/DeviceMonitor.cpp), versions 2 to 4.

dmon prints a row per interval. It creates its own groups, named after its process, and the host
engine removes them when its connection ends. Only the newest row is used, with its time of arrival.
dmon prints three decimals, and "N/A" for missing values.

On a machine where only some cards are divided (MIG), dmon prints only those
(DeviceMonitor::LockWatchAndUpdate): the values of the others are missing.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from radt.errors import ListenerError
from radt.listeners.dcgm_fields import Refusal, Refused, Status, accept
from radt.model import MissingReason
from radt.processes import Backoff

NAME = "dcgmi"
#: dcgmi itself waits 5 s for a host engine that does not answer.
ANSWER_S = 10.0

#: Becomes dcgmi; the kernel kills it when the thread that started it ends, even if the collector is
#: killed (PR_SET_PDEATHSIG of prctl(2), which survives exec). In Python, because util-linux's
#: setpriv is not available everywhere, and a forked thread must not continue in Python.
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # it died before the prctl
os.execv(sys.argv[2], sys.argv[2:])
"""

_TABLE_ROW = re.compile(r"\|([^|]*)\|(.*)\|\s*$")
_UUID = re.compile(r"Device UUID:\s*(GPU-\S+)")
_CARD = re.compile(r"GPU (GPU-\S+) \(EntityID: (\d+)\)")
_INSTANCE = re.compile(r"\bI \d+/(\d+)\s*$")
_INSTANCE_ENTITY = re.compile(r"GPU Instance \(EntityID: (\d+)\)")
_RESULT = re.compile(r"(?:Result|Return):?\s+(-\d+)\b")
_CULPRIT = re.compile(r"invalid field ID\.? '(\d+)'", re.IGNORECASE)
#: DCGM 2 and 3 report errors only as texts (errorString of dcgm_errors.c).
_PHRASES = {
    "Host engine connection invalid": Status.CONNECTION_NOT_VALID,
    "unable to establish a connection": Status.CONNECTION_NOT_VALID,
    "connection to the host engine is not valid": Status.CONNECTION_NOT_VALID,
    "module of DCGM that is not currently loaded": Status.MODULE_NOT_LOADED,
    "third-party Profiling module": Status.PROFILING_LIBRARY_ERROR,
    "Profiling is not supported": Status.PROFILING_NOT_SUPPORTED,
    "cannot be collected in a single pass": Status.PROFILING_MULTI_PASS,
    "host engine to be running as root": Status.REQUIRES_ROOT,
    "running as non-root": Status.REQUIRES_ROOT,
    "newer driver version": Status.INSUFFICIENT_DRIVER_VERSION,
    "invalid field ID": Status.UNKNOWN_FIELD,
    "Not permissioned": Status.NO_PERMISSION,
    "not supported": Status.NOT_SUPPORTED,
}


class HostengineError(ListenerError):
    """The host engine refused a request; ``status`` is DCGM's code."""

    def __init__(self, message: str, status: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class Entities:
    """DCGM's ids: of GPUs by UUID, of GPU instances by the card's UUID and NVML's id."""

    cards: Mapping[str, int]
    instances: Mapping[tuple[str, int], int]


def find() -> str | None:
    """Return the path of dcgmi, if it is installed."""
    return shutil.which(NAME)


def start(dcgmi: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start dcgmi, which ends with the calling thread; all of its output is in stdout."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), dcgmi, *arguments],
        env=os.environ | {"LC_ALL": "C"},  # numbers with decimal points
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ask(dcgmi: str, *arguments: str, timeout_s: float = ANSWER_S) -> tuple[int, str]:
    """Run dcgmi to its end; return exit code and output.

    Raises:
        HostengineError: It does not answer in time, or cannot be run.
    """
    try:
        process = start(dcgmi, arguments)
    except OSError as error:
        raise HostengineError(f"{dcgmi}: {error}", Status.GENERIC_ERROR) from error
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            command = " ".join((NAME, *arguments))
            raise HostengineError(
                f"{command} did not answer within {timeout_s:g} s",
                Status.CONNECTION_NOT_VALID,
                "Read the log of nv-hostengine",
            ) from None
    return process.returncode, output.decode(errors="replace")


def inventory(dcgmi: str, *, instances: bool) -> Entities:
    """List the GPUs, and GPU instances if requested; raise HostengineError if that fails."""
    cards = parse_cards(_answer(dcgmi, "discovery", "-l"))
    by_id = parse_instances(_answer(dcgmi, "discovery", "-c")) if instances else {}
    return Entities(cards, by_id)


def _answer(dcgmi: str, *arguments: str) -> str:
    code, text = ask(dcgmi, *arguments)
    if code != 0:
        raise HostengineError(*complaint(text))
    return text


def parse_cards(text: str) -> dict[str, int]:
    """Return DCGM's id of each GPU by UUID, from ``dcgmi discovery -l``."""
    cards: dict[str, int] = {}
    number: int | None = None
    for line in text.splitlines():
        row = _TABLE_ROW.match(line.strip())
        if row is None:
            continue
        if (cell := row[1].strip()).isdigit():
            number = int(cell)
        if (uuid := _UUID.search(row[2])) is not None and number is not None:
            cards[uuid[1]] = number
    return cards


def parse_instances(text: str) -> dict[tuple[str, int], int]:
    """Return DCGM's id of each GPU instance, from ``dcgmi discovery -c``."""
    instances: dict[tuple[str, int], int] = {}
    card = ""
    for line in text.splitlines():
        row = _TABLE_ROW.match(line.strip())
        if row is None:
            continue
        if (match := _CARD.search(row[2])) is not None:
            card = match[1]
        place, entity = _INSTANCE.search(row[1]), _INSTANCE_ENTITY.search(row[2])
        if place is not None and entity is not None:
            instances[card, int(place[1])] = int(entity[1])
    return instances


def status_of(text: str) -> int:
    """Return DCGM's code for an error message of dcgmi."""
    if (result := _RESULT.search(text)) is not None:
        return int(result[1])
    return next(
        (int(status) for phrase, status in _PHRASES.items() if phrase in text),
        int(Status.GENERIC_ERROR),
    )


def complaint(text: str) -> tuple[str, int]:
    """Return message and code of dcgmi's error, for a `HostengineError`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "rror" in line), lines[-1] if lines else "")
    return f"dcgmi: {first or 'it ended without output'}", status_of(text)


def refusal_of(text: str) -> Refusal:
    """Return why ``dcgmi dmon`` does not watch its fields."""
    return Refusal(
        status_of(text), text, frozenset(int(number) for number in _CULPRIT.findall(text))
    )


log = logging.getLogger(__name__)

#: DCGM does not sample performance counters more often.
MIN_INTERVAL_S = 0.1
#: The place of a value: GPU instance (None for the card itself) and field.
Key = tuple[int | None, int]

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_TERMINATE_S = 2.0
#: Number of error lines to keep.
_KEPT_LINES = 20
_ROW = re.compile(r"\s*(GPU|GPU-I)\s+(\d+)\s+(.*)$")
_BLANK = "N/A"
#: The beginnings of rows.
CARD, INSTANCE = "GPU", "GPU-I"


@dataclass(frozen=True, slots=True)
class FieldValue:
    """A value and its time (monotonic); None for a blank value without a reason."""

    value: float | MissingReason | None
    at_ns: int


@dataclass(frozen=True, slots=True)
class WatchedValues:
    """The newest values of a watch.

    ``problem`` says why there are no new values at the moment, else empty. ``unknown`` are GPU
    instances that DCGM did not know when the watch began: it notices new ones after some seconds.
    ``begun_ns`` is the last start of the process (monotonic).
    """

    values: Mapping[Key, FieldValue] = field(default_factory=dict)
    refused: Mapping[int, Refused] = field(default_factory=dict)
    problem: str = ""
    unknown: frozenset[int] = frozenset()
    begun_ns: int = 0


class DmonEngine:
    """Starts and ends the processes; usable from any thread until `close`."""

    def __init__(self, dcgmi: str, interval_s: float) -> None:
        self._dcgmi = dcgmi
        self._interval_s = interval_s
        self._watches: list[DmonWatch] = []

    def watch(self, uuid: str, instances: frozenset[int], fields: Sequence[int]) -> DmonWatch:
        """Start to watch a card (by UUID) and its GPU instances (by NVML's ids)."""
        watch = DmonWatch(self._dcgmi, self._interval_s, uuid, instances, fields)
        self._watches = [other for other in self._watches if other.alive]
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        """End all watches."""
        for watch in self._watches:
            watch.close()
        for watch in self._watches:
            watch.wait()
        self._watches.clear()


class DmonWatch:
    """A thread with a process: finds the fields that can be watched, reads and restarts dmon.

    The thread itself must start the process, which ends with the thread (`start`).
    """

    def __init__(
        self,
        dcgmi: str,
        interval_s: float,
        uuid: str,
        instances: frozenset[int],
        fields: Sequence[int],
    ) -> None:
        self._dcgmi = dcgmi
        self._delay_ms = max(1, round(max(interval_s, MIN_INTERVAL_S) * 1000))
        self._uuid = uuid
        self._instances = instances
        self._all = tuple(fields)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._values: dict[Key, FieldValue] = {}
        self._refused: dict[int, Refused] = {}
        self._problem = ""
        self._begun_ns = 0
        self._unknown: frozenset[int] = frozenset()
        self._places: dict[tuple[str, int], int | None] = {}
        self._thread = threading.Thread(target=self._run, name="dcgmi-dmon", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def read(self) -> WatchedValues:
        """Return the newest values, without waiting for new ones."""
        with self._lock:
            values, refused = dict(self._values), dict(self._refused)
            return WatchedValues(values, refused, self._problem, self._unknown, self._begun_ns)

    def close(self) -> None:
        """Terminate the process; the host engine removes its groups and watches."""
        with self._lock:
            self._over.set()
            if self._process is not None:
                self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended; kill it if it does not."""
        self._thread.join(_TERMINATE_S)
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._thread.join(_TERMINATE_S)

    # Thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._over.is_set():
            begun_s = time.monotonic()
            try:
                self._once()
            except HostengineError as error:
                self._report(error.message)
                if error.status == Status.CONNECTION_NOT_VALID:
                    with self._lock:
                        self._refused = {}  # another host engine may permit more
            except Exception as error:
                log.exception("dcgmi dmon")
                self._report(f"{type(error).__name__}: {error}")
            self._over.wait(backoff.next_s(time.monotonic() - begun_s))

    def _once(self) -> None:
        """Find the card, and read it until the process ends unexpectedly."""
        entities = self._entities()
        known = {number for number, why in self._refused.items() if why.lasting}
        fields = tuple(number for number in self._all if number not in known)
        rows, text = self._stream(entities, fields)
        if rows == 0 and not self._over.is_set():
            fields = self._settle(entities, fields, text)
            rows, text = self._stream(entities, fields) if fields else (0, text)
        if not self._over.is_set():
            raise HostengineError(*complaint(text))

    def _entities(self) -> str:
        """Return the entities to watch, in the format of ``dcgmi -i``."""
        known = inventory(self._dcgmi, instances=bool(self._instances))
        if self._uuid not in known.cards:
            raise HostengineError(f"DCGM does not know {self._uuid}", Status.GPU_NOT_SUPPORTED)
        card = known.cards[self._uuid]
        places: dict[tuple[str, int], int | None] = {(CARD, card): None}
        for gpu_id in self._instances:
            number = known.instances.get((self._uuid, gpu_id))
            if number is not None:
                places[INSTANCE, number] = gpu_id
        self._places = places
        with self._lock:
            self._unknown = self._instances - set(places.values())
        return ",".join(f"{'i:' if kind == INSTANCE else ''}{number}" for kind, number in places)

    def _settle(self, entities: str, fields: tuple[int, ...], text: str) -> tuple[int, ...]:
        """Return the fields that can be watched, after watching all failed with ``text``."""
        accepted: list[int] = []
        answers = [text]  # starts with that of the first attempt

        def attempt(some: Sequence[int]) -> Refusal | None:
            if answers:
                answer = answers.pop()
            else:
                rows, answer = self._stream(entities, (*accepted, *some), once=True)
                if rows:
                    accepted.extend(some)
                    return None
            refusal = refusal_of(answer)
            if refusal.status == Status.CONNECTION_NOT_VALID or self._over.is_set():
                raise HostengineError(*complaint(answer))
            return refusal

        refused = accept(fields, attempt)
        with self._lock:
            self._refused = self._refused | refused
        return tuple(accepted)

    def _arguments(self, entities: str, fields: Sequence[int]) -> tuple[str, ...]:
        numbers = ",".join(map(str, fields))
        return "dmon", "-e", numbers, "-i", entities, "-d", str(self._delay_ms)

    def _stream(
        self, entities: str, fields: Sequence[int], *, once: bool = False
    ) -> tuple[int, str]:
        """Read a dmon process to its end; return the number of rows and its last other output.

        With ``once``, it only checks whether they can be watched: DCGM has no values yet.
        """
        rows, lines = 0, list[str]()
        arguments = self._arguments(entities, fields)
        with self._lock:
            if self._over.is_set():
                return 0, ""
            process = start(self._dcgmi, (*arguments, "-c", "1") if once else arguments)
            self._process = process
            self._begun_ns = time.monotonic_ns()
        try:
            assert process.stdout is not None
            for raw in process.stdout:
                now_ns = time.monotonic_ns()
                line = raw.decode(errors="replace")
                values = self._parse(line, fields, now_ns)
                if values:
                    rows += 1
                    if not once:
                        self._keep(values)
                else:
                    lines = [*lines[1 - _KEPT_LINES :], line]
        finally:
            with self._lock:
                self._process = None
            process.kill()
            with suppress(OSError):
                process.communicate()
        return rows, "".join(lines)

    def _parse(self, line: str, fields: Sequence[int], now_ns: int) -> dict[Key, FieldValue]:
        """Return the values of a row; none if the line is not a row."""
        row = _ROW.match(line)
        if row is None:
            return {}
        cells, place = row[3].split(), (row[1], int(row[2]))
        if len(cells) != len(fields) or place not in self._places:
            return {}
        gpu_id = self._places[place]
        return {
            (gpu_id, number): FieldValue(_value(cell), now_ns)
            for number, cell in zip(fields, cells, strict=True)
        }

    def _keep(self, values: dict[Key, FieldValue]) -> None:
        with self._lock:
            self._values.update(values)
            self._problem = ""

    def _report(self, text: str) -> None:
        with self._lock:
            self._problem = text


def _value(cell: str) -> float | MissingReason | None:
    if cell == _BLANK:
        return None
    try:
        return float(cell)
    except ValueError:  # too wide for its column: dmon replaces the end by "..."
        return MissingReason.LOST
