"""The dcgm listener under runs: beside a profiler, and gone with whoever used it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import radt
from radt.model import MissingReason
from tests.support.bench import Bench, alive, wait_until
from tests.support.held import Held, kill_worker
from tests.support.nvml import FakeNvml, nvml, nvml_library

__all__ = ["nvml", "nvml_library"]

_TESTS = Path(__file__).parents[1]
_DCGMI = _TESTS / "listeners" / "fakes" / "dcgmi.py"
_NSIGHT = _TESTS / "support" / "fake_nsight.py"
#: DCGM's numbers of the two GPUs.
_CARDS = ("5", "6")
_SM_ACTIVE = "1002"
WATTS = 60.0


@dataclass
class HostEngine:
    """What was asked of the fake dcgmi."""

    log: Path

    def dmons(self) -> list[tuple[int, str, list[str]]]:
        """Process id, card and fields of each dcgmi dmon."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        calls: list[list[Any]] = [json.loads(line) for line in lines]
        words = [(call[0], call[2:]) for call in calls if call[1:3] == ["dcgmi", "dmon"]]
        return [
            (pid, call[call.index("-i") + 1], call[call.index("-e") + 1].split(","))
            for pid, call in words
        ]

    @property
    def running(self) -> set[str]:
        """Cards that are watched now."""
        return {card for pid, card, _ in self.dmons() if alive(pid)}


@pytest.fixture
def engine(bench: Bench, nvml: FakeNvml, tmp_path: Path) -> Iterator[HostEngine]:
    """Two GPUs whose counters one user can have at a time, with dcgmi and nsys on the PATH."""
    commands, state = tmp_path / "bin", tmp_path / "dcgm.json"
    commands.mkdir()
    dcgmi = f"import runpy\nrunpy.run_path({str(_DCGMI)!r}, run_name='__main__')\n"
    for name, source in (("dcgmi", dcgmi), ("nsys", _NSIGHT.read_text())):
        (commands / name).write_text(f"#!{sys.executable} -IS\n{source}")
        (commands / name).chmod(0o755)
    gpus = [{"id": 5 + one, "index": one, "uuid": f"GPU-fake-{one}"} for one in range(2)]
    state.write_text(json.dumps({"gpus": gpus}))
    bench.env |= nvml.variables() | {
        "PATH": f"{commands}:{bench.env['PATH']}",
        "FAKE_DCGM": str(state),
        "FAKE_DCGM_LOG": str(tmp_path / "dcgm.log"),
        "FAKE_STATE": str(tmp_path),
        "RADT_FLUSH_S": "0.2",
    }
    engine = HostEngine(tmp_path / "dcgm.log")
    yield engine
    for pid, _, _ in engine.dmons():
        if alive(pid):
            os.kill(pid, 9)


def test_dcgm_makes_way_for_a_profiler_on_its_card_only(
    bench: Bench, nvml: FakeNvml, engine: HostEngine
) -> None:
    nvml.add(f"field 1 83 ull 0 {WATTS * 1000}")
    held = Held(bench)
    held.start("Devices,Listeners", "0,dcgm@200ms+nsysraw", "1,dcgm@200ms")
    # Both series are there under the names that they have without a profiler, too.
    wait_until(lambda: held.last("b", "gpu.sm.active") == 0.8, "counters of the other card")
    wait_until(lambda: held.last("a", "gpu.power") == 250.5, "power of the profiled card")
    # The profiled card's process is replaced by one that reads less.
    wait_until(lambda: engine.running == set(_CARDS), "one watches each card")
    before = {pid for pid, _, _ in engine.dmons()}

    kill_worker()
    wait_until(lambda: not any(alive(pid) for pid in before), "dmon goes with who started it")
    wait_until(lambda: engine.running == set(_CARDS), "the next collector's")
    held.goes_on("b", "gpu.sm.active")
    held.goes_on("a", "gpu.power")
    held.end()

    # From the first instant to the last, though dmon's first row comes late, and twice.
    totals = radt.totals(held.run("b").run_id, home=bench.home)
    (joules,) = (value for key, value in totals.items() if key.startswith("gpu_energy_j"))
    assert joules == pytest.approx(WATTS * totals["duration_s"], abs=WATTS * 2)
    assert held.count("a", "gpu.sm.active") == 0
    gaps = held.gaps("a", "gpu.sm.active")
    assert {gap.reason for gap in gaps} == {MissingReason.PAUSED}
    assert max(gap.end_ns for gap in gaps) == held.run("a").ended_ns
    assert MissingReason.PAUSED not in {gap.reason for gap in held.gaps("b", "gpu.sm.active")}
    watched = {(card, _SM_ACTIVE in fields) for _, card, fields in engine.dmons()}
    assert watched == {(_CARDS[0], False), (_CARDS[1], True)}
    wait_until(lambda: not engine.running, "nobody watches what nobody uses")
