"""Imports of W&B's folders that W&B itself wrote offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radt.cli import main
from radt.importers import wandb
from radt.importers.importing import Import, ImportResult
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.importers.mlflow_support import contents, history, revisions
from tests.importers.wandb_support import Folder

_OLD_S = 1.7e9


def import_wandb(place: Path, store: Path) -> ImportResult:
    with StoreWriter(store) as writer:
        return Import(wandb.source(place), writer).run()


def test_runs_that_wandb_wrote_offline(recorded: Folder, store: Path) -> None:
    result = import_wandb(recorded.path, store)
    assert (result.imported, result.failed, result.damaged) == (2, [], [])
    with StoreReader(store) as reader:
        runs = {run.name: run for run in reader.runs()}
        failed = next(run for name, run in runs.items() if name != "resnet")
        resnet = runs["resnet"]
        found = history(reader, resnet.run_id)
        params, tags = reader.params(resnet.run_id), reader.tags(resnet.run_id)
        (best,) = (one for one in reader.series([resnet.run_id]) if one.metric == "best")
        at_end = reader.samples(resnet.run_id, best.series_no)
    assert (resnet.experiment, resnet.status, resnet.exit_code) == (
        "vision",
        RunStatus.FINISHED,
        0,
    )
    assert (failed.experiment, failed.status, failed.end_reason) == (
        "uncategorized",
        RunStatus.FAILED,
        "exit code 3",
    )
    # A running run with the host of this machine would be taken for one that was lost here.
    assert resnet.host == ""
    assert resnet.command.endswith("train.py")
    scalars = {key: points for key, points in found.items() if not key.startswith("system/")}
    assert set(scalars) == {"loss", "val.acc", "flag", "a/b", "best"}
    loss = [point[1:] for point in scalars["loss"]]
    assert loss[:3] == [("1.0", 0), ("nan", 1), ("inf", 10)]
    assert loss[3:-1] == [(repr(step / 4), step) for step in range(20, 2000)]
    assert loss[-1] == ("9.0", 5000)
    times_ms = [point[0] for point in scalars["loss"]]
    assert resnet.started_ns is not None and resnet.ended_ns is not None
    assert all(
        resnet.started_ns // 1_000_000 - 1 <= int(str(at)) <= resnet.ended_ns // 1_000_000 + 1
        for at in times_ms
    )
    assert (at_end.values.tolist(), at_end.steps) == ([0.25], None)
    assert params == {"lr": "0.1", "opt.name": "adam", "opt.betas": "[0.9]", "late": "5"}
    assert {key: text for key, text in tags.items() if key.startswith("wandb.")} == {
        "wandb.id": "resnet-1",
        "wandb.group": "sweep",
        "wandb.job_type": "train",
        "wandb.tags": "a, b",
        "wandb.notes": "hello",
    }
    kept = store.parent / "runs" / resnet.run_id
    names = {path.name.partition("_")[0] for path in kept.rglob("media/*/*")}
    assert names == {"picture", "table"}
    logs = [path.read_text() for path in kept.glob("artifacts/*.log")]
    assert "it trains\n" in logs

    before, there = revisions(store), contents(store)
    assert import_wandb(recorded.path, store).unchanged == 2
    assert (revisions(store), contents(store)) == (before, there)


def test_a_running_run_grows_and_a_half_written_record_is_waited_for(
    recorded: Folder, tmp_path: Path, store: Path
) -> None:
    whole = recorded.files("resnet-1")[0].read_bytes()
    path = tmp_path / "offline-run-20260101_000000-resnet-1" / "run-resnet-1.wandb"
    path.parent.mkdir()
    path.write_bytes(b"")
    assert import_wandb(tmp_path, store).empty == 1
    counts = []
    # Within the header, a block, a fragment's head at a block's end, and a record over two blocks.
    for size in (3, 2000, 9000, 2 * 32768 - 3, 3 * 32768 + 5, len(whole) - 1):
        path.write_bytes(whole[:size])
        result = import_wandb(tmp_path, store)
        assert (result.failed, result.damaged) == ([], []), size
        with StoreReader(store) as reader:
            runs = reader.runs()
            counts.append(len(history(reader, runs[0].run_id).get("loss", [])) if runs else 0)
        assert all(run.status is RunStatus.RUNNING for run in runs)
    assert counts == sorted(counts)
    assert counts[-1] > counts[1]
    # Nobody writes to it any more.
    os.utime(path, (_OLD_S, _OLD_S))
    result = import_wandb(tmp_path, store)
    assert ["ends within a record" in one for one in result.damaged] == [True]
    with StoreReader(store) as reader:
        assert [run.status for run in reader.runs()] == [RunStatus.KILLED]
    path.write_bytes(whole)
    assert import_wandb(tmp_path, store).updated == 1
    other = store.with_name("other.db")
    import_wandb(tmp_path, other)
    assert contents(store)["points"] == contents(other)["points"]
    with StoreReader(store) as reader:
        assert [run.status for run in reader.runs()] == [RunStatus.FINISHED]


def test_after_damage_reading_goes_on_with_the_next_block(
    recorded: Folder, tmp_path: Path, store: Path
) -> None:
    path = tmp_path / "run-resnet-1.wandb"
    shutil.copy(recorded.files("resnet-1")[0], path)
    content = bytearray(path.read_bytes())
    content[32768 + 5000] ^= 0xFF
    path.write_bytes(content)
    (tmp_path / "run-other.wandb").write_text("no log of W&B")
    result = import_wandb(tmp_path, store)
    assert result.imported == 1
    ((where, error),) = result.failed
    assert where == str(tmp_path / "run-other.wandb")
    assert "expected a run of W&B" in error.message
    (damage,) = result.damaged
    assert f"{path} is damaged at byte 3" in damage
    with StoreReader(store) as reader:
        (run,) = reader.runs()
        loss = [point[1:] for point in history(reader, run.run_id)["loss"]]
    expected = [("1.0", 0), ("nan", 1), ("inf", 10)]
    expected += [(repr(step / 4), step) for step in range(20, 2000)]
    missing = [point for point in expected if point not in loss]
    first = expected.index(missing[0])
    # One stretch is lost, and nothing before and after it.
    assert missing == expected[first : first + len(missing)]
    assert 0 < len(missing) < len(expected) / 2
    assert run.status is RunStatus.FINISHED


@pytest.mark.parametrize("kind", ["wandb", "tensorboard"])
def test_a_package_that_is_not_installed(kind: str, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules[{kind!r}] = None; from radt.cli import main; main(sys.argv[1:])"
    )
    arguments = ["import", f"{kind}:{tmp_path}", "--home", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"reading {kind} logs requires the package {kind}" in done.stderr
    assert "pip install 'radt[import]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command(recorded: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(tmp_path / "data")
    with pytest.raises(SystemExit) as caught:
        main(["import", f"wandb:{recorded.path}", "--home", home])
    assert caught.value.code == 0
    assert "imported 2 runs, 0 updated, 0 unchanged" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["import", f"wandb:{tmp_path / 'data'}", "--home", home])
    assert caught.value.code == 2
    assert "no runs of W&B" in capsys.readouterr().err
