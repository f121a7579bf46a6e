"""The observed script, for any Python: ``observed_script.py OBSERVER KIND FOLDER``. No radt needed.

OBSERVER is ``none`` (unobserved, or observed from outside), ``mlflow`` or ``original``: these two
observe from inside the process. KIND is ``idle`` (with three children, until its input ends),
``cpu`` or ``disk``: these print the duration of a fixed piece of work in seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

CHILDREN = 3
CPU_ROUNDS = 18_000_000
DISK_BYTES = 192 << 20
_SLEEP = "import time; time.sleep(3600)"


@contextmanager
def observed(observer: str) -> Iterator[None]:
    """Run the body under an observer that works inside the process."""
    if observer == "none":
        yield
    elif observer == "mlflow":
        import mlflow

        with mlflow.start_run(log_system_metrics=True):
            yield
    else:
        from radt.run import RADTBenchmark

        with RADTBenchmark():
            yield


def idle() -> None:
    """Keep four processes idle until the input ends."""
    children = [subprocess.Popen([sys.executable, "-S", "-c", _SLEEP]) for _ in range(CHILDREN)]
    print("up", flush=True)
    sys.stdin.read()
    for child in children:
        child.kill()
        child.wait()


def burn() -> None:
    """Use one core and nothing else."""
    value = 1
    for _ in range(CPU_ROUNDS):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF


def write(folder: str) -> None:
    """Write a file, one mebibyte at a time, and sync it to disk every 16."""
    block = os.urandom(1 << 20)
    path = os.path.join(folder, f"written-{os.getpid()}")  # noqa: PTH118
    try:
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123
            for number in range(DISK_BYTES // len(block)):
                file.write(block)
                if number % 16 == 15:
                    os.fdatasync(file.fileno())
    finally:
        os.unlink(path)  # noqa: PTH108


def main() -> None:
    observer, kind, folder = sys.argv[1:]
    with observed(observer):
        if kind == "idle":
            idle()
            return
        print("up", flush=True)
        sys.stdin.readline()
        start = time.perf_counter()
        burn() if kind == "cpu" else write(folder)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
