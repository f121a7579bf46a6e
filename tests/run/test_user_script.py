"""Which script a run is named after, and whose commit it has: that of the user, never a launcher's.

Every case is a real process in the user's repository. The installed packages lie in a repository of
their own, as pyenv's and a clone's do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.run.conftest import Alone
from tests.support.git import git

#: Says what a run that began here would be called.
SAYS = """\
from radt.run.user_script import user_script

def fit(_=None):
    script = user_script()
    print([script.name, script.file, str(script.folder), script.run_name], flush=True)
"""
FILES = {
    "says.py": SAYS,
    "train.py": SAYS + "if __name__ == '__main__': fit()\n",
    "package/__init__.py": "",
    "package/__main__.py": "from package.train import fit; fit()\n",
    "package/train.py": SAYS + "if __name__ == '__main__': fit()\n",
    "tests/test_fit.py": "from package.train import fit\ndef test_that_it_learns(): fit()\n",
    "tests/conftest.py": "import pytest\nfrom package.train import fit\n"
    "@pytest.fixture\ndef fitted(): fit()\n",
    "tests/test_fixture.py": "def test_the_fitted(fitted): pass\n",
    "loky.py": SAYS + "from joblib import Parallel, delayed\n"
    "if __name__ == '__main__': Parallel(n_jobs=2)([delayed(fit)(1)])\n",
    "spawned.py": SAYS + "import multiprocessing as mp\n"
    "if __name__ == '__main__':\n"
    "    process = mp.get_context('spawn').Process(target=fit)\n"
    "    process.start(); process.join()\n",
    "bin/own.py": SAYS + "fit()\n",
}
INSTALLED = {
    "site-packages/installed/__init__.py": "",
    "site-packages/installed/train.py": SAYS + "if __name__ == '__main__': fit()\n",
    # As submitit's: the job is unpickled and called in a process of the launcher's.
    "site-packages/launcher/_submit.py": "import importlib, sys\n"
    "def work(place): getattr(importlib.import_module(place), 'fit')()\n"
    "work(sys.argv[1])\n",
    "home/.local/bin/train-model": "from package.train import fit\nfit()\n",
    "home/.local/bin/train-installed": "from installed.train import fit\nfit()\n",
}


@dataclass
class Place:
    """The user's repository, and the folder of what is installed."""

    user: Path
    installed: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = f"{self.user}:{self.installed / 'site-packages'}"
        env = dict(os.environ, PYTHONPATH=paths, HOME=str(self.installed / "home"))
        env.pop("PYTEST_CURRENT_TEST", None)
        command = [argument.format(installed=self.installed) for argument in arguments]
        return subprocess.run(
            [sys.executable, *command], cwd=self.user, env=env, capture_output=True, text=True
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path / "user's repository", tmp_path / "clone")
    for folder, files in ((made.user, FILES), (made.installed, INSTALLED)):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return made


@pytest.mark.quick_variants(4)
@pytest.mark.parametrize(
    ("command", "name", "file", "folder", "run_name"),
    [
        ("train.py --lr 0.1", "train", "train.py", "", "train lr=0.1"),
        ("bin/own.py", "own", "own.py", "bin", "own"),
        ("-m package.train --lr 0.1", "train", "train.py", "package", "train lr=0.1"),
        ("-m package", "package", "package", "package", "package"),
        ("-m cProfile -o /dev/null train.py --lr 1", "train", "train.py", "", "train lr=1"),
        ("-m trace -t --ignore-dir=/ train.py", "train", "train.py", "", "train"),
        ("-m installed.train --lr 1", "train", "train.py", "", "train lr=1"),
        ("-m launcher._submit train", "train", "train.py", "", "train fit"),
        (
            "{installed}/home/.local/bin/train-model --lr 1",
            *("train-model", "train-model", "package", "train-model lr=1"),
        ),
        (
            "{installed}/home/.local/bin/train-installed --lr 1",
            *("train-installed", "train-installed", "", "train-installed lr=1"),
        ),
        (
            "-m pytest -qs tests/test_fit.py",
            *("test_fit", "test_fit.py", "tests", "test_fit test_that_it_learns"),
        ),
        (
            "-m pytest -qs tests/test_fixture.py",
            *("test_fixture", "test_fixture.py", "tests", "test_fixture test_the_fitted"),
        ),
        ("loky.py --lr 1", "loky", "loky.py", "", "loky lr=1"),
        ("spawned.py", "spawned", "spawned.py", "", "spawned"),
        ("-c __import__('says').fit()", "interactive", "", "", "interactive"),
    ],
)
def test_the_script_is_the_users(
    place: Place, command: str, name: str, file: str, folder: str, run_name: str
) -> None:
    done = place.run(*command.split())
    line = next((line for line in done.stdout.splitlines() if line.startswith("['")), "")
    assert line == str([name, file, str(place.user / folder).rstrip("/"), run_name]), (
        done.stdout + done.stderr
    )


def test_a_run_below_a_launcher_has_the_users_name_and_commit(alone: Alone) -> None:
    git(alone.folder, "init", "-q")
    source = "import radt\nwith radt.Run() as run: run.log_metric('loss', 1)\n"
    (alone.folder / "train.py").write_text(source)
    git(alone.folder, "add", "train.py")
    git(alone.folder, "commit", "-qm", "first")
    subprocess.run(
        [sys.executable, "-m", "cProfile", "-o", os.devnull, "train.py", "--lr", "0.1"],
        cwd=alone.folder,
        env=alone.env,
        check=True,
    )
    (run,) = alone.reader.runs()
    assert (run.experiment, run.name) == ("train", "train lr=0.1 #1")
    params, tags = alone.reader.params(run.run_id), alone.reader.tags(run.run_id)
    assert (params["File"], params["Params"], params["lr"]) == ("train.py", "--lr 0.1", "0.1")
    assert tags["radt.git.commit"] == git(alone.folder, "rev-parse", "HEAD")
