"""The dcgm listener against a fake host engine, through dcgmi and through the bindings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from radt.listeners.dcgm_fields import FIELDS
from radt.procfs import process_stat
from tests.support.bench import alive, wait_until
from tests.support.nvml import TWO_GPUS, FakeNvml, mig_gpu

_FAKES = Path(__file__).parent / "fakes"
_BINDINGS = _FAKES / "dcgm_bindings"

#: Samples when it is told to; says readings and occurrences.
_DRIVER = """
import json, os, sys
from radt.listeners.api import Reading, Target
from radt.listeners.dcgm import DcgmListener
from radt.listeners import dcgm, dcgm_values
import pynvml
dcgm._NOTICE_NS = 10**9  # or a test would take 15 s
# On a busy machine a row comes late; test_dcgm_parts has the real numbers.
dcgm_values._START_S = float(os.environ.get("FAKE_START_S", 30))
dcgm_values._LATE_INTERVALS = 20
CAPABILITY = os.environ["FAKE_CAPABILITY"]
pynvml.nvmlDeviceGetCudaComputeCapability = lambda handle: (int(CAPABILITY), 0)
listener = DcgmListener()
listener.interval_s = 0.1
listener.options = {word: None for word in sys.argv[1:]}
listener.open()
print("[]", flush=True)
for line in sys.stdin:
    targets = [Target(t["run_id"], tuple(t["gpus"]), (), t.get("profiler", ""))
               for t in json.loads(line)]
    print(json.dumps([
        [r.metric, r.entity, r.value, isinstance(r.value, str), r.gpu, r.method, r.at_ns]
        if isinstance(r, Reading) else ["!", r.name, r.detail, False, r.gpu, "", r.at_ns]
        for r in listener.sample(targets)
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
        return [psutil.Process(pid) for pid in pids if alive(pid)]

    def open(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, *options],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == []

    def sample(self, *targets: dict[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(targets) + "\n")
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

        wait_until(holds, what or "a reading", 20)

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
        assert self.process.wait(20) == 0

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
        wait_until(lambda: not sampled.dmons(), "no dmon is left", 20)


@pytest.fixture(params=["dmon", "bindings"])
def either(request: pytest.FixtureRequest, dcgm: Sampled) -> Sampled:
    """Both ways to the host engine."""
    if request.param == "bindings":
        _with_bindings(dcgm)
    return dcgm


def _with_bindings(dcgm: Sampled) -> None:
    dcgm.variables["PYTHONPATH"] = str(_BINDINGS)


RUN = {"run_id": "a", "gpus": ["0"]}


def test_values_arrive_in_si_units(either: Sampled) -> None:
    either.tell(gpus=[_gpu(0, values={"1005": 1.375}), _gpu(1)])  # not clipped
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN)
    values = {metric: value for (metric, entity, _), value in either.newest.items()}
    assert values == {
        "gpu.power": 250.5,
        "gpu.power.instant": 260.25,
        "gpu.energy": 7000.0,
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
    assert {entity for _, entity, _ in either.newest} == {"gpu0"}
    either.close()


def _missing(dcgm: Sampled, gpu: str = "0") -> dict[str, str]:
    return {
        metric: value
        for (metric, _, name), value in dcgm.newest.items()
        if name == gpu and isinstance(value, str)
    }


OTHER = {"run_id": "b", "gpus": ["1"]}
PROFILING_METRICS = {field.metric.name for field in FIELDS if field.profiling}


def test_a_refused_field_is_missing_on_its_card_and_the_others_go_on(either: Sampled) -> None:
    either.tell(gpus=[_gpu(0, refused={"1006": -6}), _gpu(1)])
    either.open()
    both = lambda: either.number("gpu.sm.active") and either.number("gpu.fp64.active", "gpu1", "1")  # noqa: E731
    either.until(both, RUN, OTHER)
    assert _missing(either) == {"gpu.fp64.active": "unsupported"}
    assert _missing(either, "1") == {}
    assert either.value("gpu.nvlink.rx") == 4e6


@pytest.mark.parametrize(("status", "reason"), [(-33, "unsupported"), (-29, "permission")])
def test_without_the_profiling_module_the_device_fields_are_read(
    either: Sampled, status: int, reason: str
) -> None:
    either.tell(module=status)
    either.open()
    either.until(lambda: either.number("gpu.power"), RUN)
    assert _missing(either) == dict.fromkeys(PROFILING_METRICS, reason)
    remedy = either.methods["gpu.sm.active", "gpu0", "0"]
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in remedy) == (reason == "permission")
    attempts = [call for call in either.calls("dcgmi", "watch") if call[1] != "discovery"]
    assert len(attempts) <= 3, "what concerns the module is not asked field by field"


def test_counters_that_others_hold_are_lost_and_not_unsupported(either: Sampled) -> None:
    either.tell(module=-37)
    either.open()
    either.until(lambda: either.number("gpu.power"), RUN)
    assert _missing(either) == dict.fromkeys(PROFILING_METRICS, "lost")


def test_fields_that_exclude_each_other(either: Sampled) -> None:
    either.tell(conflicts=[[1004, 1007]])
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN)
    assert list(_missing(either).values()) == ["unsupported"]
    assert _missing(either).keys() < {"gpu.tensor.active", "gpu.fp32.active"}


def test_a_field_that_an_older_dcgm_does_not_have(either: Sampled) -> None:
    either.tell(unknown=[157])
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN)
    assert _missing(either) == {"gpu.power.instant": "unsupported"}


def test_blank_values_have_their_reasons(dcgm: Sampled) -> None:
    _with_bindings(dcgm)
    blanks = {"156": "not supported", "155": "not permissioned", "1002": "not found"}
    dcgm.tell(gpus=[_gpu(0, values=blanks)])
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.tensor.active"), RUN)
    assert _missing(dcgm) == {
        "gpu.energy": "unsupported",
        "gpu.power": "permission",
        "gpu.sm.active": "lost",
    }


def test_what_never_has_a_value_is_unsupported(either: Sampled) -> None:
    either.variables["FAKE_START_S"] = "0.5"
    either.tell(gpus=[_gpu(0, values={"203": None, "1015": None})])
    either.open()
    either.until(lambda: either.value("gpu.utilization") == "unsupported", RUN)
    either.until(lambda: either.value("gpu.tensor.dfma.active") == "unsupported", RUN)
    either.until(lambda: either.value("gpu.power") == 250.5, RUN)


def test_profiling_paused_by_somebody_else(either: Sampled) -> None:
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN)
    either.tell(paused=True)
    either.until(lambda: either.value("gpu.sm.active") == "paused", RUN)
    assert either.value("gpu.power") == 250.5
    either.tell()
    either.until(lambda: either.value("gpu.sm.active") == 0.8, RUN)


