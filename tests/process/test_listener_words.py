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
from tests.support.nvml import FakeNvml, nvml, nvml_library

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
