"""A script that changes its working folder keeps one data folder, where it was started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.bench import wait_until

pytestmark = pytest.mark.shared_collector

LOG = "import radt\nwith radt.Run(listeners='none') as run: run.log_metric('x', 1)\n"
#: Of Hydra, what says that a job runs and where its program was started. The real one has been
#: tried by hand: hydra-core 1.3.2 needs an older OmegaConf.
HYDRA = """\
from types import SimpleNamespace as _Namespace
class HydraConfig:
    config = None
    @classmethod
    def get(cls):
        if cls.config is None: raise ValueError("HydraConfig was not set")
        return cls.config
def run_job(number, start, job):
    import os
    os.makedirs(f"{start}/multirun/{number}")
    os.chdir(f"{start}/multirun/{number}")
    HydraConfig.config = _Namespace(runtime=_Namespace(cwd=start))
    job()
    os.chdir(start)
    HydraConfig.config = None
"""
JOBS = (
    "import os\nfrom hydra.core.hydra_config import run_job\nstart = os.getcwd()\n"
    f"def job():\n{''.join(f'    {line}{chr(10)}' for line in LOG.splitlines())}"
    "for number in range(3): run_job(number, start, job)\n"
)


def _start(alone: Alone, source: str, *words: str, **env: str) -> str:
    """Run a script as a shell in the project's folder would; return standard error."""
    (alone.folder / "src").mkdir(exist_ok=True)
    (alone.folder / "src" / "train.py").write_text(source)
    for name in ("RADT_HOME", "RADT_QUIET"):
        alone.env.pop(name, None)
    done = subprocess.run(
        [sys.executable, *(words or ("src/train.py",))],
        cwd=alone.folder,
        env=alone.env | {"PWD": str(alone.folder)} | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def _stores(alone: Alone) -> list[Path]:
    """The folders that have a store, once a collector has made one."""
    wait_until(lambda: list(alone.folder.parent.rglob("radt.db")), "a store")
    return [path.parent for path in alone.folder.parent.rglob("radt.db")]


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("home", [None, "mine"])
@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
def test_jobs_of_hydra_have_one_store(alone: Alone, home: str | None, as_module: bool) -> None:
    package = alone.folder / "hydra" / "core"
    package.mkdir(parents=True)
    (package / "hydra_config.py").write_text(HYDRA)
    words = ("-m", "src.train") if as_module else (str(alone.folder / "src" / "train.py"),)
    env = {"PYTHONPATH": str(alone.folder)} | ({} if home is None else {"RADT_HOME": home})
    err = _start(alone, JOBS, *words, **env)
    data = alone.folder / (home or "radt-data")
    assert _stores(alone) == [data]
    alone.env["RADT_HOME"] = str(data)
    wait_until(lambda: len(alone.reader.runs()) == 3, "three runs")
    assert err.count(f" is recorded in {data}\n") == 3  # not relative to the folder of a job
    assert err.count(f"; see radt dashboard --home {shlex.quote(str(data))}\n") == 3


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("script", ["src/train.py", "./src/train.py", "src/../src/train.py"])
def test_a_script_that_moves_before_it_imports_radt(alone: Alone, script: str) -> None:
    """Also one whose project has settings."""
    (alone.folder / "radt.toml").write_text("home = 'kept'\n")
    (alone.folder / "elsewhere").mkdir()
    err = _start(alone, f"import os\nos.chdir('elsewhere')\n{LOG}", script)
    assert _stores(alone) == [alone.folder / "kept"]
    assert f" is recorded in {alone.folder / 'kept'}\n" in err


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("pwd", ["start", "stale", "none"])
def test_where_the_start_is_not_known_the_current_folder_counts(alone: Alone, pwd: str) -> None:
    """A notebook's ``%cd``; or a variable PWD of who started it, which is another folder."""
    (alone.folder / "elsewhere").mkdir()
    env = {"PWD": {"start": str(alone.folder), "stale": "/", "none": ""}[pwd]}
    err = _start(alone, "", "-c", f"import os\nos.chdir('elsewhere')\n{LOG}", **env)
    data = alone.folder / "elsewhere" / "radt-data"
    assert _stores(alone) == [data]
    if pwd == "start":
        assert f" is recorded in {data}\n" in err


def test_a_script_that_stays_has_short_paths(alone: Alone) -> None:
    err = _start(alone, LOG)
    assert _stores(alone) == [alone.folder / "radt-data"]
    assert " is recorded in radt-data\n" in err
    assert err.endswith("; see radt dashboard\n")
    assert os.sep not in err.partition("; see")[2]


def test_an_installed_command_is_no_script(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as pytest: tests that change the folder have their data there."""
    monkeypatch.chdir(alone.folder)
    command = Path(sys.executable).with_name("radt-test-command")
    (alone.folder / "elsewhere").mkdir()
    command.write_text(f"import os\nos.chdir('elsewhere')\n{LOG}")
    try:
        relative = os.path.relpath(command, alone.folder)
        _start(alone, "", relative)
    finally:
        command.unlink()
    assert _stores(alone) == [alone.folder / "elsewhere" / "radt-data"]
