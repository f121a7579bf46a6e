"""The program of the rows in `benchmarks.gpu_check.sharing`: a matrix product in epochs.

``python -m benchmarks.gpu_check.client cuda|cpu FOLDER WORK [WAIT]`` does this share of its usual
work and writes into the folder what the run has as its device, how fast it was and, under MPS,
whether it is in the client list of its daemon. After each burst of steps, it waits for so many
seconds, as trainings wait for data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import radt
from benchmarks.gpu_check.loads import prepared
from radt.devices.visible import VISIBLE_VARIABLE

_EPOCHS = 4
#: Of an epoch, which takes about a second on an H100.
_STEPS = {"cuda": 600, "cpu": 150}
#: Steps between waits, which take about 50 ms on an H100.
_BURST = 30
_CONTROL = "nvidia-cuda-mps-control"
_PIPES_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_PERCENTAGE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True)
class Facts:
    """A run as seen from inside its own process.

    ``device`` is what CUDA calls its device, or what it was given where there is no CUDA; ``sms``
    and ``memory_bytes`` are CUDA's. Times are monotonic. ``is_client`` is its daemon's answer, None
    without one.
    """

    device: str
    begun_s: float
    ended_s: float
    flop_per_s: float
    percentage: str | None
    is_client: bool | None
    sms: int | None = None
    memory_bytes: int | None = None


def main(where: str, folder: str, work: str, wait_s: str = "0") -> None:
    """Work, then write the facts."""
    step, finish, flop, _ = prepared("product", where)
    steps = max(1, round(_STEPS[where] * float(work)))
    with radt.Run() as run:
        begun_s = time.monotonic()
        for _ in run.epochs(_EPOCHS):
            for number in range(1, steps + 1):
                step()
                if number % _BURST == 0 and float(wait_s):
                    finish()
                    time.sleep(float(wait_s))
            finish()
        ended_s = time.monotonic()
    flop_per_s = _EPOCHS * steps * flop / (ended_s - begun_s)
    device, sms, memory_bytes = os.environ.get(VISIBLE_VARIABLE, ""), None, None
    if where == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(0)
        device = str(properties.uuid)
        sms, memory_bytes = properties.multi_processor_count, properties.total_memory
    percentage = os.environ.get(_PERCENTAGE_VARIABLE)
    times = (begun_s, ended_s, flop_per_s)
    facts = Facts(device, *times, percentage, _is_client(), sms, memory_bytes)
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(asdict(facts)))


def _is_client() -> bool | None:
    """Ask the daemon of this run for the clients of its servers."""
    if not Path(os.environ.get(_PIPES_VARIABLE, "/none")).is_dir():
        return None
    servers = _asked("get_server_list")
    clients = [pid for server in servers for pid in _asked(f"get_client_list {server}")]
    return os.getpid() in clients


def _asked(command: str) -> list[int]:
    done = subprocess.run([_CONTROL], input=command, stdout=subprocess.PIPE, text=True, check=False)
    return [int(line) for line in done.stdout.split() if line.isdigit()]


if __name__ == "__main__":
    main(*sys.argv[1:])
