"""radt can be used where it is not installed, and there is nothing else to install for it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from radt.environments.cache import HOOK, importable_folder, outside_links, package_folder
from radt.errors import EnvironmentBuildError
from radt.home import RunDir
from radt.journal.reader import JournalReader
from tests.support.journal import Found

SCRIPT = """
import importlib.util
import sys
from importlib.metadata import entry_points
import radt
with radt.Run(params={"batch": 32}) as run:
    run.log_params({"lr": 0.1})
    run.set_tag("stage", "try")
    for epoch in run.epochs(2):
        with run.span("validate"):
            run.log_metric("loss", 1.0 / epoch, epoch)
    run.log_text("done", "note.txt")
    run.log_metrics({"top1": 0.5})
(follower,) = entry_points(group="mlflow.default_experiment_provider")
assert follower.load().__module__ == "radt.mlflow_plugin"
assert not importlib.util.find_spec("numpy") and not importlib.util.find_spec("psutil")
print(radt.__file__)
"""


def test_a_run_is_logged_from_an_environment_without_packages(tmp_path: Path) -> None:
    """Also where the folder that is on the path has a name with a space in it."""
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True, with_pip=False)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    shim = importable_folder(tmp_path / "the cache")
    RunDir(tmp_path / "run").create()
    done = subprocess.run(
        [bare / "bin" / "python", script],
        env={
            "PYTHONPATH": str(shim),
            "RADT_RUN_ID": "r1",
            "RADT_RUN_DIR": str(tmp_path / "run"),
            "RADT_HOME": str(tmp_path / "home"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(shim / "radt" / "__init__.py")
    found = Found(JournalReader(tmp_path / "run" / "journal", {}))
    found.read(final=True)
    assert found.values("loss") == [1.0, 0.5]
    assert found.values("top1") == [0.5]
    assert (tmp_path / "run" / "artifacts" / "note.txt").read_text() == "done"


def test_nothing_but_radt_can_be_imported_from_the_folder(tmp_path: Path) -> None:
    folder = importable_folder(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"radt", HOOK}
    assert (folder / "radt").resolve() == package_folder()
    assert importable_folder(tmp_path) == folder


def test_a_package_that_was_moved_is_linked_again(tmp_path: Path) -> None:
    folder = importable_folder(tmp_path)
    (folder / "radt").unlink()
    (folder / "radt").symlink_to("/nowhere")
    importable_folder(tmp_path)
    assert (folder / "radt").resolve() == package_folder()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentBuildError, match="file"):
        importable_folder(tmp_path / "file")


def test_links_out_of_the_package_are_those_of_an_editable_install(tmp_path: Path) -> None:
    package = tmp_path / "radt"
    (package / "store").mkdir(parents=True)
    (tmp_path / "listeners").mkdir()
    (package / "listeners").symlink_to("../listeners")
    (package / "alias").symlink_to("store")
    assert outside_links(package) == {"listeners": tmp_path / "listeners"}


def test_a_package_as_wheels_lay_it_out_is_importable_in_the_same_way(tmp_path: Path) -> None:
    """In a wheel the parts are folders of the package, not links."""
    installed = tmp_path / "site-packages"
    subprocess.run(
        [sys.executable, "-c", INSTALL, str(package_folder()), str(installed)], check=True
    )
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c", LOOK),
            *(str(installed), str(tmp_path / "cache")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str((installed / "radt").resolve()), "{}"]


INSTALL = """
import shutil, sys
shutil.copytree(sys.argv[1], sys.argv[2] + "/radt", ignore=shutil.ignore_patterns("__pycache__"))
"""
LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from radt.environments.cache import importable_folder, outside_links, package_folder
folder = importable_folder(Path(sys.argv[2]))
print((folder / "radt/listeners/api.py").resolve().parents[1], outside_links(package_folder()))
"""
