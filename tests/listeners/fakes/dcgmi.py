"""A fake ``dcgmi``: what radt asks of it, with the words and columns of the real one (DCGM 4).

See ``hostengine.py`` beside it for what it can be told. Formats: dcgmi/Query.cpp,
dcgmi/DeviceMonitor.cpp, dcgmi/dcgmi_common.cpp.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hostengine
from hostengine import CARD, INSTANCE, PROFILING, TEXTS, Entity

HEADER_EVERY = 14


def fail(text: str, status: int) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    sys.exit(status & 0xFF)


def connected() -> dict[str, Any]:
    state = hostengine.look()
    while state.get("hangs"):
        time.sleep(0.01)
        state = hostengine.look()
    if state.get("down"):
        print("Error: unable to establish a connection to the specified host: localhost")
        fail(
            "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.",
            hostengine.CONNECTION,
        )
    return state


def discovery_cards(state: dict[str, Any]) -> None:
    count = len(state["gpus"])
    print(f"{count} GPU{'' if count == 1 else 's'} found.")
    line = f"+{'-' * 8}+{'-' * 70}+"
    print(line)
    print(f"| {'GPU ID':<6} | {'Device Information':<68} |")
    print(line)
    for gpu in state["gpus"]:
        print(f"| {gpu['id']:<6} | {'Name: Fake GPU':<68} |")
        print(f"|        | {'PCI Bus ID: 00000000:21:00.0':<68} |")
        print(f"|        | {'Device UUID: ' + gpu['uuid']:<68} |")
        print(line)
    print("0 NvSwitches found.\n+-----------+\n| Switch ID |\n+-----------+\n+-----------+")


def discovery_instances(state: dict[str, Any]) -> None:
    line = f"+{'-' * 19}+{'-' * 68}+"
    print(line)
    print(f"| {'Instance Hierarchy':<86} |")
    print(line.replace("-", "="))

    def row(left: str, right: str) -> None:
        print(f"| {left:<17} | {right:<66} |")

    for gpu in state["gpus"]:
        if not gpu.get("instances"):
            continue
        index = gpu["index"]
        row(f"GPU {index}", f"GPU {gpu['uuid']} (EntityID: {gpu['id']})")
        for instance in gpu["instances"]:
            gi, entity = instance["gi"], instance["entity"]
            row(f"-> I {index}/{gi}", f"GPU Instance (EntityID: {entity})")
            row(f"   -> CI {index}/{gi}/0", f"Compute Instance (EntityID: {entity})")
        print(line)


def entity_of(word: str) -> Entity:
    kind, colon, number = word.rpartition(":")
    if not number.isdigit() or (colon and kind not in ("i", "instance", "gpu")):
        fail(f"Error: Invalid entity '{word}'", -1)
    return (INSTANCE if kind in ("i", "instance") else CARD), int(number)


def dmon(options: argparse.Namespace) -> None:
    if options.delay < 1:
        fail("Error: Invalid delay", -1)
    state = connected()
    entities = [entity_of(word) for word in options.entities.split(",")]
    for entity in entities:
        if hostengine.find(state, entity) is None:
            fail(
                f"Error: Got error -1 Bad parameter passed to function while adding GPU "
                f"{entity[1]} to our entity group.",
                -1,
            )
    fields = [int(word) for word in options.fields.split(",")]
    for number in fields:
        if number not in hostengine.DEFAULTS or number in state.get("unknown", ()):
            fail(
                f"Error: Got invalid field ID. '{number}'. "
                "See dcgm_fields.h for a list of valid field IDs.",
                -1,
            )
    header(fields)
    status = hostengine.watch(state, entities, fields)
    if status != hostengine.OK:
        fail(f"Error setting watches. Result: {status}: {TEXTS[status]}\n", status)
    rows(options, entities, fields)


def header(fields: list[int]) -> None:
    names = (f"{hostengine.DEFAULTS[number][0]:<{width(number) + 2}}" for number in fields)
    print(f"{'#Entity':<10}" + "".join(names))
    print(f"{'ID':<10}" + "".join(" " * (width(number) + 2) for number in fields), flush=True)


def width(number: int) -> int:
    return hostengine.DEFAULTS[number][1] + 6


def rows(options: argparse.Namespace, entities: list[Entity], fields: list[int]) -> None:
    printed = 0
    while True:
        state = hostengine.look()
        if state.get("down") or printed >= state.get("rows", printed + 1):
            fail(
                f"Error getting values information. Return -21: {TEXTS[hostengine.CONNECTION]}",
                hostengine.CONNECTION,
            )
        divided = any(gpu.get("instances") for gpu in state["gpus"])
        for entity in sorted(entities):
            found = hostengine.find(state, entity)
            if found is None or (divided and not found[0].get("instances")):
                continue  # where one card is divided, dmon leaves out those that are not
            values = [
                # What is watched anew has no values of the counters at first.
                None
                if not printed and number in PROFILING
                else hostengine.value(state, entity, number)
                for number in fields
            ]
            cells = (cell(*pair) for pair in zip(values, map(width, fields), strict=True))
            kind = "GPU" if entity[0] == CARD else "GPU-I"
            print(f"{f'{kind} {entity[1]}':<10}" + "".join(cells))
        sys.stdout.flush()
        printed += 1
        if printed == options.count:
            return
        time.sleep(options.delay / 1000)
        if printed % HEADER_EVERY == 0:
            header(fields)


def cell(value: float | None, wide: int) -> str:
    text = "N/A" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value}"
    if os.environ.get("LC_ALL", "C").startswith("de_"):
        text = text.replace(".", ",")
    return f"{text if len(text) <= wide else text[: wide - 3] + '...':<{wide + 2}}"


def main() -> None:
    hostengine.note("dcgmi", *sys.argv[1:])
    parser = argparse.ArgumentParser(prog="dcgmi")
    commands = parser.add_subparsers(dest="command", required=True)
    discovery = commands.add_parser("discovery")
    what = discovery.add_mutually_exclusive_group(required=True)
    what.add_argument("-l", dest="cards", action="store_true")
    what.add_argument("-c", dest="instances", action="store_true")
    monitor = commands.add_parser("dmon")
    monitor.add_argument("-e", dest="fields", required=True)
    monitor.add_argument("-i", dest="entities", required=True)
    monitor.add_argument("-d", dest="delay", type=int, default=1000)
    monitor.add_argument("-c", dest="count", type=int, default=0)
    options = parser.parse_args()
    if options.command == "dmon":
        dmon(options)
    elif options.cards:
        discovery_cards(connected())
    else:
        discovery_instances(connected())


if __name__ == "__main__":
    main()
