"""What a fake host engine of DCGM knows and allows, for the fake dcgmi.

$FAKE_DCGM names a JSON file that is read on every look, so that a test changes the "hardware" under
way; $FAKE_DCGM_LOG gets a JSON line a call. In the file:

* ``gpus``: each with ``id`` (DCGM's), ``index`` (NVML's), ``uuid``, ``values`` by field (others
  have those of `DEFAULTS`; null is blank), ``refused``: a return code by field, ``instances``: each
  with ``gi`` (NVML's), ``entity`` (DCGM's), ``values``;
* ``down``: nobody listens; ``hangs``: it does not answer; ``module``: what every watch of a
  profiling field gets; ``conflicts``: lists of fields that cannot be watched together;
  ``unknown``: fields that this version does not have; ``paused``: profiling is (dcgmi profile
  --pause); ``rows``: a dmon process loses its connection after so many.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

OK, NOT_SUPPORTED, MULTI_PASS, CONNECTION = 0, -6, -38, -21
TEXTS = {
    -6: "Feature not supported",
    -13: "Unknown field",
    -17: "Not permissioned",
    -21: "The connection to the host engine is not valid any longer",
    -29: "This operation is not supported when the host engine is running as non root",
    -33: "This request is serviced by a module of DCGM that is not currently loaded",
    -36: "Profiling is not supported for this group of GPUs or GPU",
    -37: "The third-party Profiling module returned an unrecoverable error",
    -38: "The requested profiling metrics cannot be collected in a single pass",
}
#: Name, width of the column less 6, and value, whose type is the field's.
DEFAULTS: dict[int, tuple[str, int, float]] = {
    112: ("DVCCTR", 10, 4),
    155: ("POWER", 10, 250.5),
    156: ("TOTEC", 16, 7_000_000),
    157: ("POWINST", 10, 260.25),
    203: ("GPUTL", 5, 55),
    230: ("XIDER", 5, 0),
    252: ("FBUSD", 10, 2000),
    1001: ("GRACT", 5, 0.9),
    1002: ("SMACT", 5, 0.8),
    1003: ("SMOCC", 5, 0.3),
    1004: ("TENSO", 5, 0.4),
    1005: ("DRAMA", 5, 0.25),
    1006: ("FP64A", 5, 0.01),
    1007: ("FP32A", 5, 0.1),
    1008: ("FP16A", 5, 0.05),
    1009: ("PCITX", 10, 1_000_000),
    1010: ("PCIRX", 10, 2_000_000),
    1011: ("NVLTX", 10, 3_000_000),
    1012: ("NVLRX", 10, 4_000_000),
    1013: ("TIMMA", 5, 0.02),
    1014: ("THMMA", 5, 0.38),
    1015: ("TDFMA", 5, 0.0),
    1016: ("INTAC", 5, 0.07),
}
PROFILING = frozenset(number for number in DEFAULTS if number > 1000)
CARD, INSTANCE = 1, 4
Entity = tuple[int, int]


def look() -> dict[str, Any]:
    """The state as it is now."""
    state: dict[str, Any] = json.loads(Path(os.environ["FAKE_DCGM"]).read_text())
    return state


def note(*call: Any) -> None:
    with Path(os.environ["FAKE_DCGM_LOG"]).open("a") as file:
        file.write(json.dumps([os.getpid(), *call]) + "\n")


def find(state: dict[str, Any], entity: Entity) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The GPU of an entity, and what has its values; None if there is none."""
    for gpu in state["gpus"]:
        if entity == (CARD, gpu["id"]):
            return gpu, gpu
        for instance in gpu.get("instances", ()):
            if entity == (INSTANCE, instance["entity"]):
                return gpu, instance
    return None


def watch(state: dict[str, Any], entities: list[Entity], fields: list[int]) -> int:
    """What dcgmWatchFields returns."""
    if state.get("down"):
        return CONNECTION
    profiled = PROFILING & set(fields)
    if profiled and state.get("module"):
        return int(state["module"])
    for entity in entities:
        found = find(state, entity)
        assert found is not None, "a group has what is there only"
        for number in fields:
            if str(number) in found[0].get("refused", {}):
                return int(found[0]["refused"][str(number)])
    if any(set(conflict) <= profiled for conflict in state.get("conflicts", ())):
        return MULTI_PASS
    return OK


def value(state: dict[str, Any], entity: Entity, number: int) -> float | None:
    """None where it is blank."""
    found = find(state, entity)
    if found is None or (number in PROFILING and state.get("paused")):
        return None
    values = found[1].get("values", {})
    kind = type(DEFAULTS[number][2])
    given = values.get(str(number), DEFAULTS[number][2])
    return None if given is None else kind(given)