def _watched(dcgm: Sampled) -> list[set[int]]:
    """The fields that are watched now, by watch."""
    if "PYTHONPATH" not in dcgm.variables:
        found = [process.cmdline() for process in dcgm.dmons()]
        return [  # one that is just being started is not dcgmi yet
            set(map(int, words[words.index("-e") + 1].split(",")))
            for words in found
            if "-e" in words
        ]
    watches = []
    for call in dcgm.calls("watch", "unwatch"):
        if call[0] == "watch" and call[3] == 0:
            watches.append(set(call[2]))
        elif call[0] == "unwatch" and set(call[1]) in watches:
            watches.remove(set(call[1]))
    return watches


def test_counters_are_left_to_a_profiler_before_hopper(either: Sampled) -> None:
    either.open()
    profiled = RUN | {"profiler": "ncu"}
    either.until(lambda: either.number("gpu.sm.active"), RUN, OTHER)
    either.sample(profiled, OTHER)
    assert _missing(either) == dict.fromkeys(PROFILING_METRICS, "paused")
    assert _missing(either, "1") == {}, "another card"
    either.until(lambda: sorted(1002 in fields for fields in _watched(either)) == [False, True],
                 profiled, OTHER, what="one watch without the counters")  # fmt: skip
    either.newest.clear()
    either.until(lambda: either.value("gpu.power") == 250.5, profiled, OTHER)
    assert _missing(either) == dict.fromkeys(PROFILING_METRICS, "paused")
    either.until(lambda: either.value("gpu.sm.active") == 0.8, RUN, OTHER)


def test_counters_are_shared_with_a_profiler_from_hopper_on(either: Sampled) -> None:
    either.capability = 9
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN | {"profiler": "ncu"})
    assert _missing(either) == {}


MIG_RUN = {"run_id": "m", "gpus": ["MIG-fake-0-1-0"]}


def _divided(dcgm: Sampled, **more: Any) -> None:
    """GPU 0 has the GPU instances 1 (with two compute instances) and 2."""
    dcgm.nvml.configure(
        "count 2", mig_gpu(0), "existing 0 9 0 1 1", "existing 0 14 4 2", TWO_GPUS[2]
    )
    instances = [
        {"gi": 1, "entity": 7, "values": {"1002": 0.5, "1006": None}},
        {"gi": 2, "entity": 3, "values": {"1002": 0.25}},
    ]
    dcgm.tell(gpus=[_gpu(0, instances=instances), _gpu(1)], **more)


