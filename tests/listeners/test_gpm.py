"""The gpm listener against a fake libnvidia-ml.so.1 that insists on real windows of time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from radt.listeners.gpm import MEASURES, GpmListener
from radt.model import Scope
from tests.listeners.workloads import probed
from tests.support.nvml import FakeNvml, mig_gpu, plain_gpu
from tests.support.waiting import wait_until

#: Does what it is told, a line each: a listener that lives across changes of the "hardware".
_LISTENER = """
import json, sys, time
from radt.listeners.api import Target
from radt.listeners.gpm import GpmListener
listener = GpmListener()
listener.interval_s = float(sys.argv[1])
listener.open()
for line in sys.stdin:
    order, *runs = json.loads(line)
    if order == "close":
        listener.close()
        break
    targets = [Target(f"run{n}", tuple(gpus)) for n, gpus in enumerate(runs)]
    begun_ns = time.monotonic_ns()
    readings = list(listener.sample(targets))
    while order == "wait" and not readings:  # a window takes the time it takes
        readings = list(listener.sample(targets))
    while order == "all" and {r.gpu for r in readings} != {name for gpus in runs for name in gpus}:
        readings += listener.sample(targets)
    print(json.dumps([
        [r.metric, r.value, r.entity, r.gpu, r.at_ns is None or begun_ns <= r.at_ns]
        for r in readings
    ]), flush=True)
