"""Full copies against pipelines over a shaped link, and how long survivors of a kill wait."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import psutil

from benchmarks.results import Bar, Findings, Table
from radt.training.lighthouse import HEARTBEAT_S

_FOLDER = Path(__file__).parents[2] / "experiments" / "slow-network"
_SLOW_MBIT = 25
_TARGET = 4.0
_MOST_OVER_S = 1.0
_KILLED_IN = 2
_ROUNDS = 5
_AVERAGES = 10


@dataclass(frozen=True)
class Case:
    """A model, a link and what a global batch sends over it.

    Attributes:
        by_bytes: Bytes of a pipeline over bytes of an average: 2·M·A / P on two machines (Atom,
            section 3.1).
    """

    name: str
    size: str
    mbit: int
    by_bytes: float


_SMALL = 2 * 16 * 524_288 / 1_052_672
_LARGE = 2 * 8 * 786_432 / 37_773_312
_CASES = (
    Case("1.1 MB, 16 micro-batches, unshaped", "small", 0, _SMALL),
    Case("1.1 MB, 16 micro-batches, 100 Mbit", "small", 100, _SMALL),
    Case("1.1 MB, 16 micro-batches, 25 Mbit", "small", _SLOW_MBIT, _SMALL),
    Case("38 MB, 8 micro-batches, 100 Mbit", "large", 100, _LARGE),
)
_ARMS = ("gpipe", "1f1b", "copies")


def measure(rounds: int, hivemind: str | None = None) -> Findings:
    """Measure all arms in turns; needs `ip` and `tc`.

    Args:
        rounds: Of all arms.
        hivemind: An interpreter with torch and hivemind; None to leave it out.
    """
    if shutil.which("tc") is None:
        bar = Bar("full copies over a slow link", "needs iproute2", held=False)
        return Findings([], [bar])
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for case in _CASES:
            for arm in _ARMS:
                times.setdefault((case.name, arm), []).append(_seconds(arm, case))
    table = Table(
        "A global batch on two machines, seconds; full copies are averaged within it",
        ("model and link", "GPipe", "1F1B", "copies", "gain", "by bytes"),
        note=f"Medians of {rounds} rounds in turns. Gain: the faster pipeline's time over that of "
        "full copies. By bytes: bytes of a pipeline over bytes of an average.",
    )
    bars = []
    for case in _CASES:
        middle = {arm: statistics.median(times[case.name, arm]) for arm in _ARMS}
        gain = min(middle["gpipe"], middle["1f1b"]) / middle["copies"]
        cells = [f"{middle[arm]:.2f}" for arm in _ARMS]
        table.rows.append((case.name, *cells, f"{gain:.1f}×", f"{case.by_bytes:.1f}×"))
        if case.mbit == _SLOW_MBIT:
            promise = f"{_SLOW_MBIT} Mbit: at least {_TARGET:.0f} times as fast as pipelines"
            bars.append(Bar(promise, f"{gain:.1f}×", gain >= _TARGET))
        if case.by_bytes < 1:
            predicted = "a case where pipelines win, and the planner says so"
            bars.append(Bar(predicted, f"{gain:.1f}×", gain < 1))
    stalls = [_stall_s() for _ in range(rounds)]
    worst = max(stalls)
    most_s = HEARTBEAT_S + _MOST_OVER_S
    bars.append(
        Bar(f"survivors of a kill wait at most {most_s:.0f} s", f"{worst:.1f} s", worst <= most_s)
    )
    tables = [table] if hivemind is None else [table, _peers(rounds, hivemind)]
    return Findings(tables, bars)


def _peers(rounds: int, hivemind: str) -> Table:
    ways = {"radt": sys.executable, "hivemind": hivemind}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, python in ways.items():
            found[way].append(_averaging(way, python))
    table = Table(
        "One average of 10.5 MB by two peers on this machine",
        ("averager", "seconds", "CPU seconds of all processes"),
        note=f"Medians of {rounds} pairs of peers in turns, {_AVERAGES} averages each.",
    )
    for way, pairs in found.items():
        middle = [statistics.median(values) for values in zip(*pairs, strict=True)]
        table.rows.append((way, f"{middle[0]:.3f}", f"{middle[1]:.3f}"))
    return table


def _averaging(way: str, python: str) -> tuple[float, float]:
    """Return the median time of an average, and its mean CPU time in all processes."""
    group = f"{way}-{os.getpid()}"
    command = [python, "-m", "benchmarks.training.averaging_peer", way, group]
    peers: list[subprocess.Popen[str]] = []
    lighthouse = _lighthouse(group) if way == "radt" else None
    try:
        addresses: list[str] = []
        for _ in range(2):
            peers.append(
                subprocess.Popen(
                    [*command, *addresses],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            if way == "hivemind":
                addresses = [cast("IO[str]", peers[-1].stdout).readline().strip()]
        for peer in peers:
            cast("IO[str]", peer.stdout).readline()
        _average(peers, 1)  # they connect
        before_s = _cpu_s(peers)
        seconds = _average(peers, _AVERAGES)
        return statistics.median(seconds), (_cpu_s(peers) - before_s) / _AVERAGES
    finally:
        for peer in peers:
            cast("IO[str]", peer.stdin).close()
        for peer in peers:
            peer.wait()
        if lighthouse is not None:
            lighthouse.kill()
            lighthouse.wait()


def _lighthouse(group: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "radt.training.lighthouse", "--group", group]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def _average(peers: list[subprocess.Popen[str]], count: int) -> list[float]:
    for peer in peers:
        stdin = cast("IO[str]", peer.stdin)
        stdin.write(f"{count}\n")
        stdin.flush()
    both = [json.loads(cast("IO[str]", peer.stdout).readline()) for peer in peers]
    return [max(pair) for pair in zip(*both, strict=True)]


def _cpu_s(peers: list[subprocess.Popen[str]]) -> float:
    total_s = 0.0
    for peer in peers:
        top = psutil.Process(peer.pid)
        for process in (top, *top.children(recursive=True)):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def _seconds(arm: str, case: Case) -> float:
    """Return the median time of a global batch."""
    options = ["--arm", arm, "--size", case.size, "--mbit", str(case.mbit), "--json"]
    found: list[tuple[float, int, float]] = json.loads(_run([*options, "--batches", "3"]))
    return statistics.median(seconds for seconds, _, _ in found)


def _stall_s() -> float:
    """Return the longest round of the survivors when one of three replicas is killed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RADT_RUNTIME_DIR": folder}
        lighthouse = _lighthouse("slow-network", environment)
        common = ["--arm", "replica", "--json", "--batches", str(_ROUNDS)]
        command = [sys.executable, str(_FOLDER / "train.py"), *common]
        replicas = [
            subprocess.Popen(
                [*command, *(["--killed-in", str(_KILLED_IN)] if place == 0 else [])],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for place in range(3)
        ]
        try:
            ends = [replica.communicate()[0] for replica in replicas[1:]]
            return max(float(max(json.loads(end))) for end in ends)
        finally:
            processes: list[subprocess.Popen[Any]] = [*replicas, lighthouse]
            for process in processes:
                process.kill()
                process.wait()


def _run(options: list[str]) -> str:
    command = [sys.executable, str(_FOLDER / "train.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]
