"""Energy of single runs: above a measured idle power, by shares of SM time, never copied."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radt.home import RUNTIME_VARIABLE
from radt.listeners.smi_energy import FILE_NAME, METHOD, EnergySplit, IdlePowers, Moment
from radt.listeners.smi_processes import Processes, SmTime
from radt.listeners.smi_runs import METRICS
from radt.model import MissingReason, SeriesKind
from tests.listeners.conftest import Run, SampledNvml, Sampling

OWN = os.getpid()
OTHER = os.getppid()
METRIC = "process.gpu.energy"


def card(*watts_from: tuple[float, float], step_s: float = 0.0, busy: bool = True) -> list[str]:
    """A card that draws so many W from these seconds on, by its energy counter.

    If it is busy, then from the second change on, or from the beginning if there is only one.
    """
    rest = "80000 500 1000 60000 0 35 210 405"
    lines = ["count 1", f"gpu 0 0 {rest}"]
    if busy:
        lines.append(f"at {watts_from[:2][-1][0] if watts_from else 0} gpu 0 50 {rest}")
    joules, before_s, before_w = 0.0, 0.0, 0.0
    for start_s, watts in watts_from:
        joules += before_w * (start_s - before_s)
        base_mj = (joules - watts * start_s) * 1000
        lines.append(f"at {start_s} field 0 83 ull {base_mj:.3f} {watts * 1000:.3f} {step_s}")
        before_s, before_w = start_s, watts
    return lines


@pytest.fixture
def colleague() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def _values(smi: Sampling, seconds: int, *runs: Run, after_s: float = 1.0) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {run.run_id: [] for run in runs or smi.runs}
    for _ in range(round(seconds / after_s)):
        for one in smi.sample(*runs, after_s=after_s).readings:
            if one["metric"] == METRIC:
                values[one["run_id"]].append(one["value"])
    return values


def test_it_is_declared_as_estimated() -> None:
    (metric,) = [one for one in METRICS if one.name == METRIC]
    assert metric.estimated
    assert metric.kind is SeriesKind.COUNTER
    assert metric.unit == "J"
    assert metric.method == METHOD
    assert "SM time" in METHOD
    assert "idle" in METHOD


def test_alone_on_the_card_all_above_idle_is_the_runs(nvml: SampledNvml) -> None:
    smi = nvml.open(*card((0, 50), (5, 250)), f"at 5 process 0 {OWN} 1", f"at 5 sm 0 {OWN} 90")
    idle = _values(smi, 5, Run(pids=[OWN]))["a"]
    assert idle[:4] == pytest.approx([0] * 4, abs=0.5)
    busy = _values(smi, 10)["a"]
    assert busy[-1] == pytest.approx(200 * 10, rel=0.001)
    assert busy == sorted(busy)


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 3.0])
def test_steps_of_the_counter_do_not_matter(nvml: SampledNvml, interval_s: float) -> None:
    smi = nvml.open(
        *card((0, 50), (6, 250), step_s=0.1), f"at 6 process 0 {OWN} 1", f"at 6 sm 0 {OWN} 90"
    )
    _values(smi, 6, Run(pids=[OWN]), after_s=interval_s)
    values = _values(smi, 15, after_s=interval_s)["a"]
    assert values[-1] == pytest.approx(200 * 15, rel=0.06)
    assert 5 <= len(values) <= 17, "about one a second, however short the interval"


def test_an_idle_process_collects_nothing(nvml: SampledNvml) -> None:
    """The counter's steps are noise of both signs; their positive half must not add up."""
    smi = nvml.open(*card((0, 50), step_s=0.13, busy=False), f"at 31 process 0 {OWN} 1")
    values = _values(smi, 91, Run(pids=[OWN]))["a"]
    assert values[-1] < 0.01 * 50 * 60