def test_a_gpu_instance_has_its_own_counters_and_the_cards_device_fields(either: Sampled) -> None:
    _divided(either)
    neighbour = {"run_id": "n", "gpus": ["MIG-fake-0-1-1"]}
    third = {"run_id": "o", "gpus": ["MIG-fake-0-2-0"]}
    either.open()
    name, other = "MIG-fake-0-1-0", "MIG-fake-0-2-0"
    either.until(
        lambda: either.number("gpu.mig.sm.active", "gpu0/gi1", name), MIG_RUN, neighbour, third
    )
    assert either.value("gpu.mig.sm.active", "gpu0/gi1", name) == 0.5
    assert either.value("gpu.mig.sm.active", "gpu0/gi1", "MIG-fake-0-1-1") == 0.5
    assert either.value("gpu.mig.sm.active", "gpu0/gi2", other) == 0.25
    assert either.value("gpu.sm.active", "gpu0", name) == 0.8, "the whole card's"
    assert either.value("gpu.power", "gpu0", name) == 250.5
    assert not any(
        metric.startswith(("gpu.mig.power", "gpu.mig.pcie")) for metric, _, _ in either.newest
    )
    if "PYTHONPATH" not in either.variables:
        assert len(either.dmons()) == 1, "a card is watched once"


def test_a_gpu_instance_that_dcgm_notices_late(either: Sampled) -> None:
    _divided(either)
    either.tell(gpus=[_gpu(0), _gpu(1)])
    either.open()
    name = "MIG-fake-0-1-0"
    either.until(lambda: either.number("gpu.sm.active", gpu=name), MIG_RUN)
    assert either.value("gpu.mig.sm.active", "gpu0/gi1", name) is None
    _divided(either)
    either.until(lambda: either.value("gpu.mig.sm.active", "gpu0/gi1", name) == 0.5, MIG_RUN)


def test_dmon_shows_divided_cards_only_and_the_bindings_all(either: Sampled) -> None:
    either.variables["FAKE_START_S"] = "0.5"
    _divided(either)
    either.open()
    expected = 250.5 if "PYTHONPATH" in either.variables else "lost"
    either.until(lambda: either.value("gpu.power", "gpu1", "1") == expected, MIG_RUN, OTHER)


def test_an_xid_error_is_an_occurrence_once_and_an_old_one_is_none(either: Sampled) -> None:
    either.tell(gpus=[_gpu(0, values={"230": 13})])
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN)
    assert either.happened == []
    either.tell(gpus=[_gpu(0, values={"230": 79, "1002": 0.5})])
    either.until(lambda: either.value("gpu.sm.active") == 0.5, RUN)
    either.until(lambda: either.happened, RUN)
    either.tell(gpus=[_gpu(0, values={"230": 79, "1002": 0.75})])
    either.until(lambda: either.value("gpu.sm.active") == 0.75, RUN)
    assert either.happened == [("XID 79", "on gpu0", "0")]


def test_a_card_is_read_once_for_all_its_names_and_no_value_twice(either: Sampled) -> None:
    either.open()
    targets = (RUN, {"run_id": "b", "gpus": ["GPU-fake-0"]}, {"run_id": "c", "gpus": ["0"]})
    key, other = ("gpu.sm.active", "gpu0", "0"), ("gpu.sm.active", "gpu0", "GPU-fake-0")
    either.until(lambda: len(either.times.get(key, ())) >= 4, *targets)
    assert either.times[key] == either.times[other]
    assert sorted(set(either.times[key])) == either.times[key]
    if "PYTHONPATH" not in either.variables:
        assert len(either.dmons()) == 1


def test_a_host_engine_that_goes_and_comes_back(either: Sampled) -> None:
    either.open()
    either.until(lambda: either.number("gpu.sm.active"), RUN)
    either.tell(down=True)
    either.until(lambda: either.value("gpu.sm.active") == "lost", RUN)
    assert either.value("gpu.power") == "lost"
    assert {name for name, _, _ in either.happened} == {"DCGM does not answer"}
    assert "not valid any longer" in either.happened[0][1]
    either.tell()
    either.until(lambda: either.value("gpu.sm.active") == 0.8, RUN)
    either.close()


def test_a_card_that_dcgm_does_not_know(either: Sampled) -> None:
    either.variables["FAKE_START_S"] = "0.5"
    either.tell(gpus=[_gpu(0)])
    either.open()
    either.until(lambda: either.value("gpu.power", "gpu1", "1") == "lost", RUN, OTHER)
    either.until(lambda: either.value("gpu.power") == 250.5, RUN, OTHER)
    either.until(lambda: either.happened, RUN, OTHER)
    assert any("GPU-fake-1" in detail and gpu == "1" for _, detail, gpu in either.happened)


