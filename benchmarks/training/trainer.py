"""MultiTrainer against processes, in turns and at once; fused jobs against a loop."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Bar, Findings, Table

_COMMAND = [sys.executable, "-m", "benchmarks.training.trainer_arm"]
_NAMES = ("small", "middle", "large")
_EPOCHS = 4
_SAMPLING_S = 0.02
_MEMORY, _START_UP, _AUTO, _FUSED = 0.45, 0.9, 1.03, 6.0
#: Models, and steps: enough for the trial of both ways to be a small part.
_FUSING = {"mlp": (16, 2_000), "cnn": (4, 500)}


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of a set of processes: CPU time, highest sum of PSS and of RSS."""

    cpu_s: float
    pss_bytes: int
    rss_bytes: int


def measure(rounds: int) -> Findings:
    """Measure all arms in turns."""
    found = Findings()
    _three(rounds, found)
    _fusing(rounds, found)
    return found


def _three(rounds: int, found: Findings) -> None:
    costs: dict[str, list[_Cost]] = {}
    for _ in range(rounds):
        alone = [[f"{name}", str(_EPOCHS)] for name in _NAMES]
        arms = {
            "three processes at once": [_cost(alone)],
            "three processes in turn": [_cost([one]) for one in alone],
            "one process, round robin": [_cost([[",".join(_NAMES), str(_EPOCHS)]])],
            "starting a process": [_cost([[_NAMES[0], "0"]])],
        }
        for arm, parts in arms.items():
            total = _Cost(
                sum(part.cpu_s for part in parts),
                max(part.pss_bytes for part in parts),
                max(part.rss_bytes for part in parts),
            )
            costs.setdefault(arm, []).append(total)
    table = Table(
        "Three networks: CPU time, and the highest sum of memory of all processes",
        ("arm", "CPU s", "PSS MB", "RSS MB"),
        note=f"Medians of {rounds} rounds in turns. PSS shares out pages that processes share.",
    )
    middle = {arm: _median(of) for arm, of in costs.items()}
    for arm, cost in middle.items():
        memory = (f"{cost.pss_bytes / 1e6:.0f}", f"{cost.rss_bytes / 1e6:.0f}")
        table.rows.append((arm, f"{cost.cpu_s:.2f}", *memory))
    at_once, in_turn, ours, start = middle.values()
    found.tables.append(table)
    for name, share in (
        ("RSS", ours.rss_bytes / at_once.rss_bytes),
        ("PSS", ours.pss_bytes / at_once.pss_bytes),
    ):
        promise = f"memory of three jobs ({name}): at most {_MEMORY} of three processes"
        found.bars.append(Bar(promise, f"{share:.2f}", share <= _MEMORY))
    saved = (in_turn.cpu_s - ours.cpu_s) / (2 * start.cpu_s)
    found.bars.append(
        Bar(
            f"saves at least {_START_UP} of the start of two processes in turn (CPU time)",
            f"{saved:.2f}",
            saved >= _START_UP,
        )
    )


def _cost(commands: Sequence[Sequence[str]]) -> _Cost:
    """Run processes at once."""
    before = os.times()
    running = [subprocess.Popen([*_COMMAND, "three", *command]) for command in commands]
    pss = rss = 0
    while any(process.poll() is None for process in running):
        sums = [_memory_bytes(process.pid) for process in running]
        pss = max(pss, sum(each[0] for each in sums))
        rss = max(rss, sum(each[1] for each in sums))
        time.sleep(_SAMPLING_S)
    if any(process.returncode for process in running):
        raise RuntimeError(f"failed: {commands}")
    after = os.times()
    spent = after.children_user + after.children_system
    return _Cost(spent - before.children_user - before.children_system, pss, rss)


def _memory_bytes(pid: int) -> tuple[int, int]:
    """Return PSS and RSS; zeros for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    values = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return values.get("Pss:", 0), values.get("Rss:", 0)


def _median(costs: Sequence[_Cost]) -> _Cost:
    return _Cost(
        statistics.median(cost.cpu_s for cost in costs),
        int(statistics.median(cost.pss_bytes for cost in costs)),
        int(statistics.median(cost.rss_bytes for cost in costs)),
    )


def _fusing(rounds: int, found: Findings) -> None:
    table = Table(
        "Equal models: CPU time of a step of all of them",
        ("models", "plain loops, ms", "loop, ms", "fused, ms", "auto, ms", "chosen"),
        note=f"Medians of {rounds} rounds in turns; a loop swaps random states at each step.",
    )
    for network, (count, steps) in _FUSING.items():
        arguments = [*_COMMAND, "fuse", network, str(count), str(steps), str(rounds)]
        out = json.loads(subprocess.run(arguments, capture_output=True, check=True).stdout)
        chosen = set(out["chosen"])
        plain, loop, fused, auto = map(statistics.median, out["step_s"].values())
        cells = (f"{value * 1e3:.2f}" for value in (plain, loop, fused, auto))
        table.rows.append((f"{count} × {network}", *cells, "/".join(sorted(chosen))))
        better = "fused" if fused < loop else "loop"
        off = auto / min(loop, fused)
        promise = f"{count} × {network}: auto at most {_AUTO} of the better way ({better})"
        found.bars.append(Bar(promise, f"{off:.3f}", off <= _AUTO))
        if network == "mlp":
            for name, base in (("the trainer's loop", loop), ("plain loops", plain)):
                promise = f"{count} × {network}: fused at least {_FUSED:.0f}× as fast as {name}"
                found.bars.append(Bar(promise, f"{base / fused:.1f}×", base / fused >= _FUSED))
        else:
            promise = f"{count} × {network}: the loop is chosen"
            found.bars.append(Bar(promise, "/".join(sorted(chosen)), chosen == {"loop"}))
    found.tables.append(table)
