"""What is observed, in any Python: ``observed_script.py OBSERVER KIND FOLDER``. No radt needed.

OBSERVER is ``none`` (if anybody observes, it is from outside), ``mlflow`` or ``original``: these
two observe from inside the process. KIND is ``idle`` (with three children, until its input ends),
``cpu`` or ``disk``: it prints how many seconds a fixed piece of work took.
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
    """The block of whoever observes from inside."""
    if observer == "none":
        yield
    elif observer == "mlflow":
        import mlflow

        with mlflow.start_run(log_system_metrics=True):
            yield
    else:
        from radt.run.benchmark import RADTBenchmark

        with RADTBenchmark():
            yield


def idle() -> None:
    """Four processes that do nothing until the input ends."""
    children = [subprocess.Popen([sys.executable, "-S", "-c", _SLEEP]) for _ in range(CHILDREN)]
    print("up", flush=True)
    sys.stdin.read()
    for child in children:
        child.kill()
        child.wait()


def burn() -> None:
    """One core, nothing else."""
    value = 1
    for _ in range(CPU_ROUNDS):
        value = value * 1103515245 + 12345 & 0x7FFFFFFF


def write(folder: str) -> None:
    """A file, a mebibyte at a time, brought to the disk every 16."""
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