"""
#: What the fake says of every metric of a place, by metric: what the listener is to make of it.
_EXPECTED = {
    "sm.active": (2, 80.0, 0.8),
    "sm.occupancy": (3, 25.0, 0.25),
    "tensor.active": (5, 50.0, 0.5),
    "dram.active": (10, 120.0, 1.2),
    "pcie.tx": (20, 1.5, 1.5 * 2**20),
    "pcie.rx": (21, 2.0, 2.0 * 2**20),
    "nvlink.rx": (60, 3.0, 3.0 * 2**20),
}


class Listening:
    """The listener in a process of its own, which has the fake."""

    def __init__(self, nvml: FakeNvml, interval_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LISTENER, str(interval_s)],
            env=nvml.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def sample(self, *runs: Sequence[str], wait: bool = False) -> dict[tuple[str, str], Any]:
        """Sample once, or until there is something, for runs on these GPUs: by metric and name."""
        return {
            (metric, gpu): value for metric, value, _, gpu, _ in self.readings(*runs, wait=wait)
        }

    def readings(self, *runs: Sequence[str], wait: bool = False) -> list[list[Any]]:
        return self._ask("wait" if wait else "sample", *runs)

    def of_all(self, *runs: Sequence[str]) -> list[list[Any]]:
        """Sample until each GPU had its say: their windows do not end at one instant."""
        return self._ask("all", *runs)

    def _ask(self, order: str, *runs: Sequence[str]) -> list[list[Any]]:
        self._say(order, *runs)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the listener failed"
        return list(json.loads(line))

    def close(self) -> None:
        self._say("close")
        self._process.communicate()
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _say(self, *order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()


@pytest.fixture
def listen(nvml: FakeNvml) -> Iterator[Callable[..., Listening]]:
    started: list[Listening] = []

    def start(interval_s: float = 1.0) -> Listening:
        started.append(Listening(nvml, interval_s))
        return started[-1]

    yield start
    for listening in started:
        listening.kill()


def _values(gpu: int = 0, instance: str = "-") -> list[str]:
    return [f"gpm_value {gpu} {instance} {key} {raw}" for key, raw, _ in _EXPECTED.values()]


def _hopper(*more: str) -> list[str]:
    return ["count 1", plain_gpu(0, "NVIDIA H100"), "gpm 0", *more]


def test_values_arrive_as_ratios_and_bytes_and_are_not_clipped(nvml, listen) -> None:
    nvml.configure(*_hopper(*_values()))
    values = listen().sample(["0"], wait=True)
    for name, (_, _, expected) in _EXPECTED.items():
        assert values[f"gpu.{name}", "0"] == pytest.approx(expected), name
    assert {metric for metric, _ in values} == {f"gpu.{measure.name}" for measure in MEASURES}


def test_each_metric_is_missing_by_itself(nvml, listen) -> None:
    nvml.configure(*_hopper("gpm_value 0 - 2 80", "gpm_value 0 - 3 0 4", "gpm_value 0 - 5 0 999"))
    values = listen().sample(["0"], wait=True)
    assert values["gpu.sm.active", "0"] == pytest.approx(0.8)
    assert values["gpu.sm.occupancy", "0"] == "permission"
    assert values["gpu.tensor.active", "0"] == "lost"
    assert values["gpu.nvlink.tx", "0"] == "unsupported"


def test_there_is_no_value_before_a_window_has_passed(nvml, listen) -> None:
    nvml.configure(*_hopper(*_values()))
    listening = listen()
    assert listening.sample(["0"]) == {}
    taken = len(nvml.calls("nvmlGpmSampleGet"))
    assert listening.sample(["0"], wait=True)["gpu.sm.active", "0"] == pytest.approx(0.8)
    assert len(nvml.calls("nvmlGpmSampleGet")) == taken + 1, "the first sample was kept meanwhile"
    # On a busy machine another window may have passed already; then it is a value of that.
    wait_until(lambda: listening.sample(["0"]) == {}, "a look before the next window has passed")
    assert listening.sample(["0"], wait=True)
    windows_ms = [int(call[4]) for call in nvml.calls("nvmlGpmMetricsGet")]
    assert len(windows_ms) >= 2
    assert min(windows_ms) >= 100


def test_samples_take_turns_and_are_given_back(nvml, listen) -> None:
    nvml.configure(*_hopper("gpm_value 0 - 2 10"))
    listening = listen()
    assert listening.sample(["0"], wait=True)["gpu.sm.active", "0"] == pytest.approx(0.1)
    for percent in (20, 30, 40):
        nvml.configure(*_hopper(f"gpm_value 0 - 2 {percent}"))
        values = listening.sample(["0"], wait=True)
        assert values["gpu.sm.active", "0"] == pytest.approx(percent / 100)
    assert len(nvml.calls("nvmlGpmSampleAlloc")) == 2, "however often it samples"
    listening.close()
    assert len(nvml.calls("nvmlGpmSampleFree")) == 2
    assert nvml.calls("gpm_leak") == []


def test_a_card_is_read_once_however_many_runs_share_it(nvml, listen) -> None:
    nvml.configure(*_hopper(*_values()))
    values = listen().sample(["0"], ["GPU-fake-0"], ["0"], wait=True)
    assert values["gpu.sm.active", "0"] == values["gpu.sm.active", "GPU-fake-0"]
    assert len(nvml.calls("nvmlGpmSampleGet")) == 2, "once at each end of the window"
    assert len(nvml.calls("nvmlGpmMetricsGet")) == 1
    assert len(nvml.calls("nvmlGpmQueryDeviceSupport")) == 1


def _divided() -> list[str]:
    """GPU instance 1 with one compute instance, GPU instance 2 with two."""
    return [
        "count 1",
        mig_gpu(0, "H200"),
        "existing 0 14 0 2",
        "existing 0 9 4 1 1",
        "gpm 0",
        *_values(instance="1"),
        "gpm_value 0 2 2 40",
    ]


def test_mig_devices_get_their_gpu_instances_values(nvml, listen) -> None:
    nvml.configure(*_divided())
    names = ["MIG-fake-0-1-0", "MIG-fake-0-2-0", "MIG-fake-0-2-1"]
    readings = listen().of_all(*([name] for name in names))
    of_sm = {
        gpu: (value, entity) for metric, value, entity, gpu, _ in readings if "sm.ac" in metric
    }
    assert of_sm == {
        names[0]: (pytest.approx(0.8), "gpu0/gi1"),
        names[1]: (pytest.approx(0.4), "gpu0/gi2"),
        names[2]: (pytest.approx(0.4), "gpu0/gi2"),
    }
    assert {metric for metric, *_ in readings} == {
        metric.name for metric in GpmListener.metrics() if metric.scope is Scope.MIG
    }, "what belongs to the whole card is not said of a part of it"
    taken = [call[1:] for call in nvml.calls("nvmlGpmMigSampleGet")]
    assert set(map(tuple, taken)) == {("0", "1"), ("0", "2")}
    assert len(nvml.calls("nvmlGpmSampleAlloc")) == 4, "a shared instance is read once"
    assert nvml.calls("nvmlGpmSampleGet") == []


def test_values_say_when_their_window_ended(nvml, listen) -> None:
    nvml.configure(*_hopper(*_values()))
    assert all(in_time for *_, in_time in listen().readings(["0"], wait=True))


def test_an_old_sample_is_no_beginning(nvml, listen) -> None:
    """While no run was there nothing was read: what happened then is none of the next run's."""
    nvml.configure(*_hopper(*_values()))
    listening = listen(interval_s=0.01)
    listening.sample(["0"], wait=True)
    begun = len(nvml.calls("nvmlGpmMetricsGet"))
    time.sleep(0.2)  # time has to pass, nothing is waited for
    assert listening.sample(["0"]) == {}
    assert len(nvml.calls("nvmlGpmMetricsGet")) == begun


