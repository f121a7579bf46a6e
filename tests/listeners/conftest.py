"""A process that samples with a fake libnvidia-ml.so.1."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml import TWO_GPUS, FakeNvml, nvml_library

__all__ = ["nvml_library"]

_READ = """
import json, sys
from radt.listeners.api import Target
from radt.listeners.smi import SmiListener
listener = SmiListener()
listener.open()
for targets in json.loads(sys.argv[1]):
    targets = [Target(t["run_id"], tuple(t["gpus"]), tuple(t["pids"])) for t in targets]
    print(json.dumps([
        [r.metric, r.value, r.entity, r.run_id, r.gpu, isinstance(r.value, str)]
        for r in listener.sample(targets)
    ]))
listener.close()
"""


class SampledNvml(FakeNvml):
    """The fake, and the smi listener on it."""

    def read(self, *instants: Sequence[dict[str, Any]]) -> list[dict[tuple[str, str], Any]]:
        """Sample for these targets in a process of its own: values by (metric, run or gpu)."""
        done = subprocess.run(
            [sys.executable, "-c", _READ, json.dumps(instants)],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [
            {
                (metric, run_id or gpu): value
                for metric, value, _, run_id, gpu, _ in json.loads(line)
            }
            for line in done.stdout.splitlines()
        ]


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> SampledNvml:
    fake = SampledNvml.in_folder(nvml_library, tmp_path)
    fake.configure(*TWO_GPUS)
    return fake
