"""The command ``dcgmi``: run on a leash, and its output understood.

Formats are those of DCGM's sources (dcgmi/Query.cpp, dcgmi/DeviceMonitor.cpp), versions 2 to 4.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radt.errors import ListenerError
from radt.listeners.dcgm_fields import Refusal, Status

if TYPE_CHECKING:
    import subprocess

NAME = "dcgmi"
#: dcgmi itself waits 5 s for a host engine that does not answer.
ANSWER_S = 10.0

#: Becomes dcgmi, and is killed by the kernel when the thread that started it ends, so also when the
#: collector is killed (PR_SET_PDEATHSIG of prctl(2), which stays over exec). In Python, since
#: util-linux's setpriv is not everywhere, and a thread may not fork and go on in Python.
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # it died before the kernel was asked
os.execv(sys.argv[2], sys.argv[2:])
"""

_TABLE_ROW = re.compile(r"\|([^|]*)\|(.*)\|\s*$")
_UUID = re.compile(r"Device UUID:\s*(GPU-\S+)")
_CARD = re.compile(r"GPU (GPU-\S+) \(EntityID: (\d+)\)")
_INSTANCE = re.compile(r"\bI \d+/(\d+)\s*$")
_INSTANCE_ENTITY = re.compile(r"GPU Instance \(EntityID: (\d+)\)")
_RESULT = re.compile(r"(?:Result|Return):?\s+(-\d+)\b")
_CULPRIT = re.compile(r"invalid field ID\.? '(\d+)'", re.IGNORECASE)
#: DCGM 2 and 3 say what went wrong in words only (errorString of dcgm_errors.c).
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
    """The host engine does not do what it is asked for; ``status`` is DCGM's code."""

    def __init__(self, message: str, status: int, remedy: str | None = None) -> None:
        super().__init__(message, remedy)
        self.status = status


@dataclass(frozen=True, slots=True)
class Inventory:
    """DCGM's numbers: of GPUs by UUID, of GPU instances by the card's UUID and NVML's id."""

    cards: Mapping[str, int]
    instances: Mapping[tuple[str, int], int]


def find() -> str | None:
    """Where dcgmi is, if it is installed."""
    return shutil.which(NAME)


def start(dcgmi: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start dcgmi; it ends with the thread that calls this. All it says comes through stdout."""
    import subprocess  # not on import: names of listeners are needed where nothing is sampled

    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), dcgmi, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ask(dcgmi: str, *arguments: str, timeout_s: float = ANSWER_S) -> tuple[int, str]:
    """Run dcgmi to its end: exit code and output.

    Raises:
        HostengineError: It does not answer in time, or cannot be run.
    """
    import subprocess

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
                "Look into the log of nv-hostengine",
            ) from None
    return process.returncode, output.decode(errors="replace")


def inventory(dcgmi: str, *, instances: bool) -> Inventory:
    """Ask for the GPUs, and for GPU instances if they are wanted.

    Raises:
        HostengineError: The host engine cannot be reached, or does not say.
    """
    cards = parse_cards(_answer(dcgmi, "discovery", "-l"))
    found = parse_instances(_answer(dcgmi, "discovery", "-c")) if instances else {}
    return Inventory(cards, found)


def _answer(dcgmi: str, *arguments: str) -> str:
    code, text = ask(dcgmi, *arguments)
    if code != 0:
        raise HostengineError(*complaint(text))
    return text


def parse_cards(text: str) -> dict[str, int]:
    """DCGM's number of each GPU by UUID, from ``dcgmi discovery -l``."""
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
    """DCGM's number of each GPU instance, from ``dcgmi discovery -c``."""
    instances: dict[tuple[str, int], int] = {}
    card = ""
    for line in text.splitlines():
        row = _TABLE_ROW.match(line.strip())
        if row is None:
            continue
        if (found := _CARD.search(row[2])) is not None:
            card = found[1]
        place, entity = _INSTANCE.search(row[1]), _INSTANCE_ENTITY.search(row[2])
        if place is not None and entity is not None:
            instances[card, int(place[1])] = int(entity[1])
    return instances


def status_of(text: str) -> int:
    """DCGM's code for what dcgmi complains of."""
    if (result := _RESULT.search(text)) is not None:
        return int(result[1])
    return next(
        (int(status) for phrase, status in _PHRASES.items() if phrase in text),
        int(Status.GENERIC_ERROR),
    )


def complaint(text: str) -> tuple[str, int]:
    """Message and code of dcgmi's complaint, for a `HostengineError`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if "rror" in line), lines[-1] if lines else "")
    return f"dcgmi: {first or 'it ended without output'}", status_of(text)


def refusal_of(text: str) -> Refusal:
    """Why ``dcgmi dmon`` does not watch the fields it was given."""
    return Refusal(
        status_of(text), text, frozenset(int(number) for number in _CULPRIT.findall(text))
    )