def test_energy_is_split_by_sm_time(nvml: SampledNvml, colleague: int) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 250)),
        *(f"at 3 process 0 {pid} 1" for pid in (OWN, OTHER, colleague)),
        f"at 3 sm 0 {OWN} 30",
        f"at 3 sm 0 {OTHER} 10",
        f"at 3 sm 0 {colleague} 40",
    )
    values = _values(smi, 23, Run("a", pids=[OWN]), Run("b", pids=[OTHER]))
    assert values["a"][-1] == pytest.approx(200 * 20 * 3 / 8, rel=0.001)
    assert values["b"][-1] == pytest.approx(200 * 20 * 1 / 8, rel=0.001)


def test_a_run_that_joins_starts_at_nothing(nvml: SampledNvml) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 250)),
        f"at 3 process 0 {OWN} 1",
        f"at 3 sm 0 {OWN} 50",
        f"at 10.5 process 0 {OTHER} 1",
        f"at 10.5 sm 0 {OTHER} 50",
    )
    first = Run("a", pids=[OWN])
    before = _values(smi, 10, first)["a"][-1]
    assert before == pytest.approx(200 * 7, rel=0.001)
    values = _values(smi, 5, first, Run("b", pids=[OTHER]))
    assert values["b"][0] == 0
    assert values["b"][-1] == pytest.approx(100 * 4, rel=0.001)
    # Each run has an account of its own; one that comes back is another.
    assert _values(smi, 1, Run("b", pids=[OTHER]))["b"][0] > values["b"][-1]
    assert _values(smi, 1, first)["a"] == [0]


@pytest.mark.parametrize("shared", [False, True])
def test_the_end_of_a_run_counts_though_its_stretch_is_short(
    nvml: SampledNvml, colleague: int, *, shared: bool
) -> None:
    others = [f"at 3 {kind} 0 {pid} 50" for pid in (colleague, OTHER) for kind in ("process", "sm")]
    own = (f"at 3 until 8.4 process 0 {OWN} 1", f"at 3 until 9 sm 0 {OWN} 50")
    smi = nvml.open(*card((0, 50), (3, 250)), *own, *others * shared)
    ends, stays = Run("a", pids=[OWN]), Run("b", pids=[OTHER])
    _values(smi, 8, ends, stays)
    last = smi.counters(Run("a"), after_s=0.4)
    share = 1 / 3 if shared else 1
    assert last[METRIC, "a"] == pytest.approx(200 * 5.4 * share, rel=0.001)
    assert (METRIC, "b") not in last
    if shared:
        assert _values(smi, 1, stays)["b"] == [pytest.approx(200 * 5.4 / 3 + 100, rel=0.001)]


def test_a_run_that_ends_just_after_another_keeps_what_it_has(
    nvml: SampledNvml, colleague: int
) -> None:
    """The first end has closed the stretch of both; of the rest, no share is known."""
    pids = (OWN, OTHER, colleague)
    lines = [*card((0, 50), (3, 250)), *(f"at 3 process 0 {pid} 50" for pid in pids)]
    smi = nvml.open(*lines, *(f"at 3 sm 0 {pid} 50" for pid in pids))
    runs = [Run("a", pids=[OWN]), Run("b", pids=[OTHER])]
    _values(smi, 8, *runs)
    used_j = pytest.approx(200 * 5.4 / 3, rel=0.001)
    assert smi.counters(Run("a"), after_s=0.4)[METRIC, "a"] == used_j
    nvml.configure(*lines)
    assert smi.counters(Run("b"), after_s=0.3)[METRIC, "b"] == used_j


def test_a_run_that_ends_before_there_are_samples_keeps_what_it_has(
    nvml: SampledNvml, colleague: int
) -> None:
    lines = [*card((0, 50), (3, 250)), *(f"at 3 process 0 {pid} 1" for pid in (OWN, colleague))]
    smi = nvml.open(*lines, *(f"at 3 sm 0 {pid} 50" for pid in (OWN, colleague)))
    _values(smi, 8, Run("a", pids=[OWN]), Run("b", pids=[colleague]))
    nvml.configure(*lines)
    assert (METRIC, "a") not in smi.counters(Run("a"), after_s=0.4)
    nvml.add(*(f"sm 0 {pid} 50" for pid in (OWN, colleague)))
    assert _values(smi, 1, Run("b", pids=[colleague]))["b"] == [pytest.approx(100 * 6.4, rel=0.01)]


