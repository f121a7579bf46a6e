"""What people write for listeners, and what they get: in files, on the command line, in scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radt.model import RunStatus
from radt.store.records import RunRecord
from tests.run import fake_torch
from tests.support.bench import Bench, has_store, wait_until
from tests.support.held import Held
from tests.support.nvml import TWO_GPUS, FakeNvml, nvml, nvml_library

__all__ = ["nvml", "nvml_library"]

_DCGMI = Path(__file__).parents[1] / "listeners" / "fakes" / "dcgmi.py"
DEFAULTS = {"smi", "top", "iostat"}


def listeners(bench: Bench, run: RunRecord) -> set[str]:
    """What was read for a run."""
    return {one.listener for one in bench.reader.ledger([run.run_id]) if one.received}


@pytest.fixture
def gpus(bench: Bench, nvml: FakeNvml, tmp_path: Path) -> Bench:
    """Two GPUs, and DCGM for them."""
    commands, state = tmp_path / "bin", tmp_path / "dcgm.json"
    commands.mkdir()
    dcgmi = commands / "dcgmi"
    dcgmi.write_text(
        f"#!{sys.executable} -IS\nimport runpy\nrunpy.run_path({str(_DCGMI)!r}, "
        "run_name='__main__')\n"
    )
    dcgmi.chmod(0o755)
    gpus = [{"id": 5 + one, "index": one, "uuid": f"GPU-fake-{one}"} for one in range(2)]
    state.write_text(json.dumps({"gpus": gpus}))
    bench.env |= nvml.variables() | {
        "PATH": f"{commands}:{bench.env['PATH']}",
        "FAKE_DCGM": str(state),
        "FAKE_DCGM_LOG": str(tmp_path / "dcgm.log"),
        "RADT_FLUSH_S": "0.2",
    }
    return bench


def test_words_of_a_file_are_what_is_read(gpus: Bench) -> None:
    held = Held(gpus)
    original = "smi+top+dcgmi+iostat+free"
    held.start("Devices,Listeners", "0,default", "0,none", "0,dcgmi", f"0,{original}", "0,", "cpu,")
    expected = {
        "a": DEFAULTS,
        "b": set(),
        "c": {"dcgm"},
        "d": {"smi", "top", "dcgm", "iostat", "free"},
        "e": DEFAULTS,
        "f": DEFAULTS,
    }
    wait_until(
        lambda: all(
            names <= listeners(gpus, held.run(letter)) for letter, names in expected.items()
        ),
        "a reading of each",
    )
    held.end()
    found = {letter: listeners(gpus, held.run(letter)) - {"rapl"} for letter in expected}
    assert found == expected
    assert held.run("c").listeners == "dcgm"
    assert not [one for one in held.series("f") if one.metric.startswith("gpu")]


@pytest.mark.long
@pytest.mark.mlflow
def test_many_rows_and_different_wishes_for_one_listener(gpus: Bench, nvml: FakeNvml) -> None:
    energy, traffic = "field {} 83 ull 0 {}000", "field {} 198 ull 0 1000000000"
    each = [text.format(gpu, watts) for gpu, watts in enumerate((260, 60)) for text in (energy,)]
    nvml.configure(*TWO_GPUS, *each, traffic.format(0), traffic.format(1))
    fast = "default+smi@100ms+top@100ms+iostat@100ms"
    rows = [f"{number % 2},{fast}" for number in range(7)]
    held = Held(gpus)
    held.start("Devices,Listeners", *rows, "0,top:cores@1s")
    for letter in "ag":
        wait_until(lambda: held.count(letter, "gpu.power") >= 15, "a few seconds")  # noqa: B023

    def is_read(letter: str) -> bool:
        """Whether there are three seconds of each listener; how much is missed is the machine's."""
        ledger = gpus.reader.ledger([held.run(letter).run_id])
        read = [one for one in ledger if one.expected]
        return bool(read) and all(one.received * one.interval_s >= 3 for one in read)

    wait_until(lambda: all(is_read(letter) for letter in "abcdefgh"), "three seconds of all")
    held.end()

    for letter in "abcdefgh":
        run = held.run(letter)
        series = held.series(letter)
        assert len({(one.listener, one.metric, one.entity) for one in series}) == len(series)
        intervals = {one.interval_s for one in series if one.listener == "top"} - {None}
        assert intervals == ({1.0} if letter == "h" else {0.1})
        per_core = [one for one in series if one.metric == "system.cpu.core.utilization"]
        assert bool(per_core) == (letter == "h")
        ledger = {one.listener: one for one in gpus.reader.ledger([run.run_id])}
        assert ledger["top"].received == held.count(letter, "system.load")
        for one in ledger.values():
            assert one.expected == one.received + one.missed
        if letter != "h":
            assert {one.entity for one in series if one.metric.startswith("gpu")} == {
                f"gpu{'abcdefg'.index(letter) % 2}"
            }

    gpus.wait_delivered()
    (run,) = [
        run for name, run in gpus.mlflow_runs("experiment").items() if name.startswith("(1 b)")
    ]
    # A busy machine reads a counter later than it says, which shows where a stretch is short.
    for key, per_s in (("gpu.energy_per_s", 60), ("gpu.pcie.io.rx_per_s", 1e9)):
        rates = gpus.mlflow.get_metric_history(run.info.run_id, f"system/{key}/gpu1")
        assert any(rate.value == pytest.approx(per_s, rel=0.5) for rate in rates), key
    energy_j = held.samples("b", "gpu.energy").values
    totals = {name: value for name, value in run.data.metrics.items() if "energy" in name}
    # Without the last reading, as on a busy machine, it is a lower bound.
    (total_j,) = (totals[name] for name in totals if name.startswith("summary/gpu.energy/gpu1/to"))
    assert total_j == pytest.approx(energy_j[-1] - energy_j[0])
    history = gpus.mlflow.get_metric_history(run.info.run_id, "system/gpu.temperature/gpu1")
    assert 1 <= len(history) < held.count("b", "gpu.temperature") / 5


