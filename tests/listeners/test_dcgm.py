"""The dcgm listener against a fake host engine, through dcgmi."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from radt.listeners.dcgm_fields import FIELDS
from tests.listeners.workloads import probed
from tests.support.bench import alive, wait_until
from tests.support.nvml import TWO_GPUS, FakeNvml, mig_gpu

_FAKES = Path(__file__).parent / "fakes"

#: Samples when it is told to; says readings and occurrences.
_DRIVER = """
import json, os, sys
from radt.listeners.api import Reading, Target
from radt.listeners.dcgm import DcgmListener
from radt.listeners import dcgm
import pynvml
dcgm._NOTICE_NS = 10**9  # or a test would take 15 s
# On a busy machine a row comes late; test_dcgm_parts has the real numbers.
dcgm._START_S = float(os.environ.get("FAKE_START_S", 60))
dcgm._LATE_INTERVALS = int(os.environ.get("FAKE_LATE_INTERVALS", 600))
CAPABILITY = os.environ["FAKE_CAPABILITY"]
pynvml.nvmlDeviceGetCudaComputeCapability = lambda handle: (int(CAPABILITY), 0)
listener = DcgmListener()
listener.interval_s = 0.1
listener.options = {word: None for word in sys.argv[1:]}
listener.open()
print("[]", flush=True)
for line in sys.stdin:
    read, *runs = json.loads(line)
    targets = [Target(t["run_id"], tuple(t["gpus"]), (), t.get("profiler", "")) for t in runs]
    print(json.dumps([
        [r.metric, r.entity, r.value, isinstance(r.value, str), r.gpu, r.method, r.at_ns]
        if isinstance(r, Reading) else ["!", r.name, r.detail, False, r.gpu, "", r.at_ns]
        for r in getattr(listener, read)(targets)
    ]), flush=True)
