"""What is whose, of runs that share a GPU: from the file to the store, on a fake driver."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import radt
from radt.home import runtime_dir
from radt.model import MissingReason, RunStatus, Scope
from tests.support.bench import Bench, wait_until
from tests.support.fake_mps import FakeMps, mps
from tests.support.held import Held, kill_worker
from tests.support.nvml import FakeNvml, mig_gpu, nvml, nvml_library

__all__ = ["mps", "nvml", "nvml_library"]

#: The energy counter of GPU 0 (field 83, mJ), at so many mW.
ENERGY = "field 0 83 ull 0 260000"
IDLE_W, USED_W = 60.0, 260.0
#: Somebody else's process; it is no run's.
COLLEAGUE = os.getpid()


@pytest.fixture
def held(bench: Bench, nvml: FakeNvml, mps: FakeMps) -> Held:
    bench.env |= nvml.variables() | mps.variables()
    bench.env["RADT_FLUSH_S"] = "0.2"
    return Held(bench)


def known_idle_power() -> None:
    """As if GPU 0 had been seen idle a minute ago."""
    now_s = time.time()
    power = {"watts": IDLE_W, "seconds": 60.0, "started_at": now_s - 90, "measured_at": now_s - 30}
    (runtime_dir() / "gpu-idle-power.json").write_text(json.dumps({"GPU-fake-0": power}))


def test_rows_on_mig_instances_have_their_own_instance_also_after_a_crash(
    held: Held, nvml: FakeNvml
) -> None:
    nvml.configure("count 1", mig_gpu(0), "gpm 0", ENERGY)
    row = "0,1g.5gb,smi@100ms+gpm@150ms"
    held.start("Devices,Collocation,Listeners", row, row)
    tags = {one: held.bench.reader.tags(held.run(one).run_id) for one in "ab"}
    # MIG-fake-GPU-GI-CI
    own = {one: tags[one]["radt.mig.uuid"].split("-")[3] for one in "ab"}
    processes = (
        f"process 0 {held.pids['a']} 300 {own['a']} 0",
        f"process 0 {held.pids['b']} 400 {own['b']} 0",
        f"process 0 {COLLEAGUE} 5000 {own['b']} 0",
    )
    nvml.add(
        *processes,
        f"mig_memory {own['a']} 1111",
        f"mig_memory {own['b']} 2222",
        f"gpm_value 0 {own['a']} 2 30",
        f"gpm_value 0 {own['b']} 2 60",
        "gpm_value 0 - 2 99",
    )
    for letter, memory, active in (("a", 300, 0.3), ("b", 400, 0.6)):
        wait_until(lambda: held.last(letter, "process.gpu.memory") == memory, "its memory")  # noqa: B023
        wait_until(lambda: held.last(letter, "gpu.mig.sm.active") == active, "its SMs")  # noqa: B023
        wait_until(lambda: held.gaps(letter, "process.gpu.energy"), "why it has no energy")  # noqa: B023
    killed_ns = held.samples("a", "gpu.mig.memory.used").times_ns[-1]
    kill_worker()
    nvml.add(f"mig_memory {own['a']} 3333", f"gpm_value 0 {own['a']} 2 45")
    wait_until(lambda: held.last("a", "gpu.mig.memory.used") == 3333, "memory after the crash")
    wait_until(lambda: held.last("a", "gpu.mig.sm.active") == 0.45, "SMs after the crash")
    for letter in "ab":
        held.goes_on(letter, "gpu.power")  # a second has passed
    for process in processes:  # or the instances could not be taken away
        nvml.remove(process)
    held.end()

    for letter, memory, used, active in (
        ("a", {0, 300}, {1111, 3333}, {0.3, 0.45}),
        ("b", {0, 400}, {2222}, {0.6}),
    ):
        series = held.series(letter)
        assert len({(one.listener, one.metric, one.entity) for one in series}) == len(series)
        places = {one.metric: (one.scope, one.entity) for one in series}
        instance = f"gpu0/gi{own[letter]}"
        assert places["gpu.mig.memory.used"] == (Scope.MIG, f"{instance}/ci0")
        assert places["process.gpu.memory"] == (Scope.PROCESS, f"{instance}/ci0")
        assert places["gpu.mig.sm.active"] == (Scope.MIG, instance)
        assert places["gpu.energy"] == places["gpu.temperature"] == (Scope.GPU, "gpu0")
        assert "gpu.sm.active" not in places, "the card's would look like the run's"
        assert {max(memory)} <= set(held.samples(letter, "process.gpu.memory").values) <= memory
        # Before the test said what it is, the instance of the fake had the memory of the card.
        assert used <= set(held.samples(letter, "gpu.mig.memory.used").values) <= used | {500, 1000}
        assert set(held.samples(letter, "gpu.mig.sm.active").values) == active
        assert held.count(letter, "process.gpu.energy") == 0
        gaps = held.gaps(letter, "process.gpu.energy")
        assert {gap.reason for gap in gaps} == {MissingReason.UNATTRIBUTABLE}
        assert min(gap.start_ns for gap in gaps) < killed_ns, "what was missing before is known"
        assert max(gap.end_ns for gap in gaps) == held.run(letter).ended_ns
        for listener in ("smi", "gpm"):
            why = [outage.detail for outage in held.outages(letter, listener)]
            assert why.count("the collector was restarted") == 1


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("collocation", ["-", "MPS"])
def test_nothing_of_a_colleague_is_given_to_runs(
    held: Held, nvml: FakeNvml, mps: FakeMps, collocation: str
) -> None:
    known_idle_power()
    nvml.configure("count 1", "gpu 0 0 80000 500 1000 260000 0 61 1410 1593", ENERGY)
    row = f"0,{collocation},smi@100ms"
    held.start("Devices,Collocation,Listeners", row, row)
    kind, server = "process", 0
    if collocation == "MPS":
        kind, (daemon,) = "mps", mps.calls("daemon")
        server = mps.connect(daemon["env"], held.pids["a"])
    shares = {server: 50} if server else {held.pids["a"]: 30, held.pids["b"]: 20}
    own = [f"{kind} 0 {held.pids['a']} 300", f"{kind} 0 {held.pids['b']} 400"]
    served = [f"process 0 {server} 50"] if server else []
    nvml.add(
        "gpu 0 90 80000 500 6000 260000 0 61 1410 1593",
        *own,
        *served,
        f"process 0 {COLLEAGUE} 5000",
        *(f"sm 0 {pid} {percent}" for pid, percent in (shares | {COLLEAGUE: 50}).items()),
    )
    for letter in "ab":
        wait_until(lambda: held.last(letter, "gpu.utilization") == 0.9, "work")  # noqa: B023
        if not server:
            wait_until(
                lambda: held.last(letter, "process.gpu.energy"),  # noqa: B023
                "energy of its own",
            )
            held.goes_on(letter, "process.gpu.energy", 2)
    if server:
        held.goes_on("b", "gpu.power", 20)
    for process in (*own, *served):  # whoever has ended is listed no longer
        nvml.remove(process)
    for letter in "ab":  # a reading of the old list would be of processes that have ended
        held.goes_on(letter, "gpu.power", 2)
    held.end()

    assert {300} <= set(held.samples("a", "process.gpu.memory").values) <= {0, 300}
    assert {400} <= set(held.samples("b", "process.gpu.memory").values) <= {0, 400}
    joules = {one: held.samples(one, "process.gpu.energy").values for one in "ab"}
    utilization = {one: set(held.samples(one, "process.gpu.utilization").values) for one in "ab"}
    if server:
        # Of the server's time NVML does not tell whose it was: nobody's, instead of everybody's.
        for letter in "ab":
            assert set(joules[letter]) | utilization[letter] <= {0}
            for metric in ("process.gpu.energy", "process.gpu.utilization"):
                reasons = {gap.reason for gap in held.gaps(letter, metric)}
                assert reasons == {MissingReason.UNATTRIBUTABLE}
        return
    assert {0.3} <= utilization["a"] <= {0, 0.3} and {0.2} <= utilization["b"] <= {0, 0.2}
    # The two need not begin and end at one instant.
    cards = [held.samples(letter, "gpu.energy") for letter in "ab"]
    seconds = (max(c.times_ns[-1] for c in cards) - min(c.times_ns[0] for c in cards)) / 1e9
    card_j = max(c.values[-1] for c in cards) - min(c.values[0] for c in cards)
    above_idle_j = card_j - IDLE_W * seconds
    # A reading has the time at which it began; on a busy machine it comes to the counter later.
    ledgers = [held.bench.reader.ledger([held.run(letter).run_id]) for letter in "ab"]
    late_s = max(one.sampling_max_ns for ledger in ledgers for one in ledger) / 1e9
    off_j = USED_W * 2 * late_s + 0.01 * above_idle_j
    assert above_idle_j == pytest.approx((USED_W - IDLE_W) * seconds, abs=off_j)
    assert 0 < joules["a"][-1] + joules["b"][-1] <= 0.5 * above_idle_j + off_j
    times = [held.samples(letter, "process.gpu.energy").times_ns for letter in "ab"]
    _, of_a, of_b = np.intersect1d(*times, return_indices=True)
    grown = np.diff(joules["a"][of_a]), np.diff(joules["b"][of_b])
    assert grown[0] == pytest.approx(1.5 * grown[1], rel=0.01)


@pytest.mark.long
def test_a_card_lost_in_mid_run_makes_its_energy_a_lower_bound(held: Held, nvml: FakeNvml) -> None:
    nvml.configure("count 1", "gpu 0 55 80000 500 1000 250000 0 61 1410 1593", ENERGY)
    held.start("Devices,Listeners", "0,smi@100ms")
    held.goes_on("a", "gpu.energy")
    nvml.add("xid 0 79", "lost 0")
    wait_until(lambda: held.gaps("a", "gpu.energy"), "it is known to be missing")
    said = held.end()
    run, home = held.run("a"), held.bench.home
    totals = radt.totals(run.run_id, home=home)
    energy = held.samples("a", "gpu.energy").values
    assert totals["gpu_energy_j_at_least"] == pytest.approx(energy[-1] - energy[0])
    assert "gpu_energy_j" not in totals
    names = [marker.name for marker in held.bench.reader.markers([run.run_id])]
    assert {"gpu0 lost", "XID 79"} <= set(names)
    why = "after the start (GPU is lost; XID 79: GPU has fallen off the bus)"
    report = held.bench.shown("report", "experiment", "--format", "json")
    for text in (said, report):
        words = " ".join(text.split())
        assert "gpu0 was lost" in words
        assert why in words
        assert "The run's energy is a lower bound" in words


@pytest.mark.long
def test_a_card_that_goes_and_a_driver_that_hangs_cost_only_themselves(
    held: Held, nvml: FakeNvml
) -> None:
    # On a busy machine, a reading that takes a second does not hang.
    held.bench.env["RADT_COLLECTOR_HANG_S"] = "5"
    nvml.configure("count 1", "gpu 0 55 80000 500 1000 250000 0 61 1410 1593", ENERGY)
    held.start("Devices,Listeners", "0,smi@100ms+top@100ms")
    held.goes_on("a", "gpu.temperature")

    nvml.add("lost 0")
    # What was read before comes into the store before the gap does.
    wait_until(lambda: held.gaps("a", "gpu.temperature"), "it is known to be missing")
    gone = held.count("a", "gpu.temperature")
    held.goes_on("a", "system.load", 10)
    assert held.count("a", "gpu.temperature") == gone
    nvml.remove("lost 0")
    held.goes_on("a", "gpu.temperature")
    (lost,) = held.gaps("a", "gpu.temperature")
    assert lost.reason is MissingReason.LOST
    # It was read, and said that there was nothing; a busy machine may be late for a reading.
    assert {outage.detail for outage in held.outages("a", "smi")} <= {"no reading"}

    hang = "hang nvmlDeviceGetFieldValues"
    nvml.add(hang)
    run_id = held.run("a").run_id

    def restarts() -> int:
        names = [one.name for one in held.bench.reader.markers([run_id])]
        return names.count("listener smi restarted")

    wait_until(restarts, "the hanging listener is left behind")
    held.goes_on("a", "system.load")
    nvml.remove(hang)
    held.goes_on("a", "gpu.temperature")
    assert any("did not return" in gap.detail for gap in held.outages("a", "smi"))

    calls = len(nvml.calls("nvmlDeviceGetFieldValues"))
    nvml.add(hang)
    wait_until(lambda: len(nvml.calls("nvmlDeviceGetFieldValues")) > calls, "it is asked again")
    said = held.end()
    assert "not in its store" not in said
    assert "does not answer" not in said
    run = held.run("a")
    assert run.status is RunStatus.FINISHED
    ledger = {one.listener: one for one in held.bench.reader.ledger([run_id])}
    assert ledger["smi"].missed >= 5
    assert ledger["top"].missed < ledger["smi"].missed
    assert ledger["top"].state == "ended"
    assert Path(run.spool).exists()
