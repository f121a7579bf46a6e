"""CPU time to hand one batch of 38.5 MB to four processes."""

from __future__ import annotations

import statistics
import sys

from benchmarks.loaders.data import BATCH_MB
from benchmarks.loaders.handing import PIPE
from benchmarks.loaders.processes import window
from benchmarks.results import Bar, Findings, Table

CONSUMERS = 4
_PYTHON = [sys.executable, "-m"]
_TARGET_MS = 20.0


def measure(rounds: int, seconds: float) -> Findings:
    """Measure all ways in turns."""
    ways = {
        "pickled through pipes": [_handing(PIPE)],
        "torch shared memory, descriptors": [_handing("file_descriptor")],
        "torch shared memory, files": [_handing("file_system")],
        "SharedLoader": _ours("mutable"),
        "SharedLoader, mutable=False": _ours("fixed"),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, commands in ways.items():
            found[way].append(window(commands, seconds).cpu_s * 1e3)
    ours = statistics.median(found["SharedLoader"])
    table = Table(
        f"Handing over a batch of {BATCH_MB:.1f} MB, {CONSUMERS} consumers, CPU time of all",
        ("way", "ms a batch", "lowest", "highest", "against ours"),
        note=f"Medians of {rounds} rounds in turns.",
    )
    for way, times in found.items():
        middle = statistics.median(times)
        cells = (f"{middle:.1f}", f"{min(times):.1f}", f"{max(times):.1f}")
        table.rows.append((way, *cells, f"{middle / ours:.1f}×"))
    bar = Bar(
        f"hand-over at {CONSUMERS} consumers: at most {_TARGET_MS:.0f} ms of CPU",
        f"{ours:.1f} ms",
        ours <= _TARGET_MS,
    )
    return Findings([table], [bar])


def _handing(way: str) -> list[str]:
    return [*_PYTHON, "benchmarks.loaders.handing", way, str(CONSUMERS)]


def _ours(mutable: str) -> list[list[str]]:
    command = [*_PYTHON, "benchmarks.loaders.consumer", "ready", f"bench-{mutable}", mutable]
    return [command] * CONSUMERS