listener.close()
print("[]", flush=True)
"""


def _gpu(number: int, **more: Any) -> dict[str, Any]:
    """DCGM's numbers are not NVML's."""
    return {"id": number + 5, "index": number, "uuid": f"GPU-fake-{number}", **more}


@dataclass
class Sampled:
    """A process with the listener, its fakes, and the newest value of everything it has read."""

    nvml: FakeNvml
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    capability: int = 8
    process: subprocess.Popen[str] | None = None
    newest: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    methods: dict[tuple[str, str, str], str] = field(default_factory=dict)
    times: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    happened: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "dcgm.json"

    def tell(self, **state: Any) -> None:
        """What the fake host engine is like from now on."""
        state.setdefault("gpus", [_gpu(0), _gpu(1)])
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(self.state)

    def environment(self) -> dict[str, str]:
        return self.nvml.environment() | {
            "FAKE_DCGM": str(self.state),
            "FAKE_DCGM_LOG": str(self.folder / "dcgm.log"),
            "FAKE_CAPABILITY": str(self.capability),
            **self.variables,
        }

    def _log(self) -> list[list[Any]]:
        log = self.folder / "dcgm.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines]

    def calls(self, *kinds: str) -> list[list[Any]]:
        """What was asked of the fakes, in order."""
        return [call for _, *call in self._log() if call[0] in kinds]

    def dmons(self) -> list[psutil.Process]:
        """The dmon processes that run."""
        pids = [pid for pid, *call in self._log() if call[:2] == ["dcgmi", "dmon"]]
        found = []
        for pid in pids:
            with suppress(psutil.NoSuchProcess):  # it ends just now
                if alive(pid):
                    found.append(psutil.Process(pid))
        return found

    def open(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, *options],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == []

    def sample(self, *targets: dict[str, Any], read: str = "sample") -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([read, *targets]) + "\n")
        self.process.stdin.flush()
        for metric, entity, value, _, gpu, method, at_ns in self._answer():
            if metric == "!":
                self.happened.append((entity, value, gpu))
                continue
            key = metric, entity, gpu
            self.newest[key] = value
            self.methods[key] = method
            self.times.setdefault(key, []).append(at_ns)

    def until(
        self, condition: Callable[[], object], *targets: dict[str, Any], what: str = ""
    ) -> None:
        """Sample until something holds."""

        def holds() -> object:
            self.sample(*targets)
            return condition()

        wait_until(holds, what or "a reading", 180)

    def value(self, metric: str, entity: str = "gpu0", gpu: str = "0") -> Any:
        return self.newest.get((metric, entity, gpu))

    def number(self, metric: str, entity: str = "gpu0", gpu: str = "0") -> float | None:
        """A value that is not missing."""
        found = self.value(metric, entity, gpu)
        return None if isinstance(found, str) else found

    def close(self) -> None:
        if self.process is None or self.process.stdin is None:
            return
        self.process.stdin.close()
        assert self._answer() == []
        assert self.process.wait(180) == 0

    def _answer(self) -> list[Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the listener raised"
        answer: list[Any] = json.loads(line)
        return answer


@pytest.fixture
def dcgm(nvml_library: Path, tmp_path: Path) -> Iterator[Sampled]:
    """A host engine with two GPUs and dcgmi on the PATH."""
    nvml = FakeNvml.in_folder(nvml_library, tmp_path)
    nvml.configure(*TWO_GPUS)
    commands = tmp_path / "bin"
    commands.mkdir()
    dcgmi = commands / "dcgmi"  # without site-packages, which would take longer than all the rest
    dcgmi.write_text(
        f"#!{sys.executable} -IS\nimport runpy\n"
        f"runpy.run_path({str(_FAKES / 'dcgmi.py')!r}, run_name='__main__')\n"
    )
    dcgmi.chmod(0o755)
    sampled = Sampled(nvml, tmp_path, {"PATH": f"{commands}:{os.environ['PATH']}"})
    sampled.tell()
    yield sampled
    if sampled.process is not None:
        sampled.process.kill()
        sampled.process.wait()
        assert sampled.process.stdin is not None
        assert sampled.process.stdout is not None
        sampled.process.stdin.close()
        sampled.process.stdout.close()
        wait_until(lambda: not sampled.dmons(), "no dmon is left", 180)


RUN = {"run_id": "a", "gpus": ["0"]}
#: For tests that wait for what is late, or never comes.
LATE = {"FAKE_LATE_INTERVALS": "20"}
IMPATIENT = LATE | {"FAKE_START_S": "0.5"}


def test_values_arrive_in_si_units(dcgm: Sampled) -> None:
    dcgm.variables["LC_ALL"] = "de_DE.UTF-8"  # where numbers have commas
    dcgm.tell(gpus=[_gpu(0, values={"1005": 1.375}), _gpu(1)])  # not clipped
    dcgm.nvml.add("field 0 83 ull 0 300000")
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    values = {metric: value for (metric, entity, _), value in dcgm.newest.items()}
    assert values.pop("gpu.energy") > 0, "NVML's"
    assert values == {
        "gpu.power": 250.5,
        "gpu.power.instant": 260.25,
        "gpu.utilization": pytest.approx(0.55),
        "gpu.memory.used": 2000 * 2**20,
        "gpu.clock.event_reasons": 4,
        "gpu.graphics.active": 0.9,
        "gpu.sm.active": 0.8,
        "gpu.sm.occupancy": 0.3,
        "gpu.tensor.active": 0.4,
        "gpu.dram.active": 1.375,
        "gpu.fp64.active": 0.01,
        "gpu.fp32.active": 0.1,
        "gpu.fp16.active": 0.05,
        "gpu.tensor.imma.active": 0.02,
        "gpu.tensor.hmma.active": 0.38,
        "gpu.tensor.dfma.active": 0,
        "gpu.int.active": 0.07,
        "gpu.pcie.tx": 1e6,
        "gpu.pcie.rx": 2e6,
        "gpu.nvlink.tx": 3e6,
        "gpu.nvlink.rx": 4e6,
    }
    assert {entity for _, entity, _ in dcgm.newest} == {"gpu0"}
    dcgm.close()


def _missing(dcgm: Sampled, gpu: str = "0") -> dict[str, str]:
    return {
        metric: value
        for (metric, _, name), value in dcgm.newest.items()
        if name == gpu and isinstance(value, str)
    }


OTHER = {"run_id": "b", "gpus": ["1"]}
#: Counters of energy that count; one that stands still is missing after a while.
GROWING = ("field 0 83 ull 0 300000", "field 1 83 ull 0 300000")
PROFILING_METRICS = {field.metric.name for field in FIELDS if field.profiling}


def test_a_refused_field_is_missing_on_its_card_and_the_others_go_on(dcgm: Sampled) -> None:
    dcgm.tell(gpus=[_gpu(0, refused={"1006": -6}), _gpu(1)])
    dcgm.nvml.add(*GROWING)
    dcgm.open()
    both = lambda: dcgm.number("gpu.sm.active") and dcgm.number("gpu.fp64.active", "gpu1", "1")  # noqa: E731
    dcgm.until(both, RUN, OTHER)
    assert _missing(dcgm) == {"gpu.fp64.active": "unsupported"}
    assert _missing(dcgm, "1") == {}
    assert dcgm.value("gpu.nvlink.rx") == 4e6


@pytest.mark.parametrize(("status", "reason"), [(-33, "unsupported"), (-29, "permission")])
def test_without_the_profiling_module_the_device_fields_are_read(
    dcgm: Sampled, status: int, reason: str
) -> None:
    dcgm.tell(module=status)
    dcgm.nvml.add(*GROWING)
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.power"), RUN)
    assert _missing(dcgm) == dict.fromkeys(PROFILING_METRICS, reason)
    remedy = dcgm.methods["gpu.sm.active", "gpu0", "0"]
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in remedy) == (reason == "permission")
    attempts = [call for call in dcgm.calls("dcgmi", "watch") if call[1] != "discovery"]
    assert len(attempts) <= 3, "what concerns the module is not asked field by field"


def test_counters_that_others_hold_are_lost_and_not_unsupported(dcgm: Sampled) -> None:
    dcgm.tell(module=-37)
    dcgm.nvml.add(*GROWING)
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.power"), RUN)
    assert _missing(dcgm) == dict.fromkeys(PROFILING_METRICS, "lost")


def test_fields_that_exclude_each_other(dcgm: Sampled) -> None:
    dcgm.tell(conflicts=[[1004, 1007]])
    dcgm.nvml.add(*GROWING)
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    assert list(_missing(dcgm).values()) == ["unsupported"]
    assert _missing(dcgm).keys() < {"gpu.tensor.active", "gpu.fp32.active"}


def test_a_field_that_an_older_dcgm_does_not_have(dcgm: Sampled) -> None:
    dcgm.tell(unknown=[157])
    dcgm.nvml.add(*GROWING)
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    assert _missing(dcgm) == {"gpu.power.instant": "unsupported"}


def test_what_never_has_a_value_is_unsupported(dcgm: Sampled) -> None:
    dcgm.variables |= IMPATIENT
    dcgm.tell(gpus=[_gpu(0, values={"203": None, "1015": None})])
    dcgm.open()
    dcgm.until(lambda: dcgm.value("gpu.utilization") == "unsupported", RUN)
    dcgm.until(lambda: dcgm.value("gpu.tensor.dfma.active") == "unsupported", RUN)
    dcgm.until(lambda: dcgm.value("gpu.power") == 250.5, RUN)


def test_profiling_paused_by_somebody_else(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    dcgm.tell(paused=True)
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == "paused", RUN)
    assert dcgm.value("gpu.power") == 250.5
    dcgm.tell()
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.8, RUN)


def _watched(dcgm: Sampled) -> list[set[int]]:
    """The fields that are watched now, by watch."""
    commands = []
    for process in dcgm.dmons():
        with suppress(psutil.NoSuchProcess):  # it ends just now
            commands.append(process.cmdline())
    return [  # one that is just being started is not dcgmi yet
        set(map(int, words[words.index("-e") + 1].split(",")))
        for words in commands
        if "-e" in words
    ]


def test_counters_are_left_to_a_profiler_before_hopper(dcgm: Sampled) -> None:
    dcgm.nvml.add(*GROWING)
    dcgm.open()
    profiled = RUN | {"profiler": "ncu"}
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN, OTHER)
    dcgm.sample(profiled, OTHER)
    assert _missing(dcgm) == dict.fromkeys(PROFILING_METRICS, "paused")
    assert _missing(dcgm, "1") == {}, "another card"
    dcgm.until(lambda: sorted(1002 in fields for fields in _watched(dcgm)) == [False, True],
                 profiled, OTHER, what="one watch without the counters")  # fmt: skip
    dcgm.newest.clear()
    dcgm.until(lambda: dcgm.value("gpu.power") == 250.5, profiled, OTHER)
    assert _missing(dcgm) == dict.fromkeys(PROFILING_METRICS, "paused")
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.8, RUN, OTHER)


def test_counters_are_shared_with_a_profiler_from_hopper_on(dcgm: Sampled) -> None:
    dcgm.capability = 9
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN | {"profiler": "ncu"})
    assert _missing(dcgm) == {}


MIG_RUN = {"run_id": "m", "gpus": ["MIG-fake-0-1-0"]}


def _divided(dcgm: Sampled, second: int = 9, **more: Any) -> None:
    """GPU 0 has the GPU instances 1 (with two compute instances) and 2 (of this profile)."""
    dcgm.nvml.configure(
        "count 2", mig_gpu(0), "existing 0 9 0 1 1", f"existing 0 {second} 4 2", TWO_GPUS[2]
    )
    instances = [
        {"gi": 1, "entity": 7, "values": {"1002": 0.5, "1006": None}},
        {"gi": 2, "entity": 3, "values": {"1002": 0.25}},
    ]
    dcgm.tell(gpus=[_gpu(0, instances=instances), _gpu(1)], **more)


def test_a_gpu_instance_has_its_own_counters_and_the_cards_device_fields(dcgm: Sampled) -> None:
    _divided(dcgm)
    neighbour = {"run_id": "n", "gpus": ["MIG-fake-0-1-1"]}
    third = {"run_id": "o", "gpus": ["MIG-fake-0-2-0"]}
    dcgm.open()
    name, other = "MIG-fake-0-1-0", "MIG-fake-0-2-0"
    dcgm.until(
        lambda: dcgm.number("gpu.mig.sm.active", "gpu0/gi1", name), MIG_RUN, neighbour, third
    )
    assert dcgm.value("gpu.mig.sm.active", "gpu0/gi1", name) == 0.5
    assert dcgm.value("gpu.mig.sm.active", "gpu0/gi1", "MIG-fake-0-1-1") == 0.5
    assert dcgm.value("gpu.mig.sm.active", "gpu0/gi2", other) == 0.25
    assert dcgm.value("gpu.sm.active", "gpu0", name) == 0.8, "the whole card's"
    assert dcgm.value("gpu.power", "gpu0", name) == 250.5
    assert not any(
        metric.startswith(("gpu.mig.power", "gpu.mig.pcie")) for metric, _, _ in dcgm.newest
    )
    assert len(dcgm.dmons()) == 1, "a card is watched once"


def test_larger_gpu_instances_are_not_limited_to_smaller_ones(dcgm: Sampled) -> None:
    """DCGM's own values of these are too small, as its issues 138 and 248 report."""
    _divided(dcgm, second=14)
    small = {"run_id": "o", "gpus": ["MIG-fake-0-2-0"]}
    large, of_large = "MIG-fake-0-1-0", ("gpu.mig.sm.active", "gpu0/gi1", "MIG-fake-0-1-0")
    dcgm.open()
    dcgm.until(
        lambda: dcgm.number("gpu.mig.sm.active", "gpu0/gi2", "MIG-fake-0-2-0"), small, MIG_RUN
    )
    assert dcgm.value(*of_large) == "unsupported"
    assert "issues 138, 248" in dcgm.methods[of_large]
    assert dcgm.number("gpu.sm.active", gpu=large), "the whole card's"
    # Alone it is right.
    dcgm.until(lambda: dcgm.value(*of_large) == 0.5, MIG_RUN)