def test_a_name_that_is_no_device_does_not_disturb_the_others(either: Sampled) -> None:
    either.open()
    either.until(lambda: either.number("gpu.power"), RUN, {"run_id": "x", "gpus": ["7"]})
    assert either.value("gpu.power", "7", "7") == "lost"


def test_a_card_that_nobody_wants_any_longer_is_let_go(either: Sampled) -> None:
    either.open()
    either.until(lambda: len(_watched(either)) == 2, RUN, OTHER)
    either.until(lambda: len(_watched(either)) == 1, OTHER)


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
    wait_until(lambda: not alive(dmon.pid), "dmon is gone", 20)


def test_nothing_is_left_after_closing(dcgm: Sampled) -> None:
    dcgm.open()
    dcgm.until(lambda: len(dcgm.dmons()) == 2, RUN, OTHER)
    dcgm.close()
    assert dcgm.dmons() == []


def test_an_old_value_is_not_given_as_a_new_one(dcgm: Sampled) -> None:
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


# The bindings alone -------------------------------------------------------------------------


def test_groups_are_ours_and_gone_in_the_end(dcgm: Sampled) -> None:
    _with_bindings(dcgm)
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN, OTHER)
    assert dcgm.process is not None
    dcgm.close()
    made = [call[1] for call in dcgm.calls("group", "field group")]
    assert len(made) == len(set(made)) == 4
    assert all(f"-{dcgm.process.pid}-" in name for name in made)
    destroyed = [call[1] for call in dcgm.calls("destroy group", "destroy field group")]
    assert sorted(destroyed) == sorted(made)


def test_leftover_groups_of_dead_processes_are_taken_away_and_no_others(dcgm: Sampled) -> None:
    _with_bindings(dcgm)
    here = Path("/proc/self/ns/pid").stat().st_ino
    own = process_stat(os.getpid())
    assert own is not None
    names = {
        "2": f"radt-{here}-4194304-5-1",  # no such process
        "3": f"radt-{here}-{os.getpid()}-{own.started_ticks}-1",  # alive
        "4": f"radt-{here}-{os.getpid()}-{own.started_ticks - 1}-1",  # its number, another process
        "5": "radt-1-4194304-5-1",  # of a container that we cannot look into
        "6": "dcgmi_4194304_1",
        "7": "radt",
    }
    dcgm.tell(groups=names, field_groups=names)
    dcgm.open()
    gone = [names["2"], names["4"]]
    assert [call[1] for call in dcgm.calls("destroy group")] == gone
    assert [call[1] for call in dcgm.calls("destroy field group")] == gone


def test_bindings_that_do_not_fit_give_way_to_dmon(dcgm: Sampled) -> None:
    _with_bindings(dcgm)
    dcgm.tell(mismatch=True)
    dcgm.open()
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    assert len(dcgm.dmons()) == 1


def test_the_option_dmon(dcgm: Sampled) -> None:
    _with_bindings(dcgm)
    dcgm.open("dmon")
    dcgm.until(lambda: dcgm.number("gpu.sm.active"), RUN)
    assert dcgm.calls("connect") == []


# Whether it works here ----------------------------------------------------------------------


def _probe(dcgm: Sampled) -> str:
    code = "from radt.listeners.dcgm import DcgmListener as D; print(D.probe())"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=dcgm.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_probe_finds_a_host_engine(either: Sampled) -> None:
    assert "available=True" in _probe(either)


def test_probe_says_that_none_runs_and_what_to_do(dcgm: Sampled) -> None:
    dcgm.tell(down=True)
    answer = _probe(dcgm)
    assert "Unable to connect to host engine" in answer
    assert "nv-hostengine" in answer
    assert "gpm" in answer


def test_probe_does_not_wait_for_one_that_hangs(dcgm: Sampled) -> None:
    dcgm.tell(hangs=True)
    assert "did not answer within 2 s" in _probe(dcgm)


def test_probe_without_dcgm(dcgm: Sampled) -> None:
    (dcgm.folder / "bin" / "dcgmi").unlink()
    dcgm.variables["PATH"] = str(dcgm.folder / "bin")
    assert "Install datacenter-gpu-manager" in _probe(dcgm)


def test_probe_with_bindings_only_and_nobody_who_listens(dcgm: Sampled) -> None:
    _with_bindings(dcgm)
    dcgm.variables["PATH"] = str(dcgm.folder)
    answer = _probe(dcgm)
    assert "nothing listens on 127.0.0.1:5555" in answer


def test_probe_without_a_gpu(dcgm: Sampled) -> None:
    dcgm.nvml.configure("count 0")
    assert "no NVIDIA GPU" in _probe(dcgm)
