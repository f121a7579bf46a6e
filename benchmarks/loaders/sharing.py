"""Throughput of four processes that share a loader, against four loaders and against one alone."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loaders import data
from benchmarks.loaders.processes import TooSlow, Window, window
from benchmarks.results import Bar, Findings, Table

CONSUMERS = 4
#: Worker processes of all loaders together: one for each own loader.
WORKERS = 4
_TARGET_AGAINST_OWN, _TARGET_AGAINST_ALONE = 3.8, 0.95
_CONSUMER = [sys.executable, "-m", "benchmarks.loaders.consumer"]
_ALONE, _OWN, _SHARED = "alone", "own loaders", "SharedLoader"


def measure(rounds: int, seconds: float, peer: str | None) -> Findings:
    """Measure all in turns, and the peer once.

    Args:
        rounds: How many.
        seconds: Length of each measurement.
        peer: An interpreter with torch, pillow and tensorsocket; None to leave it out.
    """
    with tempfile.TemporaryDirectory(prefix="bench-jpegs-") as folder:
        data.write_images(Path(folder))
        findings = Findings()
        for pixels in data.Pixels:
            found = _rounds(rounds, seconds, folder, pixels)
            findings.tables.append(_table(found, rounds, pixels))
            findings.bars.extend(_bars(found, pixels))
        if peer is not None:
            findings.tables.append(_peer(peer, folder, seconds))
    return findings


def _rounds(
    rounds: int, seconds: float, folder: str, pixels: data.Pixels
) -> dict[str, list[Window]]:
    each, all_of_them = str(WORKERS // CONSUMERS), str(WORKERS)
    arms = {
        _ALONE: [[*_CONSUMER, "own", folder, all_of_them, pixels]],
        _OWN: [[*_CONSUMER, "own", folder, each, pixels]] * CONSUMERS,
        _SHARED: [[*_CONSUMER, "shared", "bench", folder, all_of_them, pixels]] * CONSUMERS,
    }
    found: dict[str, list[Window]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, commands in arms.items():
            found[arm].append(window(commands, seconds))
    return found


def _table(found: dict[str, list[Window]], rounds: int, pixels: data.Pixels) -> Table:
    table = Table(
        f"Decoding JPEGs into {pixels}, {WORKERS} workers in all",
        ("way", "samples/s, all", "slowest one", "CPU ms a sample", "same batches"),
        note=f"Medians of {rounds} rounds in turns. CPU time of all processes while one consumer "
        "gets a sample. The shuffle's seed is the same everywhere.",
    )
    for arm, windows in found.items():
        table.rows.append(
            (
                f"{len(windows[0].rates)} × {arm}" if arm != _ALONE else "one process alone",
                f"{_middle([one.total for one in windows]) * data.BATCH:,.0f}",
                f"{_middle([min(one.rates) for one in windows]) * data.BATCH:,.0f}",
                f"{_middle([one.cpu_s for one in windows]) / data.BATCH * 1e3:.2f}",
                "yes" if all(one.same for one in windows) else "no",
            )
        )
    return table


def _bars(found: dict[str, list[Window]], pixels: data.Pixels) -> list[Bar]:
    alone, own, shared = found[_ALONE], found[_OWN], found[_SHARED]
    against_own = [s.total / o.total for s, o in zip(shared, own, strict=True)]
    against_alone = [min(s.rates) / a.total for s, a in zip(shared, alone, strict=True)]
    return [
        _bar(f"{pixels}: all that share, against own loaders", against_own, _TARGET_AGAINST_OWN),
        _bar(
            f"{pixels}: slowest that shares, against one alone",
            against_alone,
            _TARGET_AGAINST_ALONE,
        ),
        Bar(
            f"{pixels}: all that share get the same batches",
            "yes" if all(one.same for one in shared) else "no",
            all(one.same for one in shared),
        ),
    ]


def _bar(promise: str, ratios: Sequence[float], target: float) -> Bar:
    middle = _middle(ratios)
    measured = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return Bar(f"{promise}: at least {target}×", measured, middle >= target)


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def _peer(python: str, folder: str, seconds: float) -> Table:
    """Run tensorsocket at its default chunk of 8 batches, and with smaller ones."""
    table = Table(
        f"tensorsocket 0.0.5, {CONSUMERS} consumers, the same data and workers",
        ("batches in a chunk", "samples/s, all"),
        note="One window each. On a CPU it pickles chunks; it is made for CUDA.",
    )
    script = [python, "-m", "benchmarks.loaders.tensorsocket_peer"]
    for chunk in (8, 2, 1):
        commands = [[*script, "consumer"]] * CONSUMERS
        producer = [*script, "producer", folder, str(WORKERS), str(chunk)]
        try:
            rates = window([*commands], seconds, limit_s=60, server=producer)
            result = f"{rates.total * data.BATCH:,.0f}"
        except TooSlow as slow:
            result = f"too slow: {slow} at the slowest"
        except RuntimeError:
            result = "failed"
        table.rows.append((f"{chunk}{' (default)' * (chunk == 8)}", result))
    return table
