"""A whole selftest: one measurement after the other, in a place of its own."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from radt.collocation.host import Host
from radt.errors import RadtError, UsageError
from radt.listeners import registry
from radt.model import DEFAULT_LISTENERS, ListenerChoice
from radt.selftest import findings, pairs
from radt.selftest.calls import Measured
from radt.selftest.disk import sync_times
from radt.selftest.machine import BUSY_SHARE, Busy, Machine
from radt.selftest.results import Finding, Selftest
from radt.selftest.sampling import Sampled
from radt.selftest.shelter import Shelter, sheltered
from radt.selftest.starting import import_s, start_workloads

#: The bars of sampling are for so many.
RUNS = 8
LOG_CALLS = 200_000
#: A stretch of sampling is so many times as long as a run: there is one of each, not several.
_STRETCH = 2.5
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for.

    Args:
        pairs: Pairs of runs; 0 for none.
        seconds: How long each of these runs computes.
        listeners: Of these runs, and what is sampled, there at 1 and 10 Hz.
        seed: Draws which run of a pair goes first.
    """

    pairs: int
    seconds: float
    listeners: tuple[ListenerChoice, ...]
    seed: int

    @property
    def listeners_text(self) -> str:
        return "+".join(map(str, self.listeners)) or "none"

    def at(self, rate_hz: float) -> str:
        """The same listeners at another rate."""
        changed = (replace(one, interval_s=1 / rate_hz) for one in self.listeners)
        return "+".join(map(str, changed))


def chosen_listeners(text: str) -> tuple[ListenerChoice, ...]:
    """As in an experiment file, ``default`` replaced by the listeners that it stands for here.

    Raises:
        UsageError: There is no such listener, or it is a profiler.
    """
    found = registry.load()
    chosen: dict[str, ListenerChoice] = {}
    for part in filter(None, (part.strip() for part in text.split("+"))):
        if part == "none":
            continue
        one = ListenerChoice.parse(part)
        one = replace(one, name=registry.ALIASES.get(one.name, one.name))
        if one.name == DEFAULT_LISTENERS:
            chosen = {each.name: each for each in found.defaults} | chosen
        elif one.name in found.listeners:
            chosen[one.name] = one
        else:
            is_known = one.name in found.profilers
            what = "a profiler, which measures one run" if is_known else "no listener"
            raise UsageError(f"{one.name!r} is {what}", "radt listeners shows what there is")
    return tuple(chosen.values())


@dataclass
class _Progress:
    """What was found so far, and whom to tell."""

    tell: Callable[[Finding], None]
    say: Callable[[str], None]
    is_busy: bool = False
    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def step(self, key: str, subject: str, measure: Callable[[], Sequence[Finding]]) -> None:
        """Measure something; if that does not work, the others are measured all the same."""
        self.say(subject)
        try:
            found = measure()
        except (RadtError, OSError) as error:
            message = error.message if isinstance(error, RadtError) else str(error)
            remedy = (error.remedy or "") if isinstance(error, RadtError) else ""
            found = [Finding(key, subject, failure=message, remedy=remedy)]
        for one in found:
            judged = replace(one, is_upper_bound=self.is_busy)
            self.findings.append(judged)
            self.tell(judged)


