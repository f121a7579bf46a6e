"""Imports of event files that torch's SummaryWriter and Keras' layout of folders leave."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from radt.cli import main
from radt.importers import tensorboard
from radt.importers.importing import Import, ImportResult
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.importers.mlflow_support import contents, history, revisions

_OLD_S = 1.7e9


def import_events(place: Path, store: Path) -> ImportResult:
    with StoreWriter(store) as writer:
        return Import(tensorboard.source(place), writer).run()


def found_in(store: Path) -> dict[str, dict[str, list[tuple[object, ...]]]]:
    """Points by run and metric."""
    with StoreReader(store) as reader:
        return {run.name: history(reader, run.run_id) for run in reader.runs()}


def events_in(folder: Path) -> Path:
    (path,) = folder.glob("*tfevents*")
    return path


def test_what_a_writer_spreads_over_folders_is_one_run(tmp_path: Path, store: Path) -> None:
    runs = tmp_path / "runs"
    with SummaryWriter(str(runs / "group" / "first")) as writer:
        for step in range(3):
            writer.add_scalar("loss/train", step / 4, step, walltime=1.8e9 + step)
        writer.add_scalar("new", 2.5, 1, new_style=True)
        writer.add_scalar("odd", math.nan, 1)
        writer.add_scalar("odd", -math.inf, 2)
        writer.add_scalars("a/b", {"x": 1.0, "y": 2.0}, 5)
        writer.add_text("note", "hello", 7)
        writer.add_image("images/some", np.zeros((3, 4, 4), dtype=np.uint8), 1)
        writer.add_histogram("weights", np.arange(9.0), 2)
        writer.add_hparams(
            {"lr": 0.1, "layers": 3, "name": "adam"}, {"hparam/acc": 0.5, "best": 0.25}
        )
    with SummaryWriter(str(runs / "group" / "first" / "eval")) as writer:
        writer.add_scalar("loss", 1.0, 1)
    for part in ("train", "validation"):
        with SummaryWriter(str(runs / "keras" / part)) as writer:
            writer.add_scalar("epoch_loss", 1.5, 0)
    SummaryWriter(str(runs / "nothing in it")).close()
    # Lightning writes its parameters beside the events, too.
    with SummaryWriter(str(runs / "lightning")) as writer:
        writer.add_scalar("loss", 1.0, 1)
    (runs / "lightning" / "hparams.yaml").write_text("lr: 0.5\n")

    result = import_events(runs, store)
    assert (result.imported, result.empty, result.failed, result.damaged) == (4, 1, [], [])
    points = found_in(store)
    assert set(points) == {"group/first", "group/first/eval", "keras", "lightning"}
    first = points["group/first"]
    assert first["loss/train"] == [
        (1_800_000_000_000 + 1000 * step, repr(step / 4), step) for step in range(3)
    ]
    assert {key: [point[1:] for point in of_key] for key, of_key in first.items()} == {
        "loss/train": [("0.0", 0), ("0.25", 1), ("0.5", 2)],
        "new": [("2.5", 1)],
        "odd": [("nan", 1), ("-inf", 2)],
        "a/b/x": [("1.0", 5)],
        "a/b/y": [("2.0", 5)],
        "hparam/acc": [("0.5", 0)],
        "hparams/best": [("0.25", 0)],
    }
    assert set(points["keras"]) == {"train/epoch_loss", "validation/epoch_loss"}
    with StoreReader(store) as reader:
        by_name = {run.name: run for run in reader.runs()}
        assert {run.experiment for run in by_name.values()} == {"runs"}
        assert {run.status for run in by_name.values()} == {RunStatus.FINISHED}
        params = {name: reader.params(run.run_id) for name, run in by_name.items()}
    assert params["group/first"] == {"lr": "0.1", "layers": "3", "name": "adam"}
    assert params["lightning"] == {"lr": "0.5"}
    kept = store.parent / "runs" / by_name["group/first"].run_id / "artifacts" / "tensorboard"
    assert (kept / "images/some/1.png").read_bytes().startswith(b"\x89PNG")
    assert (kept / "note/text_summary/7.txt").read_text() == "hello"

    before, there = revisions(store), contents(store)
    result = import_events(runs, store)
    assert (result.unchanged, result.empty) == (4, 1)
    assert (revisions(store), contents(store)) == (before, there)


def test_a_running_run_grows_and_a_half_written_record_is_waited_for(
    tmp_path: Path, store: Path
) -> None:
    folder = tmp_path / "runs" / "run"
    with SummaryWriter(str(folder)) as writer:
        for step in range(100):
            writer.add_scalar("loss", step / 4, step)
    path = events_in(folder)
    whole = path.read_bytes()
    counts = []
    for size in range(1000, len(whole), 611):
        path.write_bytes(whole[:size])
        result = import_events(folder, store)
        assert (result.failed, result.damaged) == ([], [])
        counts.append(len(found_in(store)["run"]["loss"]))
    assert counts == sorted(set(counts))
    os.utime(path, (_OLD_S, _OLD_S))
    (problem,) = import_events(folder, store).damaged
    assert f"{path} ends within a record" in problem
    path.write_bytes(whole)
    with SummaryWriter(str(folder), filename_suffix=".later") as writer:
        writer.add_scalar("loss", -1.0, 200)
    assert import_events(folder, store).damaged == []
    loss = [point[1:] for point in found_in(store)["run"]["loss"]]
    assert loss == [*((repr(step / 4), step) for step in range(100)), ("-1.0", 200)]


def test_two_writers_in_one_folder_that_both_go_on(tmp_path: Path, store: Path) -> None:
    """Points of the first file come before those of the second that the store has already."""
    folder = tmp_path / "run"
    with (
        SummaryWriter(str(folder), filename_suffix=".0") as first,
        SummaryWriter(str(folder), filename_suffix=".1") as second,
    ):
        expected = []
        for step in range(4):
            for value, writer in ((1.0, first), (2.0, second)):
                writer.add_scalar("loss", value, step)
                writer.flush()
                expected.append((repr(value), step))
                import_events(folder, store)
    assert sorted(point[1:] for point in found_in(store)["run"]["loss"]) == sorted(expected)


def test_damage_is_named_and_what_is_before_it_imported(tmp_path: Path, store: Path) -> None:
    for name in ("damaged", "whole"):
        with SummaryWriter(str(tmp_path / "runs" / name)) as writer:
            for step in range(50):
                writer.add_scalar("loss", step, step)
    path = events_in(tmp_path / "runs" / "damaged")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    (tmp_path / "runs" / "no").mkdir()
    (tmp_path / "runs" / "no" / "tfevents.txt").write_text("this is a text of some length")
    result = import_events(tmp_path / "runs", store)
    assert result.imported == 2
    points = found_in(store)
    assert len(points["whole"]["loss"]) == 50
    assert 20 <= len(points["damaged"]["loss"]) < 27
    assert [one.split(" is damaged")[0] for one in result.damaged] == [str(path)]
    ((where, error),) = result.failed
    assert where == str(tmp_path / "runs" / "no" / "tfevents.txt")
    assert "is damaged at byte 0" in error.message


def test_another_training_under_the_same_name(tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "run"
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("loss", 1.0, 1)
    import_events(folder, store)
    there = contents(store)
    events_in(folder).unlink()
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.add_scalar("loss", 2.0, 2)
    ((_, error),) = import_events(folder, store).failed
    assert "was rewritten" in error.message
    assert contents(store) == there


def test_a_session_that_failed(tmp_path: Path, store: Path) -> None:
    _, start, end = hparams({"lr": 0.25}, {})
    # torch has no way to say that a session failed.
    data = plugin_data_pb2.HParamsPluginData.FromString(end.value[0].metadata.plugin_data.content)
    data.session_end_info.status = api_pb2.Status.Value("STATUS_FAILURE")
    end.value[0].metadata.plugin_data.content = data.SerializeToString()
    with SummaryWriter(str(tmp_path / "run")) as writer:
        writer.file_writer.add_summary(start)
        writer.add_scalar("loss", 1.0, 1)
        writer.file_writer.add_summary(end)
    import_events(tmp_path, store)
    with StoreReader(store) as reader:
        (run,) = reader.runs()
        assert run.status is RunStatus.FAILED
        assert reader.params(run.run_id) == {"lr": "0.25"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "run"
    with SummaryWriter(str(folder)) as writer:
        writer.add_scalar("loss", 1.0, 1)
    (tmp_path / "empty").mkdir()
    home = str(tmp_path / "data")
    for place, code, text in (
        (folder.parent, 0, "imported 1 run, 0 updated"),
        (events_in(folder), 0, "1 unchanged"),
        (tmp_path / "empty", 2, "no event files in"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["import", f"tensorboard:{place}", "--home", home])
        printed = capsys.readouterr()
        assert caught.value.code == code
        assert text in printed.out + printed.err
