"""Run the tests; if some fail, run those once more by themselves, to find flaky ones.

    python .ci/tests.py make test

The first run alone decides if it ends in any other way than with failed tests: an interruption, an
error of collection or of pytest says nothing about tests that did not run. The last line is always
a summary: pytest's, or ``N passed, M failed`` for both runs together. Before it, ``FLAKY: …`` names
the tests that failed and then passed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: More failed tests than this are not run again: something is broken, and the time is limited.
MOST_RERUN = 20
_TESTS_FAILED = 1  # pytest's exit code
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_SUMMARY = re.compile(r"^=* *(\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s.*$", re.MULTILINE)
_MAKES_ERROR = re.compile(r"^g?make(?:\[\d+\])?: \*\*\* .* Error (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of pytest ended: its exit code and its summary, "" if it did not come to one."""

    code: int
    summary: str

    def count(self, *kinds: str) -> int:
        """Return how many tests the summary has of these kinds."""
        found = re.findall(rf"(\d+) (?:{'|'.join(kinds)})\b", self.summary)
        return sum(map(int, found))


def run(command: Sequence[str], cache: Path) -> Outcome:
    """Run a command that runs pytest, perhaps by make, and show its output.

    Args:
        command: The command.
        cache: Folder for pytest's cache, in which it notes failed tests.
    """
    # All tests are run whatever fails, and make's errors are in English.
    options = {"PYTEST_ADDOPTS": f"--maxfail=0 -o cache_dir={cache}", "LANGUAGE": "en"}
    output = b""
    with subprocess.Popen(
        command, env=os.environ | options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            output += piece
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    text = _ESCAPE.sub("", output.decode(errors="replace"))
    code = process.returncode
    if code and (errors := _MAKES_ERROR.findall(text)):
        code = int(errors[-1])
    summaries = [match[0] for match in _SUMMARY.finditer(text)]
    return Outcome(code, summaries[-1] if summaries else "")


def failed_tests(cache: Path) -> list[str]:
    """Return the ids of the tests that failed."""
    file = cache / "v" / "cache" / "lastfailed"
    noted: Mapping[str, bool] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return list(noted)


def main(command: Sequence[str]) -> int:
    """Run the command and what fails; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        first = run(command, cache)
        if first.code == 0:
            return 0
        failed = failed_tests(cache)
        # An id without a test's name is of a file that could not be collected.
        if first.code != _TESTS_FAILED or not failed or not all("::" in name for name in failed):
            print("The tests did not run to their end.")
            print(first.summary or "0 passed, 0 failed, 1 error")
            return 1
        if len(failed) > MOST_RERUN:
            print(f"{len(failed)} tests failed; up to {MOST_RERUN} would be run once more.")
            print(first.summary)
            return 1
        print(f"Running again what failed: {', '.join(failed)}", flush=True)
        again = run([sys.executable, "-m", "pytest", *failed], cache)
    # A test that fails and is skipped then has not passed.
    has_passed = again.code == 0 and again.count("passed") == len(failed)
    if has_passed:
        print(f"FLAKY: {', '.join(failed)}")
    passed = first.count("passed") + again.count("passed")
    print(f"{passed} passed, {len(failed) - again.count('passed')} failed")
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
