# ruff: noqa: N802 - names as in DCGM
"""As much of DCGM's dcgm_agent.py as radt uses, on the fake host engine.

Groups are numbered and named as in DCGM; a connection's own are gone with it. Values of what is
watched are renewed at its interval, and carry that time.
"""

import ctypes
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dcgm_structs
from dcgm_structs import DCGMError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import hostengine

_FIRST_OWN = 100
#: Blank values by what stands for them in the state, for int64 and double.
_BLANKS = {None: 0, "not found": 1, "not supported": 2, "not permissioned": 3}


class _Connection:
    def __init__(self):
        self.groups = {}
        self.field_groups = {}
        self.names = {}
        self.watches = {}
        self.destroyed = set()
        self.next = _FIRST_OWN

    def number(self, name):
        taken = {*self.names.values(), *_others("groups").values()}
        if name in taken:
            raise DCGMError(-26, "Duplicate key passed to function")
        self.next += 1
        self.names[self.next] = name
        return self.next


def _others(kind):
    return {int(number): name for number, name in hostengine.look().get(kind, {}).items()}


def connect():
    hostengine.note("connect")
    if hostengine.look().get("mismatch"):
        raise DCGMError(-12, "API version mismatch")
    _up()
    return _Connection()


def disconnect(handle):
    hostengine.note("disconnect")
    if hostengine.look().get("down"):
        raise DCGMError(hostengine.CONNECTION, hostengine.TEXTS[hostengine.CONNECTION])
    assert not handle.groups, "groups are left"
    assert not handle.field_groups, "field groups are left"


def _up():
    state = hostengine.look()
    if state.get("down"):
        raise DCGMError(hostengine.CONNECTION, hostengine.TEXTS[hostengine.CONNECTION])
    return state


def dcgmGetAllDevices(handle):
    return [gpu["id"] for gpu in _up()["gpus"]]


def dcgmGetDeviceAttributes(handle, number):
    gpu = next(gpu for gpu in _up()["gpus"] if gpu["id"] == number)
    return SimpleNamespace(identifiers=SimpleNamespace(uuid=gpu["uuid"]))


def dcgmGetGpuInstanceHierarchy(handle):
    entries = [
        SimpleNamespace(
            entity=SimpleNamespace(entityGroupId=hostengine.INSTANCE, entityId=instance["entity"]),
            parent=SimpleNamespace(entityGroupId=hostengine.CARD, entityId=gpu["id"]),
            info=SimpleNamespace(nvmlGpuIndex=gpu["index"], nvmlInstanceId=instance["gi"]),
        )
        for gpu in _up()["gpus"]
        for instance in gpu.get("instances", ())
    ]
    return SimpleNamespace(entityList=[*entries, None], count=len(entries))


def dcgmGroupCreate(handle, kind, name):
    _up()
    assert kind == dcgm_structs.DCGM_GROUP_EMPTY
    number = handle.number(name)
    hostengine.note("group", name)
    handle.groups[number] = []
    return ctypes.c_void_p(number)


def dcgmGroupAddEntity(handle, group, kind, number):
    if hostengine.find(_up(), (kind, number)) is None:
        raise DCGMError(dcgm_structs.DCGM_ST_BADPARAM)
    handle.groups[group.value].append((kind, number))


def dcgmGroupDestroy(handle, group):
    state = _up()
    name = state.get("groups", {}).get(str(group.value)) or handle.names[group.value]
    hostengine.note("destroy group", name)
    handle.groups.pop(group.value, None)
    handle.destroyed.add(name)


def dcgmGroupGetAllIds(handle):
    _up()
    return [None, *_others("groups"), *handle.groups]  # a null pointer is group 0 of all GPUs


def dcgmGroupGetInfo(handle, group):
    names = _others("groups") | handle.names | {None: "DCGM_ALL_SUPPORTED_GPUS"}
    return SimpleNamespace(groupName=names[group.value].encode())


def dcgmFieldGroupCreate(handle, fields, name):
    unknown = set(_up().get("unknown", ())) | (set(fields) - hostengine.DEFAULTS.keys())
    if unknown & set(fields):
        raise DCGMError(dcgm_structs.DCGM_ST_UNKNOWN_FIELD)
    number = handle.number(name)
    hostengine.note("field group", name, list(fields))
    handle.field_groups[number] = list(fields)
    return ctypes.c_void_p(number)


def dcgmFieldGroupDestroy(handle, group):
    state = _up()
    name = state.get("field_groups", {}).get(str(group.value)) or handle.names[group.value]
    hostengine.note("destroy field group", name)
    handle.field_groups.pop(group.value, None)


def dcgmFieldGroupGetAll(handle):
    groups = [
        SimpleNamespace(fieldGroupId=number, fieldGroupName=name.encode())
        for number, name in _others("field_groups").items()
    ]
    return SimpleNamespace(fieldGroups=[*groups, None], numFieldGroups=len(groups))


def dcgmWatchFields(handle, group, field_group, interval_us, keep_s, samples):
    assert interval_us >= 100_000, "profiling fields cannot be watched more often"
    assert samples > 0, "or all are kept for no time at all"
    entities, fields = handle.groups[group.value], handle.field_groups[field_group.value]
    watched = {number for _, number in handle.watches}
    status = hostengine.watch(_up(), entities, sorted({*fields, *watched}))
    hostengine.note("watch", entities, fields, status)
    if status != hostengine.OK:
        raise DCGMError(status, hostengine.TEXTS[status])
    handle.watches.update(
        {
            (entity, number): (field_group.value, interval_us)
            for entity in entities
            for number in fields
        }
    )


def dcgmUnwatchFields(handle, group, field_group):
    _up()
    hostengine.note("unwatch", handle.field_groups[field_group.value])
    handle.watches = {
        key: watch for key, watch in handle.watches.items() if watch[0] != field_group.value
    }


def dcgmEntitiesGetLatestValues(handle, entities, fields, flags):
    state = _up()
    assert flags == 0, "values of the watch, not a look at the device"
    hostengine.note("values", len(entities), len(fields))
    found = (dcgm_structs.c_dcgmFieldValue_v2 * (len(entities) * len(fields)))()
    places = [(pair.entityGroupId, pair.entityId) for pair in entities]
    for raw, (entity, number) in zip(
        found, ((entity, number) for entity in places for number in fields), strict=True
    ):
        _fill(raw, state, handle, entity, number)
    return found


def _fill(raw, state, handle, entity, number):
    raw.entityGroupId, raw.entityId = entity
    raw.fieldId = number
    kind = type(hostengine.DEFAULTS[number][2])
    raw.fieldType = ord("d" if kind is float else "i")
    watch = handle.watches.get((entity, number))
    if watch is None:
        raw.status = dcgm_structs.DCGM_ST_NOT_WATCHED
        return
    now_us = time.time_ns() // 1000
    raw.ts = state.get("frozen_us") or now_us - now_us % watch[1]
    found = hostengine.find(state, entity)
    given = found[1].get("values", {}).get(str(number), hostengine.DEFAULTS[number][2])
    if number in hostengine.PROFILING and state.get("paused"):
        given = None
    if given in _BLANKS:
        if kind is float:
            raw.value.dbl = 2.0**47 + _BLANKS[given]
        else:
            raw.value.i64 = 0x7FFFFFFFFFFFFFF0 + _BLANKS[given]
    elif kind is float:
        raw.value.dbl = given
    else:
        raw.value.i64 = given
