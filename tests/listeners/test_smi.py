"""The smi listener against a fake libnvidia-ml.so.1, through pynvml's real structures."""

from __future__ import annotations

import pynvml
import pytest

from radt.listeners.nvidia import missing
from radt.listeners.smi import SmiListener
from tests.listeners.conftest import Run, SampledNvml
from tests.listeners.workloads import probed

PLAIN = ("count 1", "gpu 0 55 80000 500 1000 250500 7000 61 1410 1593")
#: A card that has everything. Energy grows by 300 W; NVLink is told in KiB for all links together.
FULL = (
    *PLAIN,
    "memory_utilization 0 40",
    "field 0 83 ull 7000 300000",
    "field 0 186 uint 290000",
    "field 0 185 uint 280000",
    "field 0 190 uint 400000",
    "field 0 82 uint 70",
    "field 0 197 ull 5000000000 1000000",
    "field 0 198 ull 6000000000 2000000",
    "field 0 138/4294967295 ull 10 4",
    "field 0 139/4294967295 ull 20 8",
    "field 0 3 ull 2",
    "field 0 4 ull 1",
    "reasons 0 5",
)


def test_a_card_that_has_everything(nvml: SampledNvml) -> None:
    smi = nvml.open(*FULL)
    smi.sample()
    sampled = smi.sample()
    values = {one["metric"]: one["value"] for one in sampled.readings if one["gpu"] == "0"}
    assert values == {
        "gpu.utilization": 0.55,
        "gpu.memory.utilization": 0.4,
        "gpu.memory.used": 1000,
        "gpu.memory.total": 80000,
        "gpu.memory.reserved": 500,
        "gpu.power": pytest.approx(300),
        "gpu.power.instant": 290,
        "gpu.power.average": 280,
        "gpu.power.limit": 400,
        "gpu.energy": 607,
        "gpu.temperature": 61,
        "gpu.temperature.memory": 70,
        "gpu.clock.sm": 1.41e9,
        "gpu.clock.memory": 1.593e9,
        "gpu.clock.event_reasons": 5,
        "gpu.pcie.io.tx": 5_002_000_000,
        "gpu.pcie.io.rx": 6_004_000_000,
        "gpu.nvlink.io.tx": 18 * 1024,
        "gpu.nvlink.io.rx": 36 * 1024,
        "gpu.ecc.corrected": 2,
        "gpu.ecc.uncorrected": 1,
        "gpu.xid.errors": 0,
    }
    assert {one["entity"] for one in sampled.readings} == {"gpu0"}
    assert {one["at_ns"] for one in sampled.readings} == {2_000_000_000}


def test_everything_read_is_declared(nvml: SampledNvml) -> None:
    smi = nvml.open(*FULL, "sm 0 1 50")
    smi.sample()
    read = {one["metric"] for one in smi.sample().readings}
    declared = {metric.name for metric in SmiListener.metrics()}
    assert declared - read == {"gpu.mig.memory.used", "gpu.mig.memory.total"}
    assert read <= declared


def test_a_sample_takes_few_calls(nvml: SampledNvml) -> None:
    """Each costs between a microsecond and several milliseconds."""
    smi = nvml.open(*FULL, "process 0 1 300", "sm 0 1 50")
    shared = [Run(name, ("0",), ()) for name in "abcdefgh"]
    for _ in range(2):
        smi.sample(*shared)
    before = [call[0] for call in nvml.calls()]
    smi.sample()
    calls = [call[0] for call in nvml.calls()][len(before) :]
    calls = [call for call in calls if call != "field"]
    assert calls.count("nvmlDeviceGetFieldValues") == 1
    # Fields, utilisation, memory, temperature, two clocks, reasons; processes and their
    # utilisation twice each, for pynvml asks for the size first; MPS's processes; events.
    assert len(calls) <= 13, calls


def test_a_fast_interval_reads_less_often_what_is_slow(nvml: SampledNvml) -> None:
    """Average power takes the driver milliseconds, and is a mean of one second anyway."""
    smi = nvml.open(*FULL, "sm 0 1 50")
    for _ in range(20):
        smi.sample(after_s=0.1)
    slow = [call for call in nvml.calls("field") if call[2] == "185/0"]
    assert 2 <= len(slow) <= 3
    assert nvml.count("nvmlDeviceGetProcessUtilization") <= 2 * 2, "twice each, for the size"
    assert nvml.count("nvmlDeviceGetUtilizationRates") == 20