def test_energy_is_there_before_dmon_is(dcgm: Sampled) -> None:
    dcgm.tell(hangs=True)
    dcgm.open()
    dcgm.sample(RUN, read="counters")
    assert dcgm.newest == {("gpu.energy", "gpu0", "0"): 7.0}
    dcgm.nvml.configure(TWO_GPUS[0], TWO_GPUS[1].replace(" 7000 ", " 9000 "), TWO_GPUS[2])
    dcgm.sample(RUN)
    assert dcgm.value("gpu.energy") == 9.0
    dcgm.nvml.add("lost 0")
    for read in ("counters", "sample"):
        dcgm.sample(RUN, read=read)
        assert dcgm.value("gpu.energy") == "lost"
        assert [event[:2] for event in dcgm.happened] == [("gpu0 lost", "GPU is lost")]
    dcgm.nvml.remove("lost 0")
    dcgm.nvml.add("field 0 83 ull 1e6 300000")
    dcgm.until(lambda: dcgm.value("gpu.energy") not in {"lost", 9.0}, RUN)
    assert dcgm.number("gpu.energy") >= 1000
    dcgm.nvml.remove("field 0 83 ull 1e6 300000")
    dcgm.nvml.add("field 0 83 ull 1e9")
    still = {"lost", "unsupported"}  # it depends on whether it was seen to move before
    dcgm.until(lambda: dcgm.value("gpu.energy") in still, RUN, what="it stands still")
    assert len(dcgm.happened) == 1
    dcgm.tell()


