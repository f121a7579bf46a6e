"""``python -m benchmarks``: all benchmarks, one after another, each in its own process."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("import_time", "log_metric", "storage", "listeners", "launch", "loaders")


def main() -> int:
    """Run all benchmarks, or those named on the command line; return 1 if one failed."""
    failed = 0
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"\n== {name}", flush=True)
        failed |= subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], check=False
        ).returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