def run_selftest(
    options: Options,
    data_folder: Path,
    *,
    tell: Callable[[Finding], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Selftest:
    """Measure everything.

    Args:
        options: What to measure.
        data_folder: The user's, whose disk is measured; it is not touched.
        tell: Given each finding as soon as it is there.
        say: Told what is being measured.
        warn: Told why numbers say less than they seem to.

    Raises:
        UsageError: Nothing can be written where the data folder is.
    """
    began_ns, began_s = time.time_ns(), time.monotonic()
    machine, busy = Machine.detect(), Busy.look()
    progress = _Progress(tell, say, is_busy=bool(busy.warning))
    progress.raw["busy"] = [busy.document()]
    if busy.warning:
        _warn(progress, warn, f"{busy.warning}: results are upper bounds")
    with sheltered(data_folder) as shelter:
        _measure(shelter, options, progress, warn)
    progress.raw["busy"].append(Busy.look().document())
    return Selftest(
        machine=asdict(machine),
        options={
            "pairs": options.pairs,
            "seconds": options.seconds,
            "listeners": options.listeners_text,
            "seed": options.seed,
        },
        findings=progress.findings,
        warnings=progress.warnings,
        raw=progress.raw,
        began_ns=began_ns,
        took_s=time.monotonic() - began_s,
    )


def _measure(
    shelter: Shelter, options: Options, progress: _Progress, warn: Callable[[str], None]
) -> None:
    progress.step(
        "fsync", "fsync of the disk", lambda: findings.of_disk(sync_times(shelter.home.path))
    )
    progress.step("import", "import radt", lambda: findings.of_import(import_s(shelter)))
    # Before any run that MLflow shall have: what brings it there takes CPU time, too.
    for rate_hz in findings.CPU_BARS:
        progress.step(
            f"sampling_{rate_hz:g}hz",
            f"sampling at {rate_hz:g} Hz",
            partial(_sampling, shelter, options, rate_hz, progress),
        )
    if options.pairs:
        progress.step("slowdown.cpu", "runs in pairs", lambda: _pairs(shelter, options, progress))
        if Machine.detect().gpus and importlib.util.find_spec("torch") is not None:
            progress.step(
                "slowdown.gpu",
                "runs in pairs, GPU",
                lambda: _pairs(shelter, options, progress, gpu=True),
            )
        _warn_of_waiting(progress, warn)
    progress.step("start_skew", "start of workloads", lambda: _starts(shelter, progress))
    # Last: so many values take long to MLflow, for which nothing waits.
    progress.step("log_metric", "log_metric", lambda: _calls(shelter, progress))


def _calls(shelter: Shelter, progress: _Progress) -> Sequence[Finding]:
    pairs.rest(shelter)
    answer = shelter.ask("radt.selftest.calls", str(LOG_CALLS))
    progress.raw["log_metric"] = answer
    return findings.of_calls(Measured(**answer["log_metric"]), Measured(**answer["empty"]))


def _sampling(
    shelter: Shelter, options: Options, rate_hz: float, progress: _Progress
) -> Sequence[Finding]:
    seconds = _STRETCH * options.seconds
    if not options.listeners:
        return []
    answer = shelter.ask(
        *("radt.selftest.sampling", str(RUNS), str(seconds), options.at(rate_hz)),
        timeout_s=_PATIENCE_S + seconds,
    )
    progress.raw[f"sampling_{rate_hz:g}hz"] = answer
    sampled = Sampled.from_json(answer)
    found = findings.of_sampling(sampled, rate_hz, RUNS)
    if rate_hz == 1:
        found += findings.of_listeners(sampled, [one.name for one in options.listeners])
    return found


def _starts(shelter: Shelter, progress: _Progress) -> Sequence[Finding]:
    pairs.rest(shelter)
    starts = start_workloads(shelter)
    progress.raw["starts"] = asdict(starts)
    return findings.of_starts(starts)


def _pairs(
    shelter: Shelter, options: Options, progress: _Progress, *, gpu: bool = False
) -> Sequence[Finding]:
    processes = 1 if gpu else _processes()
    load = pairs.load_of(shelter, options.seconds, options.listeners_text, processes, gpu=gpu)
    if load is None:
        return []  # PyTorch does not see the card
    found = pairs.run_pairs(shelter, load, options.pairs, options.seed, progress.say)
    progress.raw["gpu_pairs" if gpu else "pairs"] = pairs.raw(found)
    return findings.of_pairs(found, gpu=gpu, processes=processes)


def _processes() -> int:
    """As many as can compute at once: CPUs, or what a container is given of them."""
    host = Host.detect()
    cpus = len(host.usable_cpus)
    return cpus if host.cpu_limit is None else max(1, min(cpus, math.floor(host.cpu_limit)))


def _warn_of_waiting(progress: _Progress, warn: Callable[[str], None]) -> None:
    """Runs that nobody tracked had to wait for a CPU: others used it."""
    waits = [pair["without"]["waited"] for pair in progress.raw.get("pairs", ())]
    if waits and max(waits) > BUSY_SHARE:
        text = f"runs without radt waited up to {max(waits):.0%} of their time for a CPU"
        _warn(progress, warn, f"{text}: others used it, and the ratio is less certain")


def _warn(progress: _Progress, warn: Callable[[str], None], text: str) -> None:
    progress.warnings.append(text)
    warn(text)