def test_a_gpu_instance_that_dcgm_notices_late(dcgm: Sampled) -> None:
    _divided(dcgm)
    dcgm.tell(gpus=[_gpu(0), _gpu(1)])
    dcgm.open()
    name = "MIG-fake-0-1-0"
    dcgm.until(lambda: dcgm.number("gpu.sm.active", gpu=name), MIG_RUN)
    assert dcgm.value("gpu.mig.sm.active", "gpu0/gi1", name) is None
    _divided(dcgm)
    dcgm.until(lambda: dcgm.value("gpu.mig.sm.active", "gpu0/gi1", name) == 0.5, MIG_RUN)


def test_dmon_shows_divided_cards_only(dcgm: Sampled) -> None:
    dcgm.variables |= IMPATIENT
    _divided(dcgm)
    dcgm.open()
    dcgm.until(lambda: dcgm.value("gpu.power", "gpu1", "1") == "lost", MIG_RUN, OTHER)


def test_an_xid_error_is_an_occurrence_once_and_an_old_one_is_none(dcgm: Sampled) -> None:
    dcgm.tell(gpus=[_gpu(0, values={"230": 13})])
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    assert dcgm.happened == []
    dcgm.tell(gpus=[_gpu(0, values={"230": 79, "1002": 0.5})])
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.5, RUN)
    dcgm.until(lambda: dcgm.happened, RUN)
    dcgm.tell(gpus=[_gpu(0, values={"230": 79, "1002": 0.75})])
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.75, RUN)
    assert dcgm.happened == [("XID 79", "on gpu0", "0")]


