"""Check listeners against known loads: an idle card, a memory copy, a matrix product.

The listeners ``smi``, ``gpm`` and ``dcgm`` are read as the collector reads them while a load of
known size runs: the load itself counts its copied bytes and floating-point operations, the card's
peak follows from its clocks, and so the activity that the listeners should show is known. The check
also measures the duration of each call of NVML, and whether GPM works for an unprivileged user:
``python -m benchmarks.gpu_check.listeners GPU`` is that user's part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.gpu_check.model import NotPossibleError, Result, Setting
from benchmarks.gpu_check.plausibility import PHASES, Phase, judge, markdown
from radt.devices.nvml import Nvml
from radt.listeners.api import Listener, Reading, Target
from radt.listeners.dcgm import DcgmListener
from radt.listeners.gpm import GpmListener
from radt.listeners.smi import SmiListener
from radt.model import MissingReason, SeriesKind
from radt.units import significant

_NOBODY = 65534
#: Energy may deviate from power × time: both are measured, power in steps and with a delay.
_ENERGY_TOLERANCE = 0.05
#: `gpu.power` is the mean of the second before, on recent cards (nvmlDeviceGetPowerUsage).
_SETTLING_S = 2.0


def listeners(setting: Setting) -> Result:
    """Compare what ``smi`` and, on cards that have it, ``gpm`` read beside each load."""
    gpm = GpmListener.probe()
    about = [f"GPM without privileges: {_as_nobody(setting.gpu)}."]
    if not gpm.available:
        about.append(f"GPM: {gpm.reason}.")
    return _beside_loads(setting, [SmiListener, *[GpmListener] * gpm.available], about)


def dcgm(setting: Setting) -> Result:
    """Compare what ``dcgm`` reads beside each load."""
    setting.the_gpu()
    answer = DcgmListener.probe()
    if not answer.available:
        raise NotPossibleError(answer.reason)
    return _beside_loads(setting, [DcgmListener], [])


def _beside_loads(
    setting: Setting, kinds: Sequence[type[Listener]], about: Sequence[str]
) -> Result:
    uuid = setting.the_gpu().uuid
    phases: dict[str, Phase] = {}
    with _timed_nvml() as calls:
        read = _opened(setting, kinds)
        calls.clear()  # drop the calls of opening: the cost of readings is measured
        for name, what in PHASES.items():
            with _load(what, setting.device, uuid) as (pid, done):
                target = Target("check", (str(setting.gpu),), (pid,))
                phase = _watch(read, name, target, setting.seconds, setting.interval_s)
            phase.load = done
            phases[name] = phase
        latencies = {name: list(times) for name, times in calls.items()}
        for listener in read:
            latencies[f"a reading of {listener.name}"] = [
                took_s for phase in phases.values() for took_s in phase.took_s[listener.name]
            ]
            listener.close()
    with Nvml():
        verdicts = list(judge(phases, setting.gpu))
    problems = [
        f"{one.what} beside {one.phase} is "
        f"{'–' if one.value is None else significant(one.value)}, should be {one.expected}"
        for one in verdicts
        if one.holds is False
    ]
    known = sum(one.holds is not None for one in verdicts)
    evidence = f"{known} of {len(verdicts)} expected values are known"
    section = "\n".join(markdown(kinds, phases, verdicts, latencies, about))
    return Result.of(evidence, problems, section)


def energy(setting: Setting) -> Result:
    """Compare the energy counter with power × time beside a matrix product."""
    target = Target("check", (str(setting.gpu),))
    uuid = setting.the_gpu().uuid
    read = _opened(setting, [SmiListener])
    with _load("product", setting.device, uuid):
        _watch(read, "settling", target, _SETTLING_S, setting.interval_s)
        phase = _watch(read, "matrix product", target, setting.seconds, setting.interval_s)
    read[0].close()
    counted_w, power_w = phase.mean("gpu.energy", SeriesKind.COUNTER), phase.mean("gpu.power")
    if counted_w is None or power_w is None:
        reason = phase.missing.get("gpu.energy") or phase.missing.get("gpu.power")
        raise NotPossibleError(f"energy or power cannot be read: {reason}")
    share = counted_w / power_w if power_w else 0.0
    problems = [f"they differ by {abs(share - 1):.0%}"] * (abs(share - 1) > _ENERGY_TOLERANCE)
    watts = f"{significant(counted_w)} W counted, {significant(power_w)} W mean power"
    return Result.of(f"{watts} for {setting.seconds:g} s", problems)


def _opened(setting: Setting, kinds: Sequence[type[Listener]]) -> list[Listener]:
    read = [kind() for kind in kinds]
    for listener in read:
        listener.interval_s = setting.interval_s
        listener.open()
    return read


@contextmanager
def _timed_nvml() -> Iterator[dict[str, list[float]]]:
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
def _load(what: str | None, where: str, uuid: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run a load while the body runs; yield its process id and a dictionary for its results.

    The load sees the GPU of this UUID only: CUDA may number GPUs in another order than NVML.
    """
    done: dict[str, Any] = {}
    if what is None:
        yield os.getpid(), done
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_check.loads", what, where],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "working\n":
        process.communicate()
        raise RuntimeError(f"the load {what!r} failed with exit code {process.returncode}")
    yield process.pid, done
    done.update(json.loads(process.communicate()[0]))


def _watch(
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


def _as_nobody(index: int) -> str:
    """Return GPM's answer to an unprivileged user, in words."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.listeners", str(index)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"could not be tried: {done.stderr.strip()[-200:]}"


def _try_as_nobody(index: int) -> str:
    """Switch to the user nobody, for good, and read GPM once."""
    import pynvml  # noqa: F401 - nobody may not be able to read it

    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
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


if __name__ == "__main__":
    print(_try_as_nobody(int(sys.argv[1])))