def test_a_process_that_has_just_ended_was_the_runs(nvml: SampledNvml, colleague: int) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 250)),
        f"at 3 until 8 process 0 {OWN} 1",
        f"at 3 process 0 {colleague} 1",
        f"at 3 until 9 sm 0 {OWN} 50",
    )
    _values(smi, 7, Run(pids=[OWN, OTHER]))
    values = _values(smi, 1, Run(pids=[OTHER]))["a"]
    assert values[-1] == pytest.approx(200 * 5, rel=0.001)


def test_time_that_nobody_used_is_nobodys(nvml: SampledNvml, colleague: int) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 90), busy=False),
        f"at 3 process 0 {OWN} 1",
        f"at 3 process 0 {colleague} 1",
    )
    assert _values(smi, 10, Run(pids=[OWN]))["a"][-1] == 0


@pytest.mark.parametrize("shared", [False, True])
def test_without_sm_time_only_who_is_alone_has_energy(
    nvml: SampledNvml, colleague: int, *, shared: bool
) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 250)),
        f"at 3 process 0 {OWN} 1",
        f"at 3 process 0 {colleague} 1" if shared else "",
        "fail nvmlDeviceGetProcessUtilization 3",
    )
    last = _values(smi, 13, Run(pids=[OWN]))["a"][-1]
    assert last == ("unattributable" if shared else pytest.approx(200 * 10, rel=0.001))


def test_a_card_without_a_counter_has_no_energy_to_split(nvml: SampledNvml) -> None:
    smi = nvml.open(*card(), "fail nvmlDeviceGetTotalEnergyConsumption 3", f"process 0 {OWN} 1")
    nvml.add(f"sm 0 {OWN} 50")
    assert set(_values(smi, 3, Run(pids=[OWN]))["a"]) == {"unsupported"}


def test_energy_goes_on_after_a_card_was_lost(nvml: SampledNvml) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 250)),
        f"at 3 process 0 {OWN} 1",
        f"at 3 sm 0 {OWN} 50",
        "at 10 until 12 lost 0",
    )
    values = _values(smi, 20, Run(pids=[OWN]))["a"]
    numbers = [one for one in values if isinstance(one, float)]
    assert set(values) - set(numbers) == {"lost"}
    assert numbers == sorted(numbers)
    assert 200 * 12 <= numbers[-1] <= 200 * 16


# Idle power --------------------------------------------------------------------------------------


def _kept(nvml: SampledNvml) -> dict[str, Any]:
    return json.loads((nvml.folder / "runtime" / FILE_NAME).read_text())


def _keep(nvml: SampledNvml, watts: float, age_s: float) -> None:
    runtime = nvml.folder / "runtime"
    runtime.mkdir(mode=0o700)
    at = time.time() - age_s
    one = {"watts": watts, "seconds": 5.0, "started_at": at - 5, "measured_at": at}
    (runtime / FILE_NAME).write_text(json.dumps({"GPU-fake-0": one}))


def _busy_from_the_start(nvml: SampledNvml, colleague: int) -> Sampling:
    return nvml.open(
        *card((0, 250)),
        f"process 0 {OWN} 1",
        f"process 0 {colleague} 1",
        f"sm 0 {OWN} 50",
        f"sm 0 {colleague} 50",
    )


def test_idle_power_is_never_assumed(nvml: SampledNvml, colleague: int) -> None:
    smi = _busy_from_the_start(nvml, colleague)
    assert set(_values(smi, 5, Run(pids=[OWN]))["a"]) == {"unattributable"}
    assert not (nvml.folder / "runtime" / FILE_NAME).exists()


