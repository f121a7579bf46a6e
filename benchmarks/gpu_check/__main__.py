"""Answer each claim about GPUs with yes, no, or not possible here.

``make gpu-check``, on a machine with an NVIDIA GPU and PyTorch with CUDA; it takes at most ten
minutes. Each check runs in a process of its own with a time limit, so that a failing or hanging one
costs only itself. Whatever checks start or create is removed after each of them, also after Ctrl-C.

Progress goes to stderr, a section for docs/measurements.md to stdout. The exit code is 1 if there
is no GPU to check, 2 if an answer is no, and 130 after Ctrl-C.

With ``--device cpu`` loads and trainings run on the CPU instead, to try the checks with any NVML:
the output then says that it is not a measurement.
"""

from __future__ import annotations

import argparse
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu_check.isolation import become_subreaper, run_check
from benchmarks.gpu_check.model import Answer, Result, Setting
from benchmarks.gpu_check.table import CHECKS
from radt.devices.gpus import Gpus
from radt.home import RUNTIME_VARIABLE

EXIT_NO_GPU, EXIT_NO, EXIT_INTERRUPTED = 1, 2, 130
_NOT_A_MEASUREMENT = "**No measurement:** loads and trainings ran on the CPU.\n"


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=(__doc__ or "").split("\n")[0])
    names = [check.name for check in CHECKS]
    parser.add_argument("--gpu", type=int, default=0, help="NVML's index (0)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (8)")
    parser.add_argument(
        "--interval", type=float, default=0.2, help="seconds between readings (0.2)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="of the work")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these checks")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of all time limits (1)")
    options = parser.parse_args()
    checks = [check for check in CHECKS if check.name in options.only]
    if options.device == "cuda" and (why := _absence()):
        print(f"gpu-check: {why}", file=sys.stderr)
        return EXIT_NO_GPU
    become_subreaper()
    results: dict[str, Result] = {}
    exit_code = 0
    with TemporaryDirectory(prefix="radt-gpu-", ignore_cleanup_errors=True) as folder:
        os.environ[RUNTIME_VARIABLE] = str(Path(folder, "runtime"))
        setting = Setting(options.device, options.gpu, options.seconds, options.interval, folder)
        try:
            for check in checks:
                print(f"gpu-check: {check.name}", file=sys.stderr, flush=True)
                begun_s = time.monotonic()
                result = results[check.name] = run_check(check, setting, options.patience)
                took_s = time.monotonic() - begun_s
                print(f"gpu-check: {result.answer}, {took_s:.0f} s", file=sys.stderr)
        except KeyboardInterrupt:
            exit_code = EXIT_INTERRUPTED
    print("\n".join(_section(options, results)))
    if exit_code == 0 and any(one.answer is Answer.NO for one in results.values()):
        exit_code = EXIT_NO
    return exit_code


def _absence() -> str:
    """Return why nothing can be checked here; empty if a check is possible."""
    gpus = Gpus.read()
    if not gpus.working:
        needs = "It needs an NVIDIA GPU with its driver, and PyTorch with CUDA"
        return f"there is no GPU to check here ({gpus.reason or gpus.failure}). {needs}."
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stdout.strip() != "True":
        why = "PyTorch sees no CUDA" if done.returncode == 0 else "PyTorch cannot be imported"
        return f"there is a GPU, but {why}. Its loads need torch with CUDA."
    return ""


def _section(options: argparse.Namespace, results: Mapping[str, Result]) -> Iterator[str]:
    """Yield the section for docs/measurements.md."""
    gpus = Gpus.read()
    names = ", ".join(gpu.name for gpu in gpus.every) or gpus.reason
    user = pwd.getpwuid(os.getuid()).pw_name
    yield "## Claims about GPUs\n"
    if options.device == "cpu":
        yield _NOT_A_MEASUREMENT
    yield (
        f"`python -m benchmarks.gpu_check`, {datetime.now(UTC).date().isoformat()}, {names}, "
        f"driver {gpus.driver}, as {user}, loads of {options.seconds:g} s, "
        f"a reading every {options.interval * 1000:g} ms.\n"
    )
    yield "| check | claim | answer | evidence |"
    yield "|---|---|---|---|"
    for check in CHECKS:
        if check.name in results:
            result = results[check.name]
            evidence = " ".join(result.evidence.split()).replace("|", r"\|")
            yield f"| {check.name} | {check.claim} | {result.answer} | {evidence} |"
    for result in results.values():
        if result.section:
            yield f"\n{result.section}"


if __name__ == "__main__":
    sys.exit(main())