def test_a_card_is_read_once_however_many_runs_share_it(nvml: SampledNvml) -> None:
    smi = nvml.open()
    shared = [Run("a", ["0"]), Run("b", ["GPU-fake-0"]), Run("c", ["0"])]
    before = nvml.count("nvmlDeviceGetComputeRunningProcesses_v3")
    first = smi.sample(*shared)
    second = smi.sample(*shared)
    assert first["gpu.temperature", "0"] == first["gpu.temperature", "GPU-fake-0"] == 61
    assert second["gpu.power", "0"] == second["gpu.power", "GPU-fake-0"] == 250.5
    assert len(second.of("gpu.power", "0")) == 1
    assert nvml.count("nvmlDeviceGetUtilizationRates") == 2, "once at each of two instants"
    assert nvml.count("nvmlDeviceGetComputeRunningProcesses_v3") - before == 2
    assert nvml.count("nvmlInitWithFlags") == 1
    nvml.close()
    assert nvml.count("nvmlShutdown") == 1
    assert nvml.count("nvmlEventSetFree") == nvml.count("nvmlEventSetCreate") == 1


def test_other_cards_are_left_alone(nvml: SampledNvml) -> None:
    sampled = nvml.open().sample(Run("a", ["1"]))
    assert sampled["gpu.memory.used", "1"] == 2000
    assert sampled.one("gpu.memory.used", "1")["entity"] == "gpu1"
    asked = {call[1] for call in nvml.calls("nvmlDeviceGetUtilizationRates")}
    assert asked == {"1"}


def test_what_a_card_does_not_have_is_asked_for_once(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "fail nvmlDeviceGetUtilizationRates 3")
    for _ in range(3):
        sampled = smi.sample()
        assert sampled["gpu.utilization", "0"] == "unsupported"
        assert sampled["gpu.nvlink.io.rx", "0"] == "unsupported"
        assert sampled["gpu.clock.event_reasons", "0"] == "unsupported"
    assert nvml.count("nvmlDeviceGetUtilizationRates") == 1
    assert nvml.count("nvmlDeviceGetCurrentClocksEventReasons") == 1
    assert [call[2] for call in nvml.calls("field")].count("139/4294967295") == 1
    # A new run asks again: the card may have been divided, or be whole again.
    nvml.configure(*PLAIN)
    assert smi.sample(Run("b"))["gpu.utilization", "0"] == 0.55


@pytest.mark.parametrize("code", [4, 10, 27])
def test_what_may_pass_is_asked_for_again(nvml: SampledNvml, code: int) -> None:
    smi = nvml.open(*PLAIN, f"fail nvmlDeviceGetTemperature {code}", f"field 0 82 error {code}")
    reason = "permission" if code == 4 else "lost"
    sampled = smi.sample()
    assert sampled["gpu.temperature", "0"] == sampled["gpu.temperature.memory", "0"] == reason
    nvml.configure(*PLAIN, "field 0 82 uint 70")
    sampled = smi.sample()
    assert sampled["gpu.temperature", "0"] == 61
    assert sampled["gpu.temperature.memory", "0"] == 70


def test_an_old_driver(nvml: SampledNvml) -> None:
    """No fields above 160, neither the newest functions nor the newest structures."""
    smi = nvml.open(
        *PLAIN,
        "fields 0 160",
        "field 0 186 uint 290000",
        "field 0 83 ull 7000 300000",
        "power_limit 0 350000",
        "reasons 0 4",
        "fail nvmlDeviceGetCurrentClocksEventReasons 13",
        "fail nvmlDeviceGetMemoryInfo_v2 13",
    )
    smi.sample()
    sampled = smi.sample()
    assert sampled["gpu.power.instant", "0"] == "unsupported"
    assert sampled["gpu.power", "0"] == pytest.approx(300)
    assert sampled["gpu.power.limit", "0"] == 350
    assert sampled["gpu.clock.event_reasons", "0"] == 4
    assert sampled["gpu.memory.used", "0"] == 1500
    assert "reserves" in sampled.one("gpu.memory.used")["method"]
    assert sampled["gpu.memory.reserved", "0"] == "unsupported"