@pytest.mark.parametrize(("age_s", "works"), [(3600, True), (90_000, False)])
def test_idle_power_of_the_same_day_is_used(
    nvml: SampledNvml, colleague: int, age_s: float, *, works: bool
) -> None:
    _keep(nvml, 50, age_s)
    last = _values(_busy_from_the_start(nvml, colleague), 6, Run(pids=[OWN]))["a"][-1]
    assert last == (pytest.approx(200 * 5 / 2, rel=0.001) if works else "unattributable")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"GPU-fake-0": {"watts": 3}}', '{"GPU-fake-0": 1}']
)
def test_a_damaged_file_is_measured_anew(nvml: SampledNvml, colleague: int, content: str) -> None:
    runtime = nvml.folder / "runtime"
    runtime.mkdir(mode=0o700)
    (runtime / FILE_NAME).write_text(content)
    smi = _busy_from_the_start(nvml, colleague)
    assert set(_values(smi, 3, Run(pids=[OWN]))["a"]) == {"unattributable"}


def test_idle_power_is_measured_before_a_run_and_kept(nvml: SampledNvml) -> None:
    smi = nvml.open(*card((0, 50), (5, 250)), f"at 5 process 0 {OWN} 1", f"at 5 sm 0 {OWN} 90")
    smi.sample(Run(pids=[OWN]), after_s=4.0)
    kept = _kept(nvml)["GPU-fake-0"]
    assert kept["watts"] == pytest.approx(50)
    assert kept["seconds"] == pytest.approx(4)
    mode = (nvml.folder / "runtime" / FILE_NAME).parent.stat().st_mode
    assert stat.S_IMODE(mode) == 0o700


def test_a_card_that_has_just_worked_is_not_idle_yet(nvml: SampledNvml) -> None:
    smi = nvml.open(
        *card((0, 50), (3, 250), (10, 100), (14, 60)),
        "at 11 gpu 0 0 80000 500 1000 60000 0 35 210 405",
        f"at 3 until 10 process 0 {OWN} 1",
        f"at 3 until 10 sm 0 {OWN} 90",
    )
    smi.runs = [Run(pids=[OWN])]
    for _ in range(20):
        smi.sample()
    assert _kept(nvml)["GPU-fake-0"]["watts"] == pytest.approx(50)
    for _ in range(35):
        smi.sample()
    kept = _kept(nvml)["GPU-fake-0"]
    assert kept["watts"] == pytest.approx(60), "half a minute says more than what was before"


@pytest.mark.parametrize("alive", [False, True])
def test_samples_of_who_is_in_no_list(nvml: SampledNvml, colleague: int, *, alive: bool) -> None:
    """A process came and went between the lists; or it draws the desktop, and is always there."""
    smi = nvml.open(*card((0, 250)), f"sm 0 {colleague if alive else 4194303} 50")
    smi.sample(Run(pids=[OWN]))
    assert (nvml.folder / "runtime" / FILE_NAME).exists() == alive


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "runtime"))
    return tmp_path / "runtime"


def test_of_short_stretches_the_lowest_counts(runtime: Path) -> None:
    now = [1000.0]
    idle = IdlePowers(lambda: now[0])
    idle.open()
    for watts, seconds, expected in [
        (60, 2, 60),
        (50, 3, 50),
        (55, 5, 50),  # still warm
        (58, 31, 58),  # long enough to be sure
        (20, 1, 20),
    ]:
        now[0] += 100
        idle.measured("GPU-x", watts, seconds)
        assert idle.watts("GPU-x") == expected
    now[0] += 1
    idle.measured("GPU-x", 22, 2)
    assert idle.watts("GPU-x") == 22, "the same stretch, longer"
    again = IdlePowers(lambda: now[0])
    again.open()
    assert again.watts("GPU-x") == 22
    assert again.watts("GPU-y") is None
    now[0] += 25 * 3600
    assert again.watts("GPU-x") is None


