"""Check the GPU listeners against known loads: an idle card, a memory copy, a matrix product.

``make gpu-check``, on a machine with an NVIDIA GPU and PyTorch with CUDA. The listeners ``smi`` and
``gpm`` are read as the collector reads them while a load of known size runs: the load itself counts
its copied bytes and floating-point operations, the card's peak follows from its clocks, and so the
activity that the listeners should show is known. The check also measures the duration of each call
of NVML, and tests whether GPM works for an unprivileged user.

Progress goes to stderr, a block of Markdown for docs/measurements.md to stdout. The exit code is 1
if there is no GPU to check, and 2 if a value is not plausible.

With ``--loads cpu`` the loads run on the CPU instead, to try the check with any NVML: its output
then says that it is not a measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from benchmarks.gpu_report import LISTENERS, PHASES, Phase, judge, markdown
from radt.listeners.api import Listener, Reading, Target
from radt.listeners.gpm import GpmListener
from radt.listeners.smi import SmiListener
from radt.model import MissingReason
from radt.nvml import opened
from radt.units import significant

NOBODY = 65534
EXIT_NO_GPU, EXIT_IMPLAUSIBLE = 1, 2
# Reading -----------------------------------------------------------------------------------------


@contextmanager
def timed_nvml() -> Iterator[dict[str, list[float]]]:
    """Time every call of NVML, whichever code makes it."""
    import pynvml

    times: dict[str, list[float]] = defaultdict(list)
    before = {name: getattr(pynvml, name) for name in dir(pynvml) if name.startswith("nvml")}
    functions = {name: one for name, one in before.items() if callable(one)}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                times[name].append(time.perf_counter() - begun_s)

        return call

    for name, function in functions.items():
        setattr(pynvml, name, timed(name, function))
    try:
        yield times
    finally:
        for name, function in functions.items():
            setattr(pynvml, name, function)


@contextmanager
def load(what: str | None, where: str, uuid: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run a load while the body runs; yield its process id and a dictionary for its results.

    The load sees the GPU of this UUID only: CUDA may number GPUs in another order than NVML.
    """
    done: dict[str, Any] = {}
    if what is None:
        yield os.getpid(), done
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_loads", what, where],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "working\n":
        process.communicate()
        raise SystemExit(f"the load {what!r} failed with exit code {process.returncode}")
    yield process.pid, done
    done.update(json.loads(process.communicate()[0]))


def watch(
    listeners: Sequence[Listener], name: str, target: Target, seconds: float, interval_s: float
) -> Phase:
    """Read all listeners on a schedule, as the collector does."""
    phase = Phase(name)
    end_s = time.monotonic() + seconds
    due_s = time.monotonic()
    while due_s < end_s:
        time.sleep(max(0.0, due_s - time.monotonic()))
        for listener in listeners:
            begun_s = time.perf_counter()
            readings = list(listener.sample([target]))
            phase.took_s[listener.name].append(time.perf_counter() - begun_s)
            for one in readings:
                if isinstance(one, Reading):
                    _keep(phase, one)
        due_s += interval_s
    return phase


def _keep(phase: Phase, reading: Reading) -> None:
    if isinstance(reading.value, MissingReason):
        phase.missing[reading.metric] = reading.value
        return
    phase.values[reading.metric].append(reading.value)
    at_s = time.monotonic() if reading.at_ns is None else reading.at_ns / 1e9
    phase.times[reading.metric].append(at_s)


# Unprivileged ------------------------------------------------------------------------------------


