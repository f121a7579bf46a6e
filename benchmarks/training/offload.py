"""Steps with a third of the parameters in memory, against all of them in memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from benchmarks.results import Bar, Findings, Table
from radt.training import offload
from radt.training.offloading import OffloadedStep
from radt.training.offloading.optimizers import OptimizerClass

_ROOT = Path(__file__).parents[2]
_WIDTH = 1536
LAYERS = 24
_ROWS = 32
_MEMORY_BYTES = 75_000_000
_STEPS = 2
_TARGET = 0.97
_OPTIMIZER = partial(SGD, lr=1e-3)

Batches = Sequence[tuple[Tensor, Tensor]]


def measure(rounds: int) -> Findings:
    """Measure all sides in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the other core loads and updates
    try:
        with ExitStack() as stack:
            return _measure(rounds, stack)
    finally:
        torch.set_num_threads(threads)


def _measure(rounds: int, stack: ExitStack) -> Findings:
    batches = {count: batches_of(count) for count in (1, 4)}
    steps: dict[str, OffloadedStep] = {}
    sides: dict[tuple[str, int], Callable[[], float]] = {}

    def offload_by(name: str, count: int, **options: Any) -> None:
        step = stack.enter_context(offloaded(model_of(), batches[count], **options))
        steps[f"{name}, C = {count}"] = step
        sides[name, count] = partial(_step, step, batches[count])

    for count in (1, 4):
        sides["all in memory", count] = _plain(batches[count])
        offload_by("loaded ahead", count)
        offload_by("loaded when needed", count, ahead=False)
    offload_by("ahead, file not in the page cache", 4, page_cache=False)
    offload_by("ahead, computed again", 4, recompute=True)
    sides["FSDP2, CPUOffloadPolicy", 4] = stack.enter_context(_fsdp(batches[4]))

    times: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
    losses: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, step in sides.items():
            begin_s = time.perf_counter()
            found = [step() for _ in range(_STEPS)]
            if (offloading := steps.get(f"{side[0]}, C = {side[1]}")) is not None:
                offloading.wait()
            if number > 0:  # the first one is for warming up
                times[side].append((time.perf_counter() - begin_s) / _STEPS)
            losses[side] += found
    same = all(
        losses[name, count] == losses["all in memory", count]
        for name, count in sides
        if not name.startswith("FSDP2")
    )
    findings = _findings(rounds, times, steps, same)
    findings.tables.append(_real_memory())
    return findings


def _real_memory() -> Table:
    """Measure each optimiser in a process of its own."""
    table = Table(
        "Memory of C = 4, loaded ahead, within 90 MB",
        ("optimiser", "counted", "real"),
        note="Peaks of 4 steps. Real: of the process, above what it had before; counted is without "
        "temporary memory within an operation.",
    )
    for name in ("sgd", "adamw"):
        command = [sys.executable, "-m", "benchmarks.training.offload_memory", name]
        done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        cells = (f"{found[each] / 1e6:.0f} MB" for each in ("counted_bytes", "real_bytes"))
        table.rows.append((name, *cells))
    return table


def _findings(
    rounds: int,
    times: dict[tuple[str, int], list[float]],
    steps: dict[str, OffloadedStep],
    same: bool,
) -> Findings:
    megabytes = LAYERS * _WIDTH * (_WIDTH + 1) * 4 / 1e6
    table = Table(
        f"Training {megabytes:.0f} MB of parameters within {_MEMORY_BYTES / 1e6:.0f} MB",
        ("way", "s a step", "speed", "lowest", "highest", "peak"),
        note=(
            f"Speed: against all in memory at the same C, in pairs, median of {rounds} rounds "
            "in turns. Peak: counted bytes of parameters, gradients, states and activations. "
            "FSDP2 on one CPU rank copies within memory: it saves none of it here."
        ),
    )
    speeds: dict[tuple[str, int], float] = {}
    for (name, count), found in sorted(times.items(), key=lambda entry: entry[0][1]):
        base = times["all in memory", count]
        ratios = [whole / part for whole, part in zip(base, found, strict=True)]
        speeds[name, count] = statistics.median(ratios)
        step = steps.get(f"{name}, C = {count}")
        table.rows.append(
            (
                f"C = {count}: {name}",
                f"{statistics.median(found):.3f}",
                f"{speeds[name, count]:.2f}",
                f"{min(ratios):.2f}",
                f"{max(ratios):.2f}",
                "" if step is None else f"{step.peak_bytes / 1e6:.0f} MB",
            )
        )
    ahead = speeds["loaded ahead", 4]
    peak = max(step.peak_bytes for step in steps.values())
    bars = [
        Bar(
            f"a third of the parameters, C = 4: ≥ {_TARGET} of resident speed",
            f"{ahead:.2f} (C = 1: {speeds['loaded ahead', 1]:.2f})",
            ahead >= _TARGET,
        ),
        Bar(
            "counted bytes: at most the budget",
            f"{peak / 1e6:.0f} of {_MEMORY_BYTES / 1e6:.0f} MB",
            peak <= _MEMORY_BYTES,
        ),
        Bar("losses as with all in memory", "equal" if same else "different", same),
    ]
    return Findings([table], bars)


def model_of(layers: int = LAYERS) -> nn.Sequential:
    """Return linear layers of 9.4 MB."""
    torch.manual_seed(0)
    pairs = [(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


def batches_of(count: int) -> Batches:
    """Return the micro-batches of a step."""
    chance = torch.Generator().manual_seed(0)

    def rows() -> Tensor:
        return torch.randn(_ROWS, _WIDTH, generator=chance)

    return [(rows(), rows()) for _ in range(count)]


def _plain(batches: Batches, model: nn.Module | None = None) -> Callable[[], float]:
    """Return a step of the plain loop."""
    trained = model_of() if model is None else model
    optimizer = _OPTIMIZER(trained.parameters())

    def step() -> float:
        total = torch.zeros(())
        for inputs, target in batches:
            loss = functional.mse_loss(trained(inputs), target) / len(batches)
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total.item()

    return step


def offloaded(
    model: nn.Module,
    batches: Batches,
    optimizer_class: OptimizerClass = _OPTIMIZER,
    memory_bytes: int = _MEMORY_BYTES,
    **options: Any,
) -> OffloadedStep:
    """Return a step within the budget."""
    return offload(
        model,
        optimizer_class=optimizer_class,
        loss=functional.mse_loss,
        sample=batches[0],
        memory=memory_bytes,
        accumulate=len(batches),
        **options,
    )


def _step(step: OffloadedStep, batches: Batches) -> float:
    return step(batches).item()


@contextmanager
def _fsdp(batches: Batches) -> Iterator[Callable[[], float]]:
    """PyTorch's own offloading: gathers each layer's parameters from the host's memory."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/rendezvous"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        try:
            model = model_of()
            options: dict[str, Any] = {
                "mesh": init_device_mesh("cpu", (1,)),
                "offload_policy": CPUOffloadPolicy(pin_memory=False),
            }
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, **options)
            fully_shard(model, **options)
            yield _plain(batches, model)
        finally:
            distributed.destroy_process_group()
