"""Real memory of an offloaded training, against what it counts: one optimiser, one process.

python -m benchmarks.training.offload_memory sgd|adamw
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch.optim import SGD, AdamW

from benchmarks.training import offload
from radt.training.offloading.optimizers import OptimizerClass
from radt.training.offloading.stores import give_memory_back

_OPTIMIZERS: dict[str, OptimizerClass] = {
    "sgd": partial(SGD, lr=1e-3),
    "adamw": partial(AdamW, lr=1e-4),
}
#: What AdamW needs; SGD has the same, for a comparison.
MEMORY_BYTES = 90_000_000
_MICRO_BATCHES, _STEPS = 4, 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks of a training.

    Attributes:
        counted_bytes: What was counted at once.
        real_bytes: What the process had more than before (proc_pid_status(5), VmHWM).
    """

    counted_bytes: int
    real_bytes: int


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _trained(name: str, layers: int) -> Memory:
    """Train a few steps; return the peaks from the first one on."""
    batches = offload.batches_of(_MICRO_BATCHES)
    before = _status_bytes("VmRSS")
    model, optimizer_class = offload.model_of(layers), _OPTIMIZERS[name]
    with offload.offloaded(model, batches, optimizer_class, MEMORY_BYTES) as step:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
        for _ in range(_STEPS):
            step(batches)
        step.wait()
        return Memory(step.peak_bytes, _status_bytes("VmHWM") - before)


def main() -> None:
    """Train a small model for what is allocated once; then measure."""
    torch.set_num_threads(1)
    _trained(sys.argv[1], layers=2)
    gc.collect()
    give_memory_back()
    print(json.dumps(asdict(_trained(sys.argv[1], offload.LAYERS))))


if __name__ == "__main__":
    main()