def as_nobody(index: int) -> str:
    """Return GPM's answer to an unprivileged user, in words."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--as-nobody", "--gpu", str(index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"could not be tried: {done.stderr.strip()[-200:]}"


def try_as_nobody(index: int) -> str:
    """Switch to the user nobody, for good, and read GPM once."""
    import pynvml  # noqa: F401 - nobody may not be able to read it

    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    answer = GpmListener.probe()
    who = f"user id {os.getuid()}"
    if not answer.available:
        return f"not available to {who}: {answer.reason}"
    listener = GpmListener()
    listener.open()
    readings: list[Reading] = []
    deadline_s = time.monotonic() + 5.0
    while not readings and time.monotonic() < deadline_s:
        readings = list(listener.sample([Target("check", (str(index),))]))
        time.sleep(0.05)
    listener.close()
    refused = sorted({str(one.value) for one in readings if isinstance(one.value, MissingReason)})
    count = sum(not isinstance(one.value, MissingReason) for one in readings)
    said = f"{count} of {len(readings)} values for {who}"
    return f"{said}; the others: {', '.join(refused)}" if refused else said


def _about(options: argparse.Namespace, device: str) -> list[str]:
    import pynvml

    driver = pynvml.nvmlSystemGetDriverVersion()
    day = datetime.now(UTC).date().isoformat()
    user = pwd.getpwuid(os.getuid()).pw_name
    lines = [
        f"`python -m benchmarks.gpu_check`, {day}, {device}, driver {driver}, as {user}, "
        f"{options.seconds:g} s each, a reading every {options.interval * 1000:g} ms.",
    ]
    if options.loads == "cpu":
        lines.insert(
            0, "**No measurement:** the loads ran on the CPU, the GPU had nothing to do.\n"
        )
    return lines


def _absence(options: argparse.Namespace) -> str:
    """Return why nothing can be checked here; empty if a check is possible."""
    answer = SmiListener.probe()
    if not answer.available:
        needs = "It needs an NVIDIA GPU with its driver, and PyTorch with CUDA"
        return f"there is no GPU to check here ({answer.reason}). {needs}."
    if options.loads == "gpu":
        done = subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() != "True":
            why = "PyTorch sees no CUDA" if done.returncode == 0 else "PyTorch cannot be imported"
            return f"there is a GPU, but {why}. Its loads need torch with CUDA."
    return ""


def main() -> int:
    """Check one GPU."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", type=int, default=0, help="NVML's index (0)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (10)")
    parser.add_argument(
        "--interval", type=float, default=0.2, help="seconds between readings (0.2)"
    )
    parser.add_argument("--loads", choices=("gpu", "cpu"), default="gpu", help="where loads run")
    parser.add_argument("--as-nobody", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_nobody:
        print(try_as_nobody(options.gpu))
        return 0
    if why := _absence(options):
        print(f"gpu-check: {why}", file=sys.stderr)
        return EXIT_NO_GPU
    return _check(options)


def _check(options: argparse.Namespace) -> int:
    import pynvml

    phases: dict[str, Phase] = {}
    with opened():
        handle = pynvml.nvmlDeviceGetHandleByIndex(options.gpu)
        uuid, device = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    with timed_nvml() as calls:
        listeners = [kind() for kind in LISTENERS if kind.probe().available]
        for listener in listeners:
            listener.interval_s = options.interval
            listener.open()
        calls.clear()  # drop the calls of opening: the cost of readings is measured
        for name, what in PHASES.items():
            print(f"gpu-check: {name}, {options.seconds:g} s", file=sys.stderr, flush=True)
            with load(what, options.loads, uuid) as (pid, done):
                target = Target("check", (str(options.gpu),), (pid,))
                phase = watch(listeners, name, target, options.seconds, options.interval)
            phase.load = done
            phases[name] = phase
        latencies = {name: list(times) for name, times in calls.items()}
        for listener in listeners:
            latencies[f"a reading of {listener.name}"] = [
                took_s for phase in phases.values() for took_s in phase.took_s[listener.name]
            ]
        for listener in listeners:
            listener.close()
    with opened():
        about = _about(options, device)
        verdicts = list(judge(phases, options.gpu))
    about += ["", f"GPM without privileges: {as_nobody(options.gpu)}."]
    if GpmListener not in map(type, listeners):
        about.append(f"GPM: {GpmListener.probe().reason}.")
    for line in markdown(phases, verdicts, latencies, about):
        print(line)
    wrong = [one for one in verdicts if one.holds is False]
    for one in wrong:
        value = "–" if one.value is None else significant(one.value)
        print(
            f"gpu-check: {one.what} beside {one.phase} is {value}, should be {one.expected}",
            file=sys.stderr,
        )
    return EXIT_IMPLAUSIBLE if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
