"""Loads of known size, each in its own process.

``python -m benchmarks.gpu_check.loads copy|product cuda|cpu`` prints a line once it runs at
full speed, continues until its input ends, and then prints its results as JSON. On the GPU it uses
the first one that CUDA shows. On the CPU it uses numpy, to try the check without a GPU; its
values say nothing about GPUs.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

#: Multiply-adds of 16-bit floats on tensor cores, dense: FLOP per clock and SM, by compute
#: capability. NVIDIA's architecture white papers: the peak over SMs and boost clock.
TENSOR_FLOP_PER_CLOCK = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192}
_COPY_BYTES = 1 << 30
_COPY_BYTES_CPU = 1 << 24
_SIDE = 8192
_SIDE_CPU = 512
_WARM_UP = 10
_BATCH = 20


@dataclass(frozen=True)
class Done:
    """Results of a load: work per second (bytes or FLOP), and the peak that the device can reach.

    ``flop_per_clock`` is for the whole device; None if unknown.
    """

    per_s: float
    device: str
    flop_per_clock: float | None = None


def _on_gpu(what: str) -> tuple[Callable[[], Any], Callable[[], None], float, Done]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    per_clock = TENSOR_FLOP_PER_CLOCK.get(capability)
    done = Done(
        0.0, properties.name, per_clock and float(per_clock * properties.multi_processor_count)
    )
    if what == "copy":
        size = min(_COPY_BYTES, torch.cuda.mem_get_info()[0] // 8)
        source = torch.ones(size, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source), torch.cuda.synchronize, 2.0 * size, done
    left = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16)
    into = torch.empty_like(left)
    return (
        lambda: torch.mm(left, right, out=into),
        torch.cuda.synchronize,
        2.0 * _SIDE**3,
        done,
    )


def _on_cpu(what: str) -> tuple[Callable[[], Any], Callable[[], None], float, Done]:
    import numpy as np

    done = Done(0.0, "the CPU, through numpy")
    if what == "copy":
        source = np.ones(_COPY_BYTES_CPU, dtype=np.uint8)
        target = np.empty_like(source)
        return lambda: np.copyto(target, source), lambda: None, 2.0 * source.nbytes, done
    left = np.ones((_SIDE_CPU, _SIDE_CPU), dtype=np.float32)
    into = np.empty_like(left)
    return (lambda: np.matmul(left, left, out=into)), lambda: None, 2.0 * _SIDE_CPU**3, done


def prepared(what: str, where: str) -> tuple[Callable[[], Any], Callable[[], None], float, Done]:
    """Return a load that has warmed up: its step, the wait for its steps, work per step, device."""
    step, finish, per_step, done = _on_cpu(what) if where == "cpu" else _on_gpu(what)
    for _ in range(_WARM_UP):
        step()
    finish()
    return step, finish, per_step, done


def main(what: str, where: str) -> None:
    """Run the load until the input ends."""
    step, finish, per_step, done = prepared(what, where)
    print("working", flush=True)
    ended = selectors.DefaultSelector()
    ended.register(sys.stdin, selectors.EVENT_READ)
    begun_s, steps = time.perf_counter(), 0
    while not ended.select(0):
        for _ in range(_BATCH):
            step()
        finish()
        steps += _BATCH
    took_s = time.perf_counter() - begun_s
    print(json.dumps(asdict(done) | {"per_s": steps * per_step / took_s}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