def test_a_driver_without_fields(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "fail nvmlDeviceGetFieldValues 13")
    sampled = smi.sample()
    assert sampled["gpu.energy", "0"] == 7
    assert sampled["gpu.power.average", "0"] == "unsupported"
    assert smi.sample()["gpu.power", "0"] == 250.5


def test_a_new_driver_without_the_old_functions(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "fail nvmlDeviceGetTemperature 13")
    assert smi.sample()["gpu.temperature", "0"] == 61
    assert nvml.calls("nvmlDeviceGetTemperatureV") == [
        ["nvmlDeviceGetTemperatureV", "0", "100000c"]
    ]


def test_the_newest_nvlink_has_other_counters(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "field 0 204/4294967295 ull 700", "field 0 202/4294967295 ull 500")
    sampled = smi.sample()
    assert sampled["gpu.nvlink.io.rx", "0"] == 700
    assert sampled["gpu.nvlink.io.tx", "0"] == 500
    assert sampled.one("gpu.nvlink.io.tx")["method"] == "with packet headers"


def test_pcie_counters_of_32_bits_are_not_believed(nvml: SampledNvml) -> None:
    """A busy link wraps them several times between two readings."""
    smi = nvml.open(*PLAIN, "field 0 197 uint 5000", "field 0 198 ull 6000")
    sampled = smi.sample()
    assert sampled["gpu.pcie.io.tx", "0"] == "unsupported"
    assert sampled["gpu.pcie.io.rx", "0"] == 6000


def test_pcie_counters_that_go_back_are_given_up(nvml: SampledNvml) -> None:
    line = "field 0 197 ull 4000000000 200000000 0 4294967296"
    smi = nvml.open(*PLAIN, line, "field 0 198 ull 6000")
    assert smi.sample()["gpu.pcie.io.tx", "0"] == 4_200_000_000
    for _ in range(2):
        sampled = smi.sample()
        assert sampled["gpu.pcie.io.tx", "0"] == sampled["gpu.pcie.io.rx", "0"] == "unsupported"


def test_pcie_counters_of_a_card_that_was_reset_are_believed(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "field 0 197 ull 4000000000", "field 0 198 ull 6000")
    smi.sample()
    nvml.configure(*PLAIN, "field 0 197 ull 10", "field 0 198 ull 20", "generation 0 1")
    assert smi.sample()["gpu.pcie.io.tx", "0"] == "lost"
    for _ in range(2):
        assert smi.sample()["gpu.pcie.io.tx", "0"] == 10


# Errors ------------------------------------------------------------------------------------------

_UNSUPPORTED = {3, 13, 22, 24, 25, 26, 30}
_PERMISSION = {4, 17}
_GENERAL = {1, 9, 12, 18}
_LOST = {2, 5, 6, 7, 8, 10, 11, 14, 15, 16, 19, 20, 21, 23, 27, 28, 29, 999}


