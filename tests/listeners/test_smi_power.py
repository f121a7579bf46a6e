"""Power of a card: from its energy counter, or else as the board tells it."""

from __future__ import annotations

import pytest

from radt.listeners.smi_card import PowerMeter
from tests.listeners.conftest import SampledNvml

PLAIN = ("count 1", "gpu 0 55 80000 500 1000 250500 0 61 1410 1593")
MOVING = "field 0 83 ull 7000 300000"
INSTANT = "field 0 186 uint 290000"
AVERAGE = "field 0 185 uint 280000"


@pytest.mark.parametrize("interval_s", [0.01, 0.07, 0.1, 0.5, 1.0, 10.0])
def test_power_is_right_however_short_the_interval(nvml: SampledNvml, interval_s: float) -> None:
    """The counter moves every 100 ms only."""
    smi = nvml.open(*PLAIN, "field 0 83 ull 7000 300000 0.1")
    values = []
    for _ in range(int(max(5, 1.5 / interval_s))):
        sampled = smi.sample(after_s=interval_s)
        if ("gpu.power", "0") in sampled:
            values.append(sampled["gpu.power", "0"])
        else:
            assert not values, "once there is power, there is always"
    assert len(values) >= 3
    assert values == pytest.approx([300] * len(values), rel=0.12)
    assert sampled.one("gpu.power")["method"] == PowerMeter.METHOD


def test_readings_at_one_second_need_not_be_exact(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, MOVING)
    smi.sample()
    for after_s in (0.93, 1.0, 1.07, 0.95):
        assert smi.sample(after_s=after_s)["gpu.power", "0"] == pytest.approx(300)


@pytest.mark.parametrize(
    ("fields", "watts", "method"),
    [
        ((INSTANT, AVERAGE), 290, "instantaneous, not a mean"),
        ((AVERAGE,), 280, "mean of one second by the driver"),
        ((), 250.5, "as reported by the driver: on most cards the mean of one second"),
    ],
)
@pytest.mark.parametrize("counter", ["field 0 83 ull 7000", "fail nvmlDeviceGetFieldValues 0"])
def test_a_counter_that_stands_still_is_none(
    nvml: SampledNvml, counter: str, fields: tuple[str, ...], watts: float, method: str
) -> None:
    """A card that is on always takes power. Without a field there is the function's, of 0 J."""
    smi = nvml.open(*PLAIN, counter, *fields)
    assert ("gpu.power", "0") not in smi.sample(), "it is not known yet"
    sampled = smi.sample()
    assert sampled["gpu.power", "0"] == watts
    assert sampled.one("gpu.power")["method"] == method
    assert sampled["gpu.energy", "0"] == "unsupported"
    # A series keeps to its method.
    nvml.configure(*PLAIN, MOVING, *fields)
    smi.sample()
    assert smi.sample()["gpu.power", "0"] == watts


def test_a_card_without_a_counter_tells_its_power_at_once(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "fail nvmlDeviceGetTotalEnergyConsumption 3", INSTANT)
    sampled = smi.sample()
    assert sampled["gpu.energy", "0"] == "unsupported"
    assert sampled["gpu.power", "0"] == 290
    assert sampled["process.gpu.memory", "a"] == 0


@pytest.mark.parametrize("counted_before", [False, True])
@pytest.mark.parametrize(
    ("counter", "reason"),
    [("error 4", "permission"), ("error 999", "lost"), ("ull 607000", "lost")],
)
def test_a_counter_that_fails_for_good_costs_its_own_values_only(
    nvml: SampledNvml, counter: str, reason: str, *, counted_before: bool
) -> None:
    """A card takes power, never 0 W; where the power comes from changes once."""
    smi = nvml.open(*PLAIN, MOVING, INSTANT)
    if counted_before:
        smi.sample()
        assert smi.sample()["gpu.power", "0"] == pytest.approx(300)
    elif reason == "lost" and "ull" in counter:
        reason = "unsupported"
    nvml.configure(*PLAIN, f"field 0 83 {counter}", INSTANT)
    first, sampled = smi.sample(), smi.sample()
    assert first["gpu.power.instant", "0"] == 290
    assert sampled["gpu.energy", "0"] == reason
    assert sampled["gpu.power", "0"] == 290
    assert "if the counter fails" in PowerMeter.METHOD, "the series has one method"
    nvml.configure(*PLAIN, MOVING, INSTANT)  # its total may be whole again
    for _ in range(2):
        sampled = smi.sample()
    assert sampled["gpu.energy", "0"] == pytest.approx(7 + 300 * smi.now_s)
    assert sampled["gpu.power", "0"] == 290


def test_a_driver_that_was_loaded_again(nvml: SampledNvml) -> None:
    smi = nvml.open(*PLAIN, "field 0 83 ull 1000000 300000")
    for _ in range(3):
        smi.sample()
    nvml.configure(*PLAIN, "field 0 83 ull -800000 300000")  # 400 J at second 4
    sampled = smi.sample()
    assert sampled["gpu.energy", "0"] == 400
    assert ("gpu.power", "0") not in sampled
    assert smi.sample()["gpu.power", "0"] == pytest.approx(300)
