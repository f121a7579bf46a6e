"""No importer reads a file outside the folder that was given, whatever is in there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from radt.beneath import open_below
from radt.errors import UsageError
from radt.importers import csv_logs, tensorboard, wandb
from radt.importers.files import FileSource
from radt.importers.importing import Import, ImportResult
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.importers.hostile import wandb_file
from tests.importers.mlflow_support import Study, import_all

SECRET = "BEGIN OPENSSH PRIVATE KEY"


def imported(source: Callable[[Path], FileSource], place: Path, store: Path) -> ImportResult:
    with StoreWriter(store) as writer:
        return Import(source(place), writer).run()


def kept(store: Path) -> str:
    """All that was copied, and all texts of the runs."""
    files = [path for path in store.parent.glob("runs/**/*") if path.is_file()]
    with StoreReader(store) as reader:
        runs = [run.run_id for run in reader.runs()]
        texts = [*reader.params_of(runs).values(), *reader.tags_of(runs).values()]
    return " ".join([str(texts), *(path.read_text(errors="replace") for path in files)])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "id_rsa"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


@pytest.mark.parametrize("form", ["absolute", "dots", "link", "link in folder", "pipe", "log"])
def test_media_of_wandb_that_lead_elsewhere(
    form: str, secret: Path, tmp_path: Path, store: Path
) -> None:
    folder = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    files = folder / "files"
    (files / "media").mkdir(parents=True)
    path = {
        "absolute": str(secret),
        "dots": f"../../../{secret.relative_to(tmp_path)}",
        "link": "media/picture.png",
        "link in folder": "folder/id_rsa",
        "pipe": "pipe",
        "log": "media/sound.png",
    }[form]
    (files / "media" / "picture.png").symlink_to(secret)
    (files / "media" / "sound.png").write_bytes(b"a picture")
    (files / "folder").symlink_to(secret.parent)
    os.mkfifo(files / "pipe")
    if form == "log":
        (files / "output.log").symlink_to(secret)
    picture = json.dumps({"_type": "image-file", "path": path})
    wandb_file(folder / "run-abc.wandb", [{"loss": "1.0", "picture": picture}])
    result = imported(wandb.source, tmp_path / "wandb", store)
    assert (result.imported, result.failed) == (1, [])
    (problem,) = result.damaged
    assert problem.endswith("; left out")
    # Long paths are cut.
    assert ("output.log" if form == "log" else path[:60]) in problem
    assert SECRET not in kept(store)
    assert ("a picture" in kept(store)) == (form == "log")


def test_links_to_files_and_folders_outside_are_named(tmp_path: Path, store: Path) -> None:
    """Also those that only look like files of a log; links within the folder say nothing new."""
    outside, place = tmp_path / "outside", tmp_path / "logs"
    outside.mkdir()
    (place / "run").mkdir(parents=True)
    (outside / "a.csv").write_text("step,loss\n0,1\n")
    (outside / "hparams.yaml").write_text(f"key: {SECRET}\n")
    (place / "run" / "metrics.csv").write_text("step,loss\n0,1\n")
    (place / "run" / "hparams.yaml").symlink_to(outside / "hparams.yaml")
    (place / "link.csv").symlink_to(outside / "a.csv")
    (place / "folder").symlink_to(outside)
    (place / "latest").symlink_to(place / "run")
    (place / "gone.csv").symlink_to(tmp_path / "nothing")
    result = imported(csv_logs.source, place, store)
    assert (result.imported, result.failed) == (1, [])
    assert result.left_out == [
        f"{place}/folder: a link to {outside}",
        f"{place}/gone.csv: a link to {tmp_path}/nothing",
        f"{place}/link.csv: a link to {outside}/a.csv",
    ]
    assert result.damaged == [f"{place}/run/hparams.yaml: links are not followed; left out"]
    assert SECRET not in kept(store)
    # A link that the user names is the user's own word.
    assert imported(csv_logs.source, place / "link.csv", store).imported == 1


def test_event_files_and_runs_of_wandb_that_are_links(tmp_path: Path, store: Path) -> None:
    with SummaryWriter(str(tmp_path / "outside" / "run")) as writer:
        writer.add_scalar("loss", 1.0, 1)
    wandb_file(tmp_path / "outside" / "run-x.wandb", [{"loss": "1.0"}])
    (events,) = (tmp_path / "outside").rglob("*tfevents*")
    place = tmp_path / "logs"
    with SummaryWriter(str(place / "own")) as writer:
        writer.add_scalar("loss", 1.0, 1)
    wandb_file(place / "run-own.wandb", [{"loss": "1.0"}])
    for target in (events, tmp_path / "outside" / "run-x.wandb"):
        (place / target.name).symlink_to(target)
    for source in (tensorboard.source, wandb.source):
        result = imported(source, place, store)
        assert (result.imported, result.failed, result.damaged) == (1, [], [])
        assert len(result.left_out) == 1


def test_a_file_that_is_exchanged_for_a_link_after_it_was_found(
    secret: Path, tmp_path: Path, store: Path
) -> None:
    path = tmp_path / "logs" / "run.csv"
    path.parent.mkdir()
    path.write_text("step,loss\n0,1\n")
    source = csv_logs.source(path.parent)
    path.unlink()
    path.symlink_to(secret)
    with StoreWriter(store) as writer:
        ((_, error),) = Import(source, writer).run().failed
    assert "links are not followed" in error.message


def test_a_folder_of_mlflow_with_links(
    tmp_path: Path, store: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    study = Study((tmp_path / "mlruns").as_uri())
    run_id = study.run("a", params={"lr": "0.1"}, loss=[1.0])
    (run_folder,) = (tmp_path / "mlruns").glob(f"*/{run_id}")
    shutil.rmtree(run_folder / "artifacts", ignore_errors=True)
    (run_folder / "artifacts").symlink_to(tmp_path)  # an import does not read these
    assert import_all(str(tmp_path / "mlruns"), store).imported == 1
    (run_folder / "params" / "key").symlink_to(secret)
    other = store.with_name("other.db")
    for uri in (str(tmp_path / "mlruns"), (tmp_path / "mlruns").as_uri()):
        with pytest.raises(UsageError, match=r"params/key.* link"):
            import_all(uri, other)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../x", "./x", "a//x", "x\0", "a/"])
def test_paths_that_leave_a_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "x").write_text("x")
    with pytest.raises(OSError, match="leads out"):
        open_below(tmp_path / "a", path)
    with open_below(tmp_path, "x") as file:
        assert file.read() == b"x"