def test_a_card_is_read_once_for_all_its_names_and_no_value_twice(dcgm: Sampled) -> None:
    dcgm.open()
    targets = (RUN, {"run_id": "b", "gpus": ["GPU-fake-0"]}, {"run_id": "c", "gpus": ["0"]})
    key, other = ("gpu.sm.active", "gpu0", "0"), ("gpu.sm.active", "gpu0", "GPU-fake-0")
    dcgm.until(lambda: len(dcgm.times.get(key, ())) >= 4, *targets)
    assert dcgm.times[key] == dcgm.times[other]
    assert sorted(set(dcgm.times[key])) == dcgm.times[key]
    assert len(dcgm.dmons()) == 1


def test_a_host_engine_that_goes_and_comes_back(dcgm: Sampled) -> None:
    dcgm.variables |= LATE
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    dcgm.tell(down=True)
    dcgm.until(lambda: dcgm.happened, RUN)
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == "lost", RUN)
    assert dcgm.value("gpu.power") == "lost"
    assert {name for name, _, _ in dcgm.happened} == {"DCGM does not answer"}
    assert "not valid any longer" in dcgm.happened[0][1]
    dcgm.tell()
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.8, RUN)
    dcgm.close()


def test_a_card_that_dcgm_does_not_know(dcgm: Sampled) -> None:
    dcgm.variables |= IMPATIENT
    dcgm.tell(gpus=[_gpu(0)])
    dcgm.open()
    dcgm.until(lambda: dcgm.value("gpu.power", "gpu1", "1") == "lost", RUN, OTHER)
    dcgm.until(lambda: dcgm.value("gpu.power") == 250.5, RUN, OTHER)
    dcgm.until(lambda: dcgm.happened, RUN, OTHER)
    assert any("GPU-fake-1" in detail and gpu == "1" for _, detail, gpu in dcgm.happened)