def test_a_device_made_anew_begins_anew(nvml, listen) -> None:
    nvml.configure(*_divided())
    listening = listen()
    listening.sample(["MIG-fake-0-1-0"], wait=True)
    assert listening.sample(["MIG-fake-0-2-0"]) == {}
    assert len(nvml.calls("nvmlGpmSampleFree")) == 2, "the first device's samples"
    assert listening.sample(["MIG-fake-0-2-0"], wait=True)
    time.sleep(0.15)  # enough for a window, had it begun before
    assert listening.sample(["MIG-fake-0-2-1"]) == {}, "made anew in the same place"
    listening.close()
    assert nvml.calls("gpm_leak") == []


def test_another_cards_lack_does_not_disturb(nvml, listen) -> None:
    nvml.configure("count 2", plain_gpu(0), plain_gpu(1), "gpm 1", "gpm_value 1 - 2 80")
    listening = listen()
    values = listening.sample(["0", "1", "7"], wait=True)
    assert values["gpu.sm.active", "0"] == "unsupported"
    assert values["gpu.pcie.rx", "0"] == "unsupported"
    assert values["gpu.sm.active", "7"] == "lost"
    assert ("gpu.sm.active", "1") not in values, "it is too early"
    while ("gpu.sm.active", "1") not in values:
        values = listening.sample(["0", "1", "7"])
    assert values["gpu.sm.active", "1"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        ("nvmlGpmSampleGet", 4, "permission"),
        ("nvmlGpmSampleGet", 15, "lost"),
        ("nvmlGpmMetricsGet", 999, "lost"),
        ("nvmlGpmQueryDeviceSupport", 13, "unsupported"),
        ("nvmlGpmSampleAlloc", 3, "unsupported"),
    ],
)
def test_a_failure_is_missing_with_its_reason_until_it_works_again(
    nvml, listen, function: str, code: int, reason: str
) -> None:
    works = _hopper(*_values())
    nvml.configure(*works, f"fail {function} {code}")
    listening = listen()
    assert listening.sample(["0"], wait=True)["gpu.sm.active", "0"] == reason
    nvml.configure(*works)
    values: dict[tuple[str, str], Any] = {}
    while values.get(("gpu.sm.active", "0")) in (None, reason):
        values = listening.sample(["0"])
    assert values["gpu.sm.active", "0"] == pytest.approx(0.8)
    listening.close()
    assert nvml.calls("gpm_leak") == []


def test_no_window_spans_a_failure(nvml, listen) -> None:
    """What failed may have been reset: its counters, too."""
    works = _hopper(*_values())
    nvml.configure(*works)
    listening = listen()
    listening.sample(["0"], wait=True)
    nvml.configure(*works, "fail nvmlGpmSampleGet 15")
    assert listening.sample(["0"], wait=True)["gpu.sm.active", "0"] == "lost"
    nvml.configure(*works)
    assert listening.sample(["0"]) == {}


def test_a_card_that_was_reset_is_looked_up_again(nvml, listen) -> None:
    """Handles of before are worth nothing; meanwhile its series are those that it had."""
    works = _hopper(*_values())
    nvml.configure(*works)
    listening = listen()
    listening.sample(["0"], wait=True)
    nvml.configure(*works, "lost 0")
    for _ in range(2):
        readings = listening.readings(["0"], wait=True)
        assert {(value, entity) for _, value, entity, *_ in readings} == {("lost", "gpu0")}
    nvml.configure(*works, "generation 0 1")
    values: dict[tuple[str, str], Any] = {}
    while not values:
        values = listening.sample(["0"])
    assert values["gpu.sm.active", "0"] == pytest.approx(0.8)
    listening.close()
    assert nvml.calls("gpm_leak") == []


