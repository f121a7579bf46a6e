"""Latency of serving beside a training on one core, and what boundaries cost."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional

from benchmarks.results import Bar, Findings, Table
from radt.training import DeviceLease
from radt.training.preemption import BlockSegment, Boundaries, segments_of

_SCRIPT = Path(__file__).parents[2] / "experiments" / "preemption" / "train.py"
_STEPS = 64
_BETTER = 8.0
_THROUGHPUT = 0.98
_COST = 0.01
_MAX_SEGMENT_MS = 5.0
_ALONE, _FREE, _SLICED, _LEASE = "serving alone", "free threads", "sliced by iteration", "lease"
_PROCESSES = "lease, two processes"
_ARMS = {_ALONE: "alone", _FREE: "free", _SLICED: "sliced", _LEASE: "lease"}


def measure(rounds: int) -> Findings:
    """Measure latencies in all arms in turns, then the cost of boundaries."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, arm in _ARMS.items():
            found[name].append(_summary(_started("--arm", arm)))
        found[_PROCESSES].append(_in_processes())
    latency = _latency_table(found, rounds)
    cost, share = _cost_table(rounds)
    return Findings([latency, cost], [*_bars(found), _cost_bar(share)])


def _started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(_SCRIPT), "--steps", str(_STEPS), *arguments],
        env=dict(os.environ, RADT_MODE="off"),
        stdout=subprocess.PIPE,
        text=True,
    )


def _summary(process: subprocess.Popen[str]) -> dict[str, float]:
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{_SCRIPT.name} ended with {process.returncode}")
    summary: dict[str, float] = json.loads(printed.splitlines()[-1])
    return summary


def _in_processes() -> dict[str, float]:
    """Serve in one process and train in another, both on the same core."""
    serving = _started("--arm", "lease", "--part", "serve", "--seconds", "3600")
    try:
        trained = _summary(_started("--arm", "lease", "--part", "train"))
        serving.terminate()
        served = _summary(serving)
        del served["p95_training_ms"]  # the training is in the other process
        return {**served, **trained}
    finally:
        serving.kill()
        serving.wait()


def _medians(found: dict[str, list[dict[str, float]]], quantity: str) -> dict[str, float]:
    return {
        name: statistics.median(each[quantity] for each in summaries)
        for name, summaries in found.items()
        if quantity in summaries[0]
    }


def _latency_table(found: dict[str, list[dict[str, float]]], rounds: int) -> Table:
    p50, p95 = _medians(found, "p50_ms"), _medians(found, "p95_ms")
    speed, meanwhile = _medians(found, "steps_per_s"), _medians(found, "p95_training_ms")
    losses = {each["last_loss"] for name in speed for each in found[name]}
    same = "Losses are bit-identical in all" if len(losses) == 1 else "LOSSES DIFFER"
    table = Table(
        "Serving beside a training on one core",
        ("arm", "p50", "p95", "lowest to highest", "meanwhile", "steps/s", "step", "answer"),
        note=f"Medians of {rounds} rounds in turns, {_STEPS} steps each. {same}. "
        "meanwhile: p95 of the training's CPU time between a request and its answer. "
        "step, answer: CPU times of one.",
    )
    step, answer = _medians(found, "step_cpu_ms"), _medians(found, "answer_cpu_ms")
    for name, summaries in found.items():
        all_p95 = [each["p95_ms"] for each in summaries]
        spread = f"{min(all_p95):.1f} to {max(all_p95):.1f} ms"
        training = f"{meanwhile[name]:.1f} ms" if name in speed and name in meanwhile else "–"
        steps = f"{speed[name]:.2f}" if name in speed else "–"
        latencies = f"{p50[name]:.1f} ms", f"{p95[name]:.1f} ms", spread
        step_cpu = f"{step[name]:.1f} ms" if name in step else "–"
        cpu = step_cpu, f"{answer[name]:.2f} ms"
        table.rows.append((name, *latencies, training, steps, *cpu))
    return table