@pytest.mark.long
def test_scripts_name_listeners_too(gpus: Bench) -> None:
    shutil.copyfile(fake_torch.__file__, gpus.folder / "torch.py")
    gpus.script(
        "alone.py",
        "import radt, sys, torch\ntorch.use(0, 1)\n"
        "with radt.Run(listeners=sys.argv[1]) as run:\n"
        "    print(run.id, flush=True)\n"
        "    sys.stdin.read()\n",
    )

    def run(words: str, *metrics: str) -> tuple[RunRecord, str]:
        script = subprocess.Popen(
            [sys.executable, "alone.py", words],
            cwd=gpus.folder,
            env=gpus.env | {"RADT_QUIET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert script.stdout is not None
        run_id = script.stdout.readline().strip()

        def found() -> set[str]:
            if not has_store(gpus.home):
                return set()  # the script began while its collector starts
            return {one.metric for one in gpus.reader.series([run_id])}

        wait_until(lambda: set(metrics) <= found(), words)
        # It may have begun before its collector has started, or has written its row.
        wait_until(lambda: has_store(gpus.home) and gpus.reader.runs(run_ids=[run_id]), words)
        wait_until(lambda: listeners(gpus, gpus.reader.run(run_id)), words)
        _, error = script.communicate(timeout=180)
        assert script.returncode == 0, error
        return gpus.reader.run(run_id), error

    ended, said = run("top+torch", "system.load", "torch.memory.allocated")
    assert (ended.status, said) == (RunStatus.FINISHED, "")
    ended, said = run("top+nsys", "system.load")
    assert ended.status is RunStatus.FINISHED
    assert "nsys must start with the run" in said
    assert "--listeners nsys" in said
    ended, said = run("dcgmi")
    assert (ended.listeners, listeners(gpus, ended), said) == ("dcgm", {"dcgm"}, "")
