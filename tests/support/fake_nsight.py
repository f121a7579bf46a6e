"""Stands in for nsys and ncu, by its file's name: as strict with its options, with their words.

It runs the program, follows what it does through the file ``FAKE_RANGES`` (a line ``push NAME`` for
each range, ``kernel`` for each kernel), writes a report where there is something to report, and
passes on how the program ended. A word ``trouble:…`` among the program's says what goes wrong. Its
calls are in ``FAKE_STATE/calls``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

NAME = Path(sys.argv[0]).name
TROUBLE = next((word[8:] for word in sys.argv if word.startswith("trouble:")), "")
STATE = Path(os.environ["FAKE_STATE"])

_BOOL = "true|false"
NSYS = {
    "--trace": r"(none|cuda|nvtx|osrt|cudnn|cublas|,)+",
    "--cuda-memory-usage": _BOOL,
    "--output": ".+",
    "--force-overwrite": _BOOL,
    "--show-output": _BOOL,
    "--stop-on-exit": _BOOL,
    "--wait": "primary|all",
    "--capture-range": "none|cudaProfilerApi|hotkey|nvtx",
    "--nvtx-capture": ".+",
    "--capture-range-end": r"none|stop|stop-shutdown|repeat(:\d+)?|repeat-shutdown:\d+",
    "--kill": r"none|sigkill|sigterm|\d+",
}
NCU = {
    "--mode": "launch-and-attach|launch|attach",
    "--target-processes": "application-only|all",
    "--export": ".+",
    "--force-overwrite": None,
    "--nvtx": None,
    "--nvtx-include": ".+",
    "--nvtx-push-pop-scope": "thread|process",
    "--launch-count": r"\d+",
    "--port": r"\d+",
    "--hostname": ".+",
}


def nsys_options(words: list[str]) -> dict[str, str]:
    if not words or words.pop(0) != "profile":
        sys.exit("usage: nsys [--version] [--help] <command> [<args>] [application] [<app args>]")
    found: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name not in NSYS or not equals or not re.fullmatch(NSYS[name], value):
            print(f"unrecognised option '{name}'\n\nusage: nsys profile [<args>] [application]")
            sys.exit(1)
        found[name] = value
    return found


def ncu_options(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name = words.pop(0)
        if name not in NCU:
            print(f"==ERROR== unrecognised option '{name}'. Use --help for further details.")
            sys.exit(1)
        form = NCU[name]
        found[name] = "" if form is None else words.pop(0)
        if form is not None and not re.fullmatch(form, found[name]):
            print(f"==ERROR== the argument ('{found[name]}') for option '{name}' is invalid")
            sys.exit(1)
    return found


def captured_by_nsys(options: dict[str, str], done: list[str]) -> list[str]:
    """Suffixes of the reports."""
    if options.get("--capture-range") != "nvtx":
        return [".nsys-rep"]
    # Names of PyTorch's ranges are not registered.
    if os.environ.get("NSYS_NVTX_PROFILER_REGISTER_ONLY") != "0":
        return []
    ranges = done.count(f"push {options['--nvtx-capture']}")
    if options["--capture-range-end"] != "repeat":
        ranges = min(ranges, 1)
    return [f".{number}.nsys-rep" for number in range(1, ranges + 1)]


def captured_by_ncu(options: dict[str, str], done: list[str]) -> list[str]:
    include = options.get("--nvtx-include")
    if include is None:
        return [".ncu-rep"] if "kernel" in done else []
    assert "--nvtx" in options
    inside, kernels = False, 0
    for line in done:
        if line.startswith(("push", "pop")):
            inside = line == f"push {include.removesuffix('/')}" and include.endswith("/")
        kernels += inside and line == "kernel"
    return [".ncu-rep"] if kernels else []


def main() -> int:
    words = sys.argv[1:]
    with (STATE / "calls").open("a", encoding="utf-8") as calls:
        calls.write(json.dumps([NAME, *words]) + "\n")
    options = nsys_options(words) if NAME == "nsys" else ncu_options(words)
    if TROUBLE == "refuses":
        print("==ERROR== Failed to prepare the application for profiling.")
        return 9
    interrupted = []
    # The program is in the same group, and is told by who told us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: interrupted.append(number))
    ranges = STATE / f"ranges-{os.getpid()}"
    ranges.touch()
    program = subprocess.Popen(words, env={**os.environ, "FAKE_RANGES": str(ranges)})
    if TROUBLE == "early":
        return 0
    if TROUBLE == "shutdown":
        shut_down(ranges)
    code = program.wait()
    code = code if code >= 0 else 128 - code
    if code and NAME == "ncu":
        print(f"==ERROR== The application returned an error code ({code}).")
    if TROUBLE == "slow":
        (STATE / "finalising").touch()
        with open(STATE / "go", encoding="ascii") as go:
            go.read()
    if TROUBLE == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if TROUBLE == "permission":
        print(
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
            "Performance Counters on the target device 0. For instructions on enabling "
            "permissions and to get more information see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
        return code
    if options.get("--mode") == "launch":
        return code
    report(options, ranges.read_text(encoding="utf-8").splitlines(), f"{code} {interrupted}")
    return code


def shut_down(ranges: Path) -> None:
    """End the program as soon as it has launched a kernel."""
    while "kernel" not in ranges.read_text(encoding="utf-8"):
        time.sleep(0.01)
    print('==ERROR== Failed to profile "gemm" in process 1')
    print("==PROF== Trying to shutdown target application", flush=True)
    pid = ranges.read_text(encoding="utf-8").split("pid ")[1].split("\n")[0]
    os.kill(int(pid), signal.SIGKILL)


def report(options: dict[str, str], done: list[str], content: str) -> None:
    suffixes = (captured_by_nsys if NAME == "nsys" else captured_by_ncu)(options, done)
    output = options["--output" if NAME == "nsys" else "--export"]
    assert "%" not in output.replace("%%", ""), "it would be filled in"
    for suffix in suffixes:
        Path(output.replace("%%", "%") + suffix).write_text(content, encoding="utf-8")
    if NAME == "ncu" and not suffixes:
        print("==WARNING== No kernels were profiled.")


sys.exit(main())