def test_a_name_that_is_no_device_does_not_disturb_the_others(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.power"), RUN, {"run_id": "x", "gpus": ["7"]})
    assert dcgm.value("gpu.power", "7", "7") == "lost"


def test_a_card_that_nobody_wants_any_longer_is_let_go(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: len(_watched(dcgm)) == 2, RUN, OTHER)
    dcgm.until(lambda: len(_watched(dcgm)) == 1, OTHER)


# dmon alone ---------------------------------------------------------------------------------


def test_a_dmon_process_that_dies_is_started_again(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    (first,) = dcgm.dmons()
    first.kill()
    dcgm.until(lambda: [p for p in dcgm.dmons() if p.pid != first.pid], RUN)
    dcgm.newest.clear()
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.8, RUN)


def test_dmon_is_gone_with_a_collector_that_was_killed(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    (dmon,) = dcgm.dmons()
    dmon.suspend()  # or the next row, into a pipe that nobody reads, would end it
    assert dcgm.process is not None
    dcgm.process.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(dmon.pid), "dmon is gone", 180)


def test_nothing_is_left_after_closing(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: len(dcgm.dmons()) == 2, RUN, OTHER)
    dcgm.close()
    assert dcgm.dmons() == []


def test_an_old_value_is_not_given_as_a_new_one(dcgm: Sampled) -> None:
    dcgm.variables |= LATE
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    (dmon,) = dcgm.dmons()
    dmon.suspend()
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == "lost", RUN)
    dmon.resume()
    dcgm.until(lambda: dcgm.value("gpu.sm.active") == 0.8, RUN)
    values = [at_ns for at_ns in dcgm.times["gpu.sm.active", "gpu0", "0"] if at_ns is not None]
    assert sorted(set(values)) == values


def test_a_value_too_wide_for_its_column_is_lost(dcgm: Sampled) -> None:
    dcgm.tell(gpus=[_gpu(0, values={"1009": 12345678901234567890})])
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    assert dcgm.value("gpu.pcie.tx") == "lost"


# Whether it works here ----------------------------------------------------------------------


def _probe(dcgm: Sampled, before: str = "dcgm._PROBE_S = 180.0") -> str:
    """What it says; where the host engine answers, also on a busy machine."""
    return probed("dcgm:DcgmListener", dcgm.environment(), before)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, ["available=True"]),
        ({"down": True}, ["Unable to connect to host engine", "nv-hostengine", "gpm"]),
    ],
)
def test_probe_says_whether_a_host_engine_answers(
    dcgm: Sampled, state: dict[str, bool], words: list[str]
) -> None:
    dcgm.tell(**state)
    answer = _probe(dcgm)
    assert all(word in answer for word in words), answer


def test_probe_does_not_wait_for_one_that_hangs(dcgm: Sampled) -> None:
    dcgm.tell(hangs=True)
    assert "did not answer within 2 s" in _probe(dcgm, before="")


def test_probe_without_dcgm(dcgm: Sampled) -> None:
    (dcgm.folder / "bin" / "dcgmi").unlink()
    dcgm.variables["PATH"] = str(dcgm.folder / "bin")
    assert "Install datacenter-gpu-manager" in _probe(dcgm)


def test_probe_without_a_gpu(dcgm: Sampled) -> None:
    dcgm.nvml.configure("count 0")
    assert "no NVIDIA GPU" in _probe(dcgm)
