"""``.ci/run``: what fails once and then passes is named; nothing else passes by a second run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = f"""\
check:
\t@echo checked
test:
\t@{sys.executable} -m pytest -q -n 2 --dist loadfile
"""
#: Fails in its first run only.
FLAKY = """\
import pathlib, pytest
@pytest.mark.parametrize("name", ["a, b", "c::d"])
def test_flaky(name):
    seen = pathlib.Path(__file__).with_name(f"seen {name}")
    if not seen.exists():
        seen.touch()
        raise AssertionError
"""
PASSING = "def test_passes(): pass\n"
FAILING = "def test_fails(): assert False\n"
CASES = {
    "a pass": ({"test_a": PASSING}, 0, "1 passed in"),
    "flaky ones": (
        {"test_a": PASSING, "test_b": FLAKY},
        0,
        "FLAKY: test_b.py::test_flaky[a, b], test_b.py::test_flaky[c::d]\n3 passed, 0 failed",
    ),
    "a steady failure beside flaky ones": (
        {"test_a": PASSING + FAILING, "test_b": FLAKY},
        1,
        "3 passed, 1 failed",
    ),
    "skipped the second time": (
        {"test_a": FLAKY.replace("    if not", "    if seen.exists(): pytest.skip()\n    if not")},
        1,
        "0 passed, 2 failed",
    ),
    "an error while collecting": (
        {"test_a": "import nowhere", "test_b": FLAKY},
        1,
        "2 failed, 1 error in",
    ),
    "all at once": (
        {"test_a": FLAKY.replace('["a, b", "c::d"]', "range(21)")},
        1,
        "21 failed in",
    ),
    "an error of pytest": ({"conftest": "def pytest_runtestloop(): 1 / 0", "test_a": FLAKY}, 1, ""),
    "a failure before it was ended": (
        {
            "conftest": "import pytest\ndef pytest_runtest_logreport(report):\n"
            "    if report.failed and report.when == 'call': pytest.exit('ended')\n",
            "test_b": FLAKY,
        },
        1,
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_passes_and_what_is_said_last(case: str, tmp_path: Path) -> None:
    modules, code, ending = CASES[case]
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env=kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take a second each time
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ending in done.stdout[-len(ending) - 60 :]
    last = done.stdout.splitlines()[-1]
    assert any(word in last for word in (" passed", " failed", " error")), done.stdout
    assert ("FLAKY" in done.stdout) == ("FLAKY" in ending)
