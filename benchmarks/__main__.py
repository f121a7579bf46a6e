"""``python -m benchmarks``: every benchmark, one after another, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("import_time", "log_metric", "storage", "listeners", "launch")


def main() -> int:
    """Run all, or those named on the command line; 1 if one failed."""
    failed = 0
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"\n== {name}", flush=True)
        failed |= subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], check=False
        ).returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
