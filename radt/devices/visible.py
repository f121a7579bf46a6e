"""The devices that ``CUDA_VISIBLE_DEVICES`` makes visible, by CUDA's rules.

The variable names GPUs by ordinal or by UUID, or MIG devices by UUID. All entries have the kind of
the first one. The first entry that matches no device ends the list, and a device that is named
twice empties it (PyTorch documents CUDA's behaviour in ``torch.cuda._parse_visible_devices``).
https://docs.nvidia.com/datacenter/tesla/mig-user-guide (CUDA visible devices)
Imports only the standard library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from radt.devices import ordinals
from radt.devices.gpus import Device, Gpu, Gpus

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: The devices of a run if it is unknown which GPUs it used.
UNKNOWN = "unknown"
_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_KINDS = ("GPU-", "MIG-")
#: As strtoul parses it: characters after the digits are ignored.
_NUMBER = re.compile(r"\+?0*([0-9]+)")


@dataclass(frozen=True, slots=True)
class Visible:
    """Devices in the variable's order; ``reason`` is why there are none.

    With ``failed``, a row must not use the CPU instead: the variable names missing devices, some do
    not answer, or the devices are unknown. With ``unknown``, a process may nevertheless have some.
    ``unread`` are UUIDs that CUDA offers but NVML does not show.
    """

    devices: tuple[Device, ...] = ()
    reason: str = ""
    failed: bool = False
    unknown: bool = False
    unread: tuple[str, ...] = ()


def entries_of(text: str) -> tuple[str, ...]:
    """Return the entries of a value that CUDA considers: numbers, or (prefixes of) UUIDs.

    >>> entries_of("1, 0,-1,2"), entries_of("GPU-5f,1"), entries_of("0,0"), entries_of("")
    (('1', '0'), ('GPU-5f',), (), ())
    """
    parts = [part.strip() for part in text.split(",")]
    kind = next((kind for kind in _KINDS if parts[0].upper().startswith(kind)), None)
    entries: list[str] = []
    for part in parts:
        number = _NUMBER.match(part)
        if kind is None and number is not None:
            entry = number[1]
        elif kind is not None and part.upper().startswith(kind):
            entry = part
        else:
            break
        if entry in entries:
            return ()
        entries.append(entry)
    return tuple(entries)


def given_devices(gpus: Gpus, environ: Mapping[str, str] = os.environ) -> Visible:
    """Return the devices that the variable gives a runner's rows: all if it is not set."""
    text = environ.get(VISIBLE_VARIABLE)
    entries = None if text is None else entries_of(text)
    if entries == ():
        return Visible(reason=f"{VISIBLE_VARIABLE}={text!r} hides all GPUs")
    if entries is None or not gpus.every:
        devices, failed = tuple(map(Device, gpus.working)), bool(gpus.failure)
        return _visible(devices, gpus.reason or gpus.failure, failed=failed, unknown=failed)
    if not entries[0].isdigit():
        found = _with_uuids(gpus, entries)
    else:
        by_bus = environ.get(_ORDER_VARIABLE, "").strip().upper() == "PCI_BUS_ID"
        if gpus.broken or not (by_bus or _are_equal(gpus.working)):
            asked = _asked(gpus, environ)
            if not (asked.unknown and by_bus):  # rows can use any part of a divided GPU
                return replace(asked, devices=tuple(Device(device.gpu) for device in asked.devices))
        known = {str(place): gpu for place, gpu in enumerate(gpus.permitted)}
        named = [known[number] for number in takewhile(known.__contains__, entries)]
        found = [Device(gpu) for gpu in named if not gpu.problem]
    return _visible(found, _not_found(gpus, environ), unknown=bool(gpus.failure))


def offered_devices(gpus: Gpus, environ: Mapping[str, str] = os.environ) -> Visible:
    """Return the devices that CUDA offers a process with these variables.

    If a GPU is in MIG mode, CUDA offers a single MIG device. Only CUDA knows whether it offers
    a GPU that NVML cannot read.
    """
    by_number = _has_numbers(environ)
    given = map(Device, gpus.working) if by_number else given_devices(gpus, environ).devices
    divided = any(device.gpu.mig_enabled and device.mig is None for device in given)
    will_ask = by_number and VISIBLE_VARIABLE in environ and bool(gpus.every)  # in given_devices
    if divided or (gpus.failure and not will_ask):
        asked = _asked(gpus, environ)
        if divided or not asked.unknown:
            return asked
    visible = given_devices(gpus, environ)
    parts = tuple(device for device in visible.devices if device.mig is not None)
    return replace(visible, devices=parts[:1] or visible.devices)


def given_mig_uuids(gpus: Gpus, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the UUIDs of the MIG devices that the variable names, if it names any."""
    devices = () if _has_numbers(environ) else given_devices(gpus, environ).devices
    return tuple(device.uuid for device in devices if device.mig is not None)


def _has_numbers(environ: Mapping[str, str]) -> bool:
    """Return whether the variable names GPUs by number, or is not set."""
    text = environ.get(VISIBLE_VARIABLE)
    return text is None or "".join(entries_of(text)[:1]).isdigit()


def _visible(
    devices: Sequence[Device], reason: str, *, failed: bool = True, unknown: bool = False
) -> Visible:
    return Visible(tuple(devices)) if devices else Visible((), reason, failed, unknown)


def _with_uuids(gpus: Gpus, entries: Sequence[str]) -> list[Device]:
    found: list[Device] = []
    for entry in entries:
        device = gpus.find(entry)
        if device is None and not gpus.broken:
            break
        if device is None:  # it may be a broken GPU: some of those have no known UUID
            continue
        if device in found:
            return []
        found.append(device)
    return found


def _are_equal(gpus: Sequence[Gpu]) -> bool:
    """Return whether the GPUs are equal, so that CUDA's order is NVML's."""
    memories = {gpu.memory_bytes for gpu in gpus} - {None}  # None: unreadable because divided
    return len({gpu.name for gpu in gpus}) <= 1 and len(memories) <= 1


def _asked(gpus: Gpus, environ: Mapping[str, str]) -> Visible:
    uuids, text = ordinals.offered_uuids(environ, gpus), environ.get(VISIBLE_VARIABLE)
    if uuids is not None:
        offers_none = gpus.failure or "CUDA offers no GPU"
        reason = offers_none if text is None else _not_found(gpus, environ)
        found = {uuid: gpus.find(uuid) for uuid in uuids}
        devices = [device for device in found.values() if device is not None]
        unread = tuple(uuid for uuid, device in found.items() if device is None)
        visible = _visible(devices, reason, failed=text is not None or bool(unread))
        return replace(visible, unread=unread)
    what = "offered by CUDA" if text is None else f"named by {VISIBLE_VARIABLE}={text}"
    divided = any(gpu.mig_enabled for gpu in gpus.working)
    why = gpus.failure or ("one is in MIG mode" if divided else "the machine's GPUs differ")
    reason = (
        f"the GPUs {what} are unknown: {why}, and the CUDA driver does not answer. "
        f"Set {VISIBLE_VARIABLE} to UUIDs (nvidia-smi -L)"
    )
    return Visible((), gpus.reason or reason, failed=True, unknown=True)


def _not_found(gpus: Gpus, environ: Mapping[str, str]) -> str:
    why = f" ({gpus.failure})" if gpus.failure else ""
    return f"{VISIBLE_VARIABLE}={environ[VISIBLE_VARIABLE]} names no GPU that works here{why}"