def test_a_card_that_is_reset_between_two_samples_is_looked_up_again(nvml, listen) -> None:
    works = _hopper(*_values())
    nvml.configure(*works)
    listening = listen()
    listening.sample(["0"], wait=True)
    nvml.configure(*works, "generation 0 1")
    assert listening.sample(["0"], wait=True)["gpu.sm.active", "0"] == "lost"
    assert listening.sample(["0"], wait=True)["gpu.sm.active", "0"] == pytest.approx(0.8)


def test_a_gpu_instance_that_is_gone_is_lost(nvml, listen) -> None:
    nvml.configure(*_divided())
    listening = listen()
    listening.sample(["MIG-fake-0-1-0"], wait=True)
    nvml.configure(*(line for line in _divided() if line != "existing 0 14 0 2"))
    values = listening.sample(["MIG-fake-0-7-0"], wait=True)
    assert values["gpu.mig.sm.active", "MIG-fake-0-7-0"] == "lost"
    assert ("gpu.mig.pcie.tx", "MIG-fake-0-7-0") not in values
    nvml.configure("count 1", mig_gpu(0, "H200"), "gpm 0")
    values = listening.sample(["MIG-fake-0-1-0"], wait=True)
    assert values["gpu.mig.sm.active", "MIG-fake-0-1-0"] == "lost"


def test_a_driver_that_went_away_ends_the_sampling(nvml, listen) -> None:
    """The collector closes the listener and opens it again."""
    nvml.configure(*_hopper(*_values()))
    listening = listen()
    listening.sample(["0"], wait=True)
    nvml.configure(*_hopper(*_values()), "fail nvmlGpmSampleGet 1")
    with pytest.raises(AssertionError, match="the listener failed"):
        listening.sample(["0"], wait=True)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["count 2", plain_gpu(0), plain_gpu(1), "gpm 1"], "available=True"),
        (["count 0"], "no NVIDIA GPU"),
        (
            ["count 1", plain_gpu(0, "NVIDIA A30")],
            "Hopper or later; this machine has NVIDIA A30",
        ),
        (["count 1", plain_gpu(0), "fail nvmlGpmQueryDeviceSupport 13"], "too old for GPM"),
        (["count 1", plain_gpu(0), "fail nvmlGpmQueryDeviceSupport 15"], "GPU 0: "),
        (["fail nvmlInitWithFlags 9"], "Driver Not Loaded"),
    ],
)
def test_probe_says_what_there_is(nvml, lines: list[str], said: str) -> None:
    nvml.configure(*lines)
    answer = probed("gpm:GpmListener", nvml.environment())
    assert said in answer
    assert "available=True" in said or "remedy=''" not in answer
    calls = [call[0] for call in nvml.calls()]
    if "fail nvmlInitWithFlags 9" not in lines:
        assert calls.count("nvmlInitWithFlags") == calls.count("nvmlShutdown")


def test_every_series_says_how_it_comes_about() -> None:
    metrics = GpmListener.metrics()
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert all("100 ms" in metric.method for metric in metrics)
    assert all(
        "cannot be told apart" in metric.method for metric in metrics if metric.scope is Scope.MIG
    )
    assert {metric.unit for metric in metrics} == {"1", "By/s"}


def test_numbers_of_metrics_are_nvmls() -> None:
    import pynvml

    numbers = {measure.name: measure.metric_id for measure in MEASURES}
    assert numbers == {
        "graphics.active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
        "sm.active": pynvml.NVML_GPM_METRIC_SM_UTIL,
        "sm.occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
        "int.active": pynvml.NVML_GPM_METRIC_INTEGER_UTIL,
        "tensor.active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "dram.active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        "fp64.active": pynvml.NVML_GPM_METRIC_FP64_UTIL,
        "fp32.active": pynvml.NVML_GPM_METRIC_FP32_UTIL,
        "fp16.active": pynvml.NVML_GPM_METRIC_FP16_UTIL,
        "pcie.tx": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
        "pcie.rx": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
        "nvlink.rx": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
        "nvlink.tx": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
    }
