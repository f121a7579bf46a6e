"""A fake libnvidia-ml.so.1 and a process that samples with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).with_name("fake_nvml.c")

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


@dataclass(frozen=True)
class FakeNvml:
    """The library's folder, its configuration and its log."""

    library: Path
    config: Path
    log: Path

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML": str(self.config),
            "FAKE_NVML_LOG": str(self.log),
        }

    def configure(self, *lines: str) -> None:
        temporary = self.config.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.config)

    def calls(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

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


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)],
        check=True,
    )
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    fake = FakeNvml(nvml_library, tmp_path / "nvml.conf", tmp_path / "nvml.log")
    fake.configure(
        "count 2",
        "gpu 0 55 80000 500 1000 250500 7000 61 1410 1593",
        "gpu 1 0 80000 500 2000 60000 9000 35 210 405",
    )
    return fake