def test_every_code_of_nvml_has_its_reason() -> None:
    codes = {getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
    assert codes == _UNSUPPORTED | _PERMISSION | _GENERAL | _LOST


@pytest.mark.parametrize("code", sorted(_UNSUPPORTED | _PERMISSION | _LOST | {31, 500}))
def test_a_value_that_cannot_be_read_is_missing_with_its_reason(
    nvml: SampledNvml, code: int
) -> None:
    smi = nvml.open(*PLAIN, f"fail nvmlDeviceGetUtilizationRates {code}")
    sampled = smi.sample()
    reason = (
        "unsupported"
        if code in _UNSUPPORTED
        else "permission"
        if code in _PERMISSION
        else "lost"  # and so are codes that nobody knows yet
    )
    assert sampled["gpu.utilization", "0"] == reason
    assert sampled["gpu.temperature", "0"] == 61, "the others are read all the same"
    assert missing(pynvml, pynvml.NVMLError(code)).value == reason


@pytest.mark.parametrize("code", sorted(_GENERAL))
def test_what_concerns_all_cards_is_raised(nvml: SampledNvml, code: int) -> None:
    smi = nvml.open(*PLAIN, f"fail nvmlDeviceGetUtilizationRates {code}")
    assert smi.attempt()["type"].startswith("NVMLError_")


@pytest.mark.parametrize("code", sorted(_GENERAL))
def test_likewise_in_a_field(nvml: SampledNvml, code: int) -> None:
    smi = nvml.open(*PLAIN, f"field 0 186 error {code}")
    assert smi.attempt()["type"].startswith("NVMLError_")


def test_a_card_that_is_lost_and_comes_back(nvml: SampledNvml) -> None:
    other = ("count 2", *FULL[1:], "gpu 1 0 80000 500 2000 60000 9000 35 210 405")
    smi = nvml.open(*other)
    runs = (Run("a", ["GPU-fake-0"]), Run("b", ["1"]))
    smi.sample(*runs)
    assert smi.sample()["gpu.energy", "GPU-fake-0"] == 607
    nvml.configure(*other, "lost 0")
    for _ in range(3):
        sampled = smi.sample()
        lost = [one for one in sampled.readings if one["gpu"] == "GPU-fake-0"]
        assert {one["value"] for one in lost} == {"lost"}
        assert {one["entity"] for one in lost} == {"gpu0"}, "the same series as before"
        assert sampled["process.gpu.memory", "a"] == "lost"
        assert sampled["gpu.temperature", "1"] == 35
        assert sampled["process.gpu.memory", "b"] == 0
    nvml.configure(*other, "generation 0 1")
    sampled = smi.sample()
    assert sampled["gpu.temperature", "GPU-fake-0"] == 61
    assert ("gpu.power", "GPU-fake-0") not in sampled, "nothing is known of the time in between"
    assert smi.sample()["gpu.power", "GPU-fake-0"] == pytest.approx(300)
    assert sampled["gpu.xid.errors", "GPU-fake-0"] == 0


@pytest.mark.parametrize("lines", [FULL, PLAIN])
def test_a_card_that_was_reset_between_two_readings(
    nvml: SampledNvml, lines: tuple[str, ...]
) -> None:
    smi = nvml.open(*lines)
    smi.sample()
    nvml.configure(*lines, "generation 0 1")
    assert smi.sample()["gpu.temperature", "0"] == "lost"
    sampled = smi.sample()
    assert sampled["gpu.temperature", "0"] == 61
    assert sampled["gpu.memory.used", "0"] == 1000
    asked = nvml.calls("nvmlDeviceRegisterEvents")
    assert len(asked) == 2, "its errors are watched by the new handle"


def test_what_a_lost_card_did_not_have_it_does_not_have(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN)
    smi.sample()
    nvml.configure(*PLAIN, "lost 0")
    smi.sample()
    sampled = smi.sample()
    assert sampled["gpu.nvlink.io.rx", "0"] == "unsupported"
    assert sampled["gpu.temperature", "0"] == "lost"


def test_an_unknown_card_does_not_disturb_the_others(nvml: SampledNvml) -> None:
    sampled = nvml.open().sample(Run("a", ["7"]), Run("b", ["0"]))
    assert sampled["gpu.power", "7"] == "lost"
    assert sampled["gpu.temperature", "0"] == 61


# Probe -------------------------------------------------------------------------------------------


def test_probe_finds_the_cards_and_lets_go(nvml: SampledNvml) -> None:
    assert "available=True" in probed("smi:SmiListener", nvml.environment())
    assert nvml.count("nvmlInitWithFlags") == nvml.count("nvmlShutdown") == 1


def test_probe_says_why_there_are_none(nvml: SampledNvml) -> None:
    nvml.configure("count 0")
    assert "no NVIDIA GPU" in probed("smi:SmiListener", nvml.environment())
    nvml.configure("fail nvmlInitWithFlags 9")
    assert "Driver Not Loaded" in probed("smi:SmiListener", nvml.environment())


def test_probe_without_the_library() -> None:
    answer = SmiListener.probe()
    if answer.available:
        pytest.skip("this machine has a GPU")
    assert answer.reason
    assert "smi" in answer.remedy
