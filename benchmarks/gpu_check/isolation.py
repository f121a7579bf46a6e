"""Run each check in a process of its own, with a time limit, and remove whatever it left.

The process that runs the checks is a child subreaper: daemons that checks start become its
children, so it finds all of them. What radt creates besides processes (MIG instances, folders of
MPS) is in radt's own ledger, in a runtime folder of these checks alone.
``python -m benchmarks.gpu_check.isolation FUNCTION ANSWER SETTING`` is the process of a check.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name

from benchmarks.gpu_check.model import Answer, Check, NotPossibleError, Result, Setting
from radt.collocation.ledger import CreatedLedger
from radt.procfs import all_pids, process_stat

_ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
#: radt ends its runs and removes instances and daemons within this time after Ctrl-C.
_GRACE_S = 15.0
_CLEAN_S = 60.0
_POLL_S = 0.05
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def become_subreaper() -> None:
    """Inherit the orphans of all processes below this one (prctl(2)); end alike on each signal."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)


def run_check(check: Check, setting: Setting, patience: float) -> Result:
    """Run a check within its limit, times ``patience``; nothing it started is left afterwards.

    Args:
        check: The check.
        setting: Its setting.
        patience: Factor of all time limits, for slow machines.
    """
    answer, log = (Path(setting.folder, f"{check.name}.{kind}") for kind in ("json", "log"))
    limit_s = check.limit_s * patience
    process = None
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    check.function,
                    answer,
                    json.dumps(asdict(setting)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=_ROOT,
                start_new_session=True,
            )
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        result = Result(Answer.NO, f"it did not end within {limit_s:g} s")
    else:
        result = _read(answer, process.returncode)
    finally:
        with _uninterrupted():
            left = _end_processes(process, patience) + _remove_created(patience)
    if result.answer is Answer.NO and (text := log.read_text(errors="replace").strip()):
        print(text, file=sys.stderr)
    return result if not left else Result.of(result.evidence, left, result.section)


def _read(answer: Path, exit_code: int) -> Result:
    try:
        fields = json.loads(answer.read_text())
    except FileNotFoundError:
        return Result(Answer.NO, f"its process ended with exit code {exit_code}")
    return Result(Answer(fields.pop("answer")), **fields)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back; those that came meanwhile arrive at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_processes(process: subprocess.Popen[bytes] | None, patience: float) -> list[str]:
    """End a check as Ctrl-C does, then all that is below this process; return what did not end."""
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S * patience)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _reap_all(_GRACE_S * patience / 3):
            return []
    return [f"process {pid} did not end" for pid in _descendants()]


def _descendants() -> list[int]:
    parents = {pid: stat.parent for pid in all_pids() if (stat := process_stat(pid)) is not None}
    found = [os.getpid()]
    for pid in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _reap_all(timeout_s: float) -> bool:
    """Wait for all children; a subreaper without children has no descendants either."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_POLL_S)
        except ChildProcessError:
            return True
    return False


def _remove_created(patience: float) -> list[str]:
    """Remove what radt's ledger has; return what is left."""
    if CreatedLedger().entries():
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-m", "radt", "doctor", "--clean"],
                stdout=sys.stderr,
                timeout=_CLEAN_S * patience,
                check=False,
            )
    return [f"{entry.thing} is left" for entry in CreatedLedger().entries()]


def main(function: str, answer: str, setting: str) -> None:
    """Run a check in this process and write its result."""
    try:
        result: Result = resolve_name(function)(Setting(**json.loads(setting)))
    except NotPossibleError as error:
        result = Result(Answer.NOT_POSSIBLE, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        traceback.print_exc()
        result = Result(Answer.NO, f"{type(error).__name__}: {error}")
    unfinished = Path(f"{answer}.new")
    unfinished.write_text(json.dumps(asdict(result)))
    unfinished.replace(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
