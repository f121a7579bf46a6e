"""XID errors and throttling as markers of the runs that they concern."""

from __future__ import annotations

import pytest

from tests.listeners.conftest import Run, SampledNvml
from tests.support.nvml import TWO_GPUS, mig_gpu


def test_an_xid_error_is_told_once_to_the_runs_on_the_card(nvml: SampledNvml) -> None:
    before = (*TWO_GPUS, "xid 0 13")
    smi = nvml.open(*before)
    first = smi.sample(Run("a", ["0"]), Run("b", ["GPU-fake-0"]), Run("c", ["1"]))
    assert first.occurrences == [], "what was before the run is not the run's"
    nvml.configure(*before, "xid 0 79", "xid 0 12345")
    sampled = smi.sample()
    assert sampled.names("a") == sampled.names("b") == ["XID 79", "XID 12345"]
    assert sampled.names("c") == []
    assert sampled["gpu.xid.errors", "0"] == 2, "counted at once: a run may end with it"
    assert sampled.occurrences[0]["detail"] == "gpu0: GPU has fallen off the bus"
    sampled = smi.sample()
    assert sampled.occurrences == []
    assert sampled["gpu.xid.errors", "0"] == 2
    assert sampled["gpu.xid.errors", "1"] == 0
    assert {call[1] for call in nvml.calls("nvmlEventSetWait_v2")} == {"0"}, "never waits"
    asked = nvml.calls("nvmlDeviceRegisterEvents")
    assert [call[1:] for call in asked] == [["0", "8"], ["1", "8"]]


@pytest.mark.parametrize(
    ("line", "reason", "tries"),
    [
        ("no_events 0 1", "unsupported", 1),
        ("fail nvmlEventSetCreate 13", "unsupported", 0),
        ("fail nvmlDeviceRegisterEvents 4", "permission", 3),
    ],
)
def test_a_card_whose_errors_cannot_be_watched_says_so(
    nvml: SampledNvml, line: str, reason: str, tries: int
) -> None:
    smi = nvml.open(*TWO_GPUS, line)
    for _ in range(3):
        assert smi.sample()["gpu.xid.errors", "0"] == reason
    assert nvml.count("nvmlDeviceRegisterEvents") == tries


def test_many_errors_at_once_do_not_hold_a_sample_up(nvml: SampledNvml) -> None:
    smi = nvml.open()
    smi.sample()
    nvml.add(*["xid 0 31"] * 40)
    first, second = smi.sample(), smi.sample()
    assert len(first.names()) == 32
    assert len(second.names()) == 8


def test_a_lost_card_does_not_silence_the_others(nvml: SampledNvml) -> None:
    smi = nvml.open()
    smi.sample(Run("a", ["0"]), Run("b", ["1"]))
    nvml.add("lost 0")
    smi.sample()
    smi.sample()
    nvml.add("xid 1 48")
    assert smi.sample().names("b") == ["XID 48"]
    nvml.remove("lost 0")
    smi.sample()
    nvml.add("xid 0 62")
    assert smi.sample().names("a") == ["XID 62"]


@pytest.mark.parametrize("known_by", ["sample", "counters"])
@pytest.mark.parametrize("first", [("xid 0 79",), ("xid 0 79", "lost 0")])
def test_a_card_that_falls_off_the_bus_is_marked_with_its_last_error(
    nvml: SampledNvml, first: tuple[str, ...], known_by: str
) -> None:
    """Its run may end at once, before it is sampled again; other runs hear of it all the same."""
    a, b, other = Run("a", ["0"]), Run("b", ["GPU-fake-0"]), Run("c", ["1"])
    smi = nvml.open()
    smi.sample(a, b, other)
    nvml.add(*first)
    told = [smi.sample() if known_by == "sample" else smi.counters(a)]
    nvml.add(*{"lost 0"}.difference(first))
    told += [smi.sample(), smi.sample(), smi.counters(b)]
    for run in ("a", "b"):
        names = [name for one in told for name in one.names(run)]
        assert sorted(names) == ["XID 79", "gpu0 lost"]
    assert [name for one in told for name in one.names("c")] == []
    (why,) = {o["detail"] for t in told for o in t.occurrences if o["name"] == "gpu0 lost"}
    assert why == "GPU is lost"
    nvml.configure(*TWO_GPUS)
    assert smi.sample()["gpu.temperature", "0"] == 61
    nvml.add("lost 0")
    assert smi.sample().names("a") == ["gpu0 lost"], "once more"


def test_an_error_in_a_mig_instance_is_of_its_run_only(nvml: SampledNvml) -> None:
    smi = nvml.open("count 1", mig_gpu(0), "existing 0 19 0 1", "existing 0 19 1 1")
    smi.sample(Run("a", ["MIG-fake-0-1-0"]), Run("b", ["MIG-fake-0-2-0"]))
    nvml.add("xid 0 43 2 0")
    sampled = smi.sample()
    assert sampled.names("a") == []
    assert sampled.names("b") == ["XID 43"]
    nvml.add("xid 0 95")
    sampled = smi.sample()
    assert sampled.names("a") == sampled.names("b") == ["XID 95"]


def test_throttling_is_marked_where_it_begins_and_ends(nvml: SampledNvml) -> None:
    smi = nvml.open(
        *TWO_GPUS,
        "reasons 0 4",
        "at 2 reasons 0 36",  # 4: software power cap, no marker; 32: software thermal slowdown
        "at 4 reasons 0 4",
        "at 6 reasons 0 36",
        "at 8 reasons 0 1",
    )
    seen = {}
    for second in range(1, 16):
        runs = [Run("a")] if second < 7 else [Run("a"), Run("late")]
        for one in smi.sample(*runs).occurrences:
            seen.setdefault(one["run_id"], []).append((second, one["name"], one["at_ns"] // 10**9))
    assert seen["a"] == [
        (2, "software thermal slowdown begins", 2),
        # That it was gone for two seconds does not count.
        (12, "software thermal slowdown ends", 7),
    ]
    assert seen["late"] == [
        (7, "software thermal slowdown begins", 7),
        (12, "software thermal slowdown ends", 7),
    ]
