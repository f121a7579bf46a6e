"""A fixed amount of work as a training script does it, with radt or without.

``python -m radt.selftest.work STEPS ROUNDS PROCESSES`` has that many processes do it. Where there
are as many as CPUs, whatever the tracker takes, it takes from the work. The first logs a value
after each step, the others are its children, as the workers of a loader are. With ``--gpu`` it is
one process whose steps are products of matrices. ``--listeners L`` opens a `radt.Run` around it;
without it there is no radt at all. Prints how long the work took, as JSON.

``--calibrate SECONDS`` finds out how many rounds make a step of that length.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEP_S = 0.01
EPOCHS = 2
_SIDE = 2048
_TRIAL_ROUNDS = 50_000
_TRIAL_PRODUCTS = 20

Step = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Done:
    """What the work took.

    ``times_s`` has each process's wall time, ``waited`` the share of it in which the processes were
    ready to run and others had the CPU. ``recorded`` says whether radt has the run.
    """

    times_s: tuple[float, ...]
    waited: float
    recorded: bool


def burn(rounds: int) -> float:
    """Arithmetic on one core, nothing else."""
    value = 1
    for _ in range(rounds):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF
    return float(value)


def gpu_step() -> tuple[Step, Callable[[], None]]:
    """A number of products on the first GPU, and what waits for them."""
    import torch

    left = torch.randn(_SIDE, _SIDE, device="cuda")
    into = torch.empty_like(left)

    def multiply(products: int) -> float:
        for _ in range(products):
            torch.mm(left, left, out=into)
        torch.cuda.synchronize()
        return 0.5

    return multiply, torch.cuda.synchronize


def has_gpu() -> bool:
    """Whether PyTorch is installed and sees a card."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def calibrated(step_s: float, *, gpu: bool) -> int:
    """Rounds of a step of about that length, all processes at it."""
    step: Step
    if gpu:
        step, trial = gpu_step()[0], _TRIAL_PRODUCTS
    else:
        step, trial = burn, _TRIAL_ROUNDS
    step(trial)
    took_s = min(_timed(step, trial) for _ in range(3))
    return max(1, round(trial * step_s / took_s))


def _timed(step: Step, rounds: int) -> float:
    begun_s = time.perf_counter()
    step(rounds)
    return time.perf_counter() - begun_s


def waited_s() -> float:
    """Seconds that this process was ready to run and did not, so far.

    https://docs.kernel.org/scheduler/sched-stats.html, "/proc/<pid>/schedstat"; 0 without it.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def do_work(
    steps: int, rounds: int, processes: int, *, gpu: bool, run: Any = None
) -> tuple[list[float], float]:
    """Each process's seconds, and the share that they waited for a CPU."""
    step = gpu_step()[0] if gpu else burn
    step(1)
    ready, go = os.pipe()
    pipes = [_helper(steps, rounds, ready, go) for _ in range(processes - 1)]
    os.close(ready)
    os.close(go)  # lets all of them begin
    begun_s, waited_before_s = time.perf_counter(), waited_s()
    for epoch in range(1, EPOCHS + 1):
        with run.epoch(epoch) if run is not None else nullcontext():
            for number in range(steps * (epoch - 1) // EPOCHS, steps * epoch // EPOCHS):
                value = step(rounds)
                if run is not None:
                    run.log_metric("loss", value, number)
    times = [time.perf_counter() - begun_s]
    waited = [waited_s() - waited_before_s]
    for pipe in pipes:
        with open(pipe, encoding="ascii") as said:  # noqa: PTH123 - a descriptor
            took_s, helper_waited_s = json.loads(said.read())
        times.append(took_s)
        waited.append(helper_waited_s)
    for _ in pipes:
        os.wait()
    return times, sum(waited) / sum(times)


def _helper(steps: int, rounds: int, ready: int, go: int) -> int:
    """Fork a process that begins with the others; where it will say how long it took."""
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        return read
    try:
        os.close(go)
        os.read(ready, 1)  # returns when nobody holds the other end any longer
        begun_s, waited_before_s = time.perf_counter(), waited_s()
        for _ in range(steps):
            burn(rounds)
        took = (time.perf_counter() - begun_s, waited_s() - waited_before_s)
        os.write(write, json.dumps(took).encode())
        os._exit(0)
    finally:
        os._exit(1)


def main(arguments: list[str]) -> None:
    """One run, or a calibration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=int, nargs="?", default=0)
    parser.add_argument("rounds", type=int, nargs="?", default=0)
    parser.add_argument("processes", type=int, nargs="?", default=1)
    parser.add_argument("--listeners")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--calibrate", type=float)
    given = parser.parse_args(arguments)
    if given.calibrate is not None:
        usable = not given.gpu or has_gpu()
        rounds = calibrated(given.calibrate, gpu=given.gpu) if usable else 0
        sys.stdout.write(json.dumps({"rounds": rounds}) + "\n")
        return
    if given.listeners is None:
        times, waited = do_work(given.steps, given.rounds, given.processes, gpu=given.gpu)
        done = Done(tuple(times), waited, recorded=False)
    else:
        import radt

        with radt.Run("work", experiment="selftest", listeners=given.listeners) as run:
            times, waited = do_work(
                given.steps, given.rounds, given.processes, gpu=given.gpu, run=run
            )
            done = Done(tuple(times), waited, recorded=bool(run.id))
    sys.stdout.write(json.dumps(asdict(done)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