def _bars(found: dict[str, list[dict[str, float]]]) -> list[Bar]:
    p95 = _medians(found, "p95_ms")
    better = p95[_SLICED] / p95[_LEASE]
    rounds = zip(found[_LEASE], found[_SLICED], strict=True)
    ratios = [lease["steps_per_s"] / sliced["steps_per_s"] for lease, sliced in rounds]
    kept = statistics.median(ratios)
    return [
        Bar(
            f"serving p95, lease against slicing by iteration: at least {_BETTER:.0f}× better",
            f"{better:.1f}×",
            better >= _BETTER,
        ),
        Bar(
            f"training throughput, lease against slicing: at least {_THROUGHPUT:.2f}",
            f"{kept:.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            kept >= _THROUGHPUT,
        ),
    ]


def _cost_bar(share: float) -> Bar:
    return Bar(
        f"boundaries that nobody waits at: at most {_COST:.0%} of a step",
        f"{share:.2%}",
        share <= _COST,
    )


# Boundaries -----------------------------------------------------------------------------------


def _cost_table(rounds: int) -> tuple[Table, float]:
    """Return what boundaries cost of a step, which are compared with and without."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = _script().network(32, 4)
        batch = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
        with DeviceLease("cpu") as lease:
            segments = segments_of(model, batch[0], _MAX_SEGMENT_MS, lease.boundary)
            step_s, ratios = _steps_compared(model, segments, lease, batch, 24 * rounds)
            _, same = _steps_compared(model, (), lease, batch, 24 * rounds)
        lease.close()
    finally:
        torch.set_num_threads(before)
    table = Table(
        "Boundaries that nobody waits at",
        ("quantity", "measured"),
        [
            ("boundaries in a step", str(2 * len(segments) - 1)),
            ("CPU time of a step", f"{step_s * 1e3:.0f} ms"),
            ("a step with boundaries against one without", _with_interval(ratios)),
            ("a step without against one without", _with_interval(same)),
        ],
        note=f"Segments of at most {_MAX_SEGMENT_MS:g} ms. Times are of the thread, so others on "
        f"the machine count less; medians of {len(ratios)} pairs of steps of one model, with their "
        "95 % intervals.",
    )
    return table, statistics.median(ratios) - 1


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("preemption_experiment", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and enums look for it
    spec.loader.exec_module(module)
    return module


def _steps_compared(
    model: nn.Module,
    segments: Sequence[BlockSegment],
    lease: DeviceLease,
    batch: tuple[torch.Tensor, torch.Tensor],
    pairs: int,
) -> tuple[float, list[float]]:
    """Return the CPU time of a step, and ratios of one with boundaries to one without.

    Both are steps of the same model, since two models differ by more than boundaries cost: their
    tensors lie elsewhere in memory. Each goes first in every other pair.
    """

    def step_s(is_cut: bool) -> float:
        boundaries = Boundaries(model, segments if is_cut else (), lambda _name: lease.boundary())
        began_s = time.thread_time()
        functional.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
        found_s = time.thread_time() - began_s
        boundaries.remove()
        return found_s

    plain_s, ratios = [], []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        found_s = {is_cut: step_s(is_cut) for is_cut in order}
        plain_s.append(found_s[False])
        ratios.append(found_s[True] / found_s[False])
    return statistics.median(plain_s), ratios


def _with_interval(values: list[float]) -> str:
    """Return a median and its 95 % interval, from the ranks of a binomial distribution."""
    ordered, count = sorted(values), len(values)
    reach = 0.98 * count**0.5
    low, high = math.floor(count / 2 - reach), math.ceil(count / 2 + reach)
    found = statistics.median(values), ordered[max(0, low)], ordered[min(count - 1, high)]
    return "{:.3f} ({:.3f} to {:.3f})".format(*found)
