"""A process that samples with a fake libnvidia-ml.so.1, on a clock that the test sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml import TWO_GPUS, FakeNvml, nvml_library

__all__ = ["nvml_library"]

# Serves one command a line: what to set up, whom to sample for, or that it is over.
_WORKER = """
import json, os, sys, time, traceback
from pathlib import Path
from radt.listeners.api import Occurrence, Target
from radt.listeners.smi import SmiListener

def now_ns():
    return round(float(Path(os.environ["FAKE_NVML_CLOCK"]).read_text()) * 1e9)

def told(one):
    if isinstance(one, Occurrence):
        return {"name": one.name, "detail": one.detail, "run_id": one.run_id, "at_ns": one.at_ns}
    return {
        "metric": one.metric, "value": one.value, "entity": one.entity, "run_id": one.run_id,
        "gpu": one.gpu, "method": one.method, "at_ns": one.at_ns,
        "is_reason": isinstance(one.value, str),
    }

listener = None
for line in sys.stdin:
    command = json.loads(line)
    answer = []
    try:
        if "open" in command:
            os.environ.update(command["open"])
            listener = SmiListener(now_ns)
            listener.open()
        elif "runs" in command:
            targets = [Target(r, tuple(g), tuple(p)) for r, g, p in command["runs"]]
            answer = [told(one) for one in getattr(listener, command["read"])(targets)]
        else:
            listener.close()
    except BaseException as error:
        answer = {"error": traceback.format_exc(), "type": type(error).__name__}
    print(json.dumps(answer), flush=True)
"""


class Worker:
    """The process."""

    def __init__(self, library: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            env=os.environ | {"LD_LIBRARY_PATH": str(library.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@dataclass(frozen=True)
class Run:
    """A run as the listener gets to know it."""

    run_id: str = "a"
    gpus: Sequence[str] = ("0",)
    pids: Sequence[int] = ()


@dataclass
class Sampled:
    """What one call of `sample` gave."""

    readings: list[dict[str, Any]]
    occurrences: list[dict[str, Any]]

    def of(self, metric: str, who: str) -> list[dict[str, Any]]:
        """Readings of a metric for a run, or for a GPU by the name given."""
        return [
            one
            for one in self.readings
            if one["metric"] == metric and (one["run_id"] or one["gpu"]) == who
        ]

    def one(self, metric: str, who: str = "0") -> dict[str, Any]:
        (found,) = self.of(metric, who)
        return found

    def __getitem__(self, key: tuple[str, str]) -> float | str:
        return self.one(*key)["value"]

    def __contains__(self, key: tuple[str, str]) -> bool:
        return bool(self.of(*key))

    def names(self, run_id: str = "a") -> list[str]:
        """Of occurrences."""
        return [one["name"] for one in self.occurrences if one["run_id"] == run_id]


@dataclass
class Sampling:
    """A listener that is open."""

    worker: Worker
    clock: Path
    now_s: float = 0.0
    runs: Sequence[Run] = field(default_factory=lambda: [Run()])

    def sample(self, *runs: Run, after_s: float = 1.0) -> Sampled:
        """Time passes, then the runs given (else those of the last time) are sampled."""
        return _sampled(self.attempt(*runs, after_s=after_s))

    def counters(self, *runs: Run, after_s: float = 1.0) -> Sampled:
        """Time passes, then the counters are read, as these runs begin or end."""
        return _sampled(self._ask("counters", runs, after_s))

    def attempt(self, *runs: Run, after_s: float = 1.0) -> Any:
        """As `sample`; what it raises is told."""
        self.runs = runs or self.runs
        return self._ask("sample", self.runs, after_s)

    def _ask(self, read: str, runs: Sequence[Run], after_s: float) -> Any:
        self.now_s += after_s
        self.clock.write_text(f"{self.now_s:.9f}")
        return self.worker.ask(read=read, runs=[(run.run_id, run.gpus, run.pids) for run in runs])


def _sampled(answer: Any) -> Sampled:
    assert isinstance(answer, list), answer["error"]
    return Sampled(
        [one for one in answer if "metric" in one], [one for one in answer if "name" in one]
    )


class SampledNvml(FakeNvml):
    """The fake, and the smi listener on it."""

    worker: Worker
    folder: Path
    _open = False

    def open(self, *lines: str) -> Sampling:
        """The listener is opened at second 0 of the hardware with these lines."""
        if lines:
            self.configure(*lines)
        clock = self.folder / "clock"
        clock.write_text("0")
        answer = self.worker.ask(
            open={
                **self.variables(),
                "FAKE_NVML_CLOCK": str(clock),
                "RADT_RUNTIME_DIR": str(self.folder / "runtime"),
            }
        )
        assert isinstance(answer, list), answer["error"]
        self._open = True
        return Sampling(self.worker, clock)

    def close(self) -> None:
        if self._open:
            self._open = False
            answer = self.worker.ask(close=True)
            assert isinstance(answer, list), answer["error"]

    def count(self, function: str) -> int:
        return len(self.calls(function))


@pytest.fixture(scope="session")
def smi_worker(nvml_library: Path) -> Iterator[Worker]:
    worker = Worker(nvml_library)
    yield worker
    worker.end()


@pytest.fixture
def nvml(nvml_library: Path, smi_worker: Worker, tmp_path: Path) -> Iterator[SampledNvml]:
    """Two plain GPUs."""
    fake = SampledNvml.in_folder(nvml_library, tmp_path)
    fake.worker, fake.folder = smi_worker, tmp_path
    fake.configure(*TWO_GPUS)
    yield fake
    fake.close()
