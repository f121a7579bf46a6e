"""The open submission of a file is found wherever it was made from, and nothing runs twice."""

from __future__ import annotations

import io
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from radt.cluster.executor import SlurmExecutor
from radt.cluster.opened import (
    close,
    mark_open,
    open_submission,
    open_submissions,
    refuse_open_submission,
)
from radt.cluster.settings import ClusterSettings
from radt.cluster.spool import Spool
from radt.errors import ClusterError, UsageError
from radt.home import Home
from radt.runner.options import StartOptions
from radt.runner.start import start
from tests.cluster.kit import make_spool
from tests.support.simulated import SimulatedEngine


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """An open submission of the data folder ``mine``."""
    made = make_spool(tmp_path / "study folder", [["one"], ["two"]])
    home = str(tmp_path / "mine")
    submission = replace(made.submission, home=home, submission_id="20261125-120000-beef")
    spool = Spool.create(Path(home) / "submissions", submission, made.experiment_csv.read_bytes())
    mark_open(spool)
    return spool


@pytest.fixture
def file(spool: Spool) -> Path:
    return Path(spool.submission.file)


def test_it_is_found_until_it_is_closed(spool: Spool, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(file)
    for name in (file, link):
        found = open_submission(name)
        assert found is not None and found.path == spool.path
    with pytest.raises(UsageError, match=r"was submitted to slurm, .*beef") as caught:
        refuse_open_submission(file)
    assert f"radt '{file}' --on slurm" in str(caught.value.remedy)
    before = set(file.parent.iterdir())
    close(spool)
    assert open_submission(file) is None
    refuse_open_submission(file)
    assert len(before - set(file.parent.iterdir())) == 1  # nothing is left beside the file


def test_one_whose_submitter_was_killed_before_it_marked_the_file_is_none(
    spool: Spool, file: Path
) -> None:
    home = Home(Path(spool.submission.home))
    submission = replace(spool.submission, submission_id="20261125-120000-dead")
    never = Spool.create(spool.path.parent, submission, b"")
    assert [found.path for found in open_submissions(home)] == [spool.path]
    file.rename(file.with_name("moved"))
    never.intend(0, [0])  # the engine may have been asked: it is one, wherever its file is
    assert never.path in [found.path for found in open_submissions(home)]


def test_another_data_folder_does_not_submit_it_again(
    spool: Spool, file: Path, tmp_path: Path
) -> None:
    (file.parent / "train.py").touch()
    rows = "one,RUNNING: gpu-07,train.py\ntwo,QUEUED: 7_1 Resources,train.py\n"
    file.write_text(f"Workload,Status,File\n{rows}")
    engine, theirs = SimulatedEngine(), tmp_path / "theirs"
    with pytest.raises(UsageError) as caught:
        start(
            file,
            StartOptions(home=Home(theirs)),
            SlurmExecutor("slurm", ClusterSettings(), engine),
            console=Console(file=io.StringIO()),
        )
    assert str(spool.path) in caught.value.message
    assert f"--on slurm --home {tmp_path / 'mine'}" in str(caught.value.remedy)
    assert engine.questions["submit"] == 0
    assert not theirs.exists()
    assert open_submission(file, Home(tmp_path / "mine")) is not None


def test_one_of_another_user_is_left_alone(
    spool: Spool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    for look in (open_submission, refuse_open_submission):
        with pytest.raises(ClusterError, match="was submitted to a cluster by"):
            look(file)


def test_one_that_is_not_there_any_more_is_not_forgotten(spool: Spool, file: Path) -> None:
    shutil.rmtree(spool.path)
    with pytest.raises(ClusterError, match=str(spool.path)) as caught:
        open_submission(file)
    mark = str(caught.value.remedy).rpartition("remove ")[2]
    Path(mark).unlink()
    assert open_submission(file) is None


def test_a_copy_of_the_file_is_another_one(spool: Spool, file: Path) -> None:
    copy = shutil.copytree(file.parent, file.parent.with_name("copy"))
    assert open_submission(copy / file.name) is None


def test_where_it_cannot_be_found_nothing_is_submitted(spool: Spool, file: Path) -> None:
    close(spool)
    shutil.rmtree(file.parent)
    with pytest.raises(ClusterError, match="nothing was submitted"):
        mark_open(spool)