def test_listeners_do_not_take_each_others_cards_away(runtime: Path) -> None:
    one, two = IdlePowers(), IdlePowers()
    for idle in (one, two):
        idle.open()
    one.measured("GPU-x", 50, 5)
    two.measured("GPU-y", 60, 5)
    fresh = IdlePowers()
    fresh.open()
    assert (fresh.watts("GPU-x"), fresh.watts("GPU-y")) == (50, 60)
    assert [path.name for path in runtime.iterdir()] == [FILE_NAME]


def test_without_a_place_to_keep_it_idle_power_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "file" / "runtime"))
    idle = IdlePowers()
    idle.open()
    idle.measured("GPU-x", 50, 5)
    assert idle.watts("GPU-x") == 50
    assert "not kept" in caplog.text


# The split alone ---------------------------------------------------------------------------------


def _split(idle_w: float = 50.0) -> EnergySplit:
    idle = IdlePowers()
    idle.measured("GPU-x", idle_w, 5)
    return EnergySplit("GPU-x", idle)


def _moment(second: float, joules: float, *pids: int) -> Moment:
    return Moment(round(second * 1e9), float(joules), Processes(dict.fromkeys(pids, 1)))


def test_a_counter_that_begins_anew_takes_nothing_away() -> None:
    split = _split()
    runs = {"a": frozenset({OWN})}
    alone = SmTime({OWN: 0.5})
    split.begin(_moment(0, 1000, OWN))
    split.account(_moment(1, 1250, OWN), alone, runs)
    assert split.account(_moment(2, 1500, OWN), alone, runs)["a"] == pytest.approx(200)
    assert split.account(_moment(3, 10, OWN), alone, runs)["a"] == pytest.approx(200)
    assert split.account(_moment(4, 260, OWN), alone, runs)["a"] == pytest.approx(400)


def test_idle_power_that_was_too_high_is_not_held_against_later_work() -> None:
    split = _split(idle_w=100)
    runs = {"a": frozenset({OWN})}
    joules = 0.0
    for second in range(1, 100):
        joules += 50
        values = split.account(_moment(second, joules, OWN), SmTime({OWN: 0.1}), runs)
    assert values["a"] == 0
    values = split.account(_moment(100, joules + 1100, OWN), SmTime({OWN: 0.9}), runs)
    assert values["a"] == pytest.approx(1100 - 100, abs=100), "at most a second's idle energy"


def test_a_run_of_several_days_keeps_the_idle_power_it_began_with() -> None:
    """Its card is never idle meanwhile."""
    now_s = [1000.0]
    idle = IdlePowers(lambda: now_s[0])
    idle.measured("GPU-x", 50, 5)
    split, alone = EnergySplit("GPU-x", idle), SmTime({OWN: 0.5})
    days = {"days": frozenset({OWN})}
    split.begin(_moment(0, 0, OWN))
    split.account(_moment(1, 250, OWN), alone, days)
    assert split.account(_moment(2, 500, OWN), alone, days)["days"] == pytest.approx(200)
    now_s[0] += 25 * 3600
    assert split.account(_moment(3, 750, OWN), alone, days)["days"] == pytest.approx(400)
    others = {"later": frozenset({OWN})}
    values = split.account(_moment(4, 1000, OWN), alone, others)
    assert values == {"later": MissingReason.UNATTRIBUTABLE}


def test_a_list_that_may_not_be_read_is_a_reason() -> None:
    split = _split()
    before, now = _moment(0, 0, OWN), _moment(1, 250, OWN)
    hidden = Moment(now.at_ns, 250.0, MissingReason.PERMISSION)
    split.begin(before)
    values = split.account(hidden, SmTime({OWN: 0.5}), {"a": frozenset({OWN})})
    assert values == {"a": MissingReason.PERMISSION}
