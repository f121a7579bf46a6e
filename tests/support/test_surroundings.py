"""What a developer's machine has does not reach tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import ROOT

#: What a process that tests start finds once the machine is hidden.
_LOOK = """
import ctypes, json, os, shutil, subprocess, sys
from pathlib import Path
from tests.support.surroundings import hide_machine
hide_machine(Path(sys.argv[1]))
looks = '''
import ctypes, json, os, shutil, sys, time
def is_loaded(name):
    try: return bool(ctypes.CDLL(name))
    except OSError: return False
old = os.umask(0)
print(json.dumps({
    "variables": dict(os.environ),
    "programs": {name: shutil.which(name) for name in sys.argv[1:]},
    "drivers": [name for name in ("libnvidia-ml.so.1", "libcuda.so.1") if is_loaded(name)],
    "home": os.listdir(os.path.expanduser("~")),
    "zone": time.tzname[0], "umask": old,
}))
'''
subprocess.run([sys.executable, "-c", looks, *sys.argv[2:]], check=True)
"""
_HOSTILE = {
    "CUDA_VISIBLE_DEVICES": "3",
    "DOCKER_HOST": "tcp://192.0.2.1",
    "GIT_DIR": "/nowhere",
    "HOME": "/nowhere",
    "LC_ALL": "de_DE.UTF-8",
    "MLFLOW_TRACKING_URI": "http://192.0.2.1",
    "PGHOST": "192.0.2.1",
    "RADT_RUN_ID": "f" * 32,
    "SLURM_JOB_ID": "17",
    "TZ": "Asia/Kathmandu",
    "XDG_CACHE_HOME": "/nowhere",
    "https_proxy": "http://192.0.2.1",
}


def test_processes_of_tests_see_no_more_than_every_machine_has(tmp_path: Path) -> None:
    machine = tmp_path / "bin"
    machine.mkdir()
    for name in ("docker", "conda", "nvidia-smi", "git", "made-here"):
        (machine / name).write_text("#!/bin/sh\nexit 1\n")
        (machine / name).chmod(0o755)
    driver = tmp_path / "driver"
    driver.mkdir()
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (driver / name).symlink_to(_any_library())
    path = [str(machine), "relative", str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        [
            *("sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "-c", _LOOK),
            *(str(tmp_path), "docker", "conda", "nvidia-smi", "uv", "git", "made-here"),
        ],
        cwd=ROOT,
        env=_HOSTILE | {"PATH": os.pathsep.join(path), "LD_LIBRARY_PATH": str(driver)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(done.stdout)
    variables = found["variables"]
    assert not {name for name in _HOSTILE if name not in ("HOME", "TZ")} & set(variables)
    assert variables["LANG"] == "C.UTF-8"
    assert found["zone"] == "UTC"
    assert found["home"] == []
    assert found["drivers"] == []
    assert found["umask"] == 0o022
    programs = found["programs"]
    assert [programs[name] for name in ("docker", "conda", "nvidia-smi", "uv")] == [None] * 4
    for name in ("git", "made-here"):  # what shares a folder with one of them is still there
        assert programs[name] is not None
        assert Path(programs[name]).resolve() == machine / name


@pytest.mark.parametrize("name", ["docker", "conda", "nvidia-smi", "dcgmi", "nsys", "uv"])
def test_tests_find_none_of_what_radt_uses_where_it_is_installed(name: str) -> None:
    assert shutil.which(name) is None


def _any_library() -> Path:
    """A library that can be loaded: this process has it."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if "/libc.so" in line)
