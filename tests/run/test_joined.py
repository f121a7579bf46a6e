"""Scripts inside a run that a runner has started."""

from __future__ import annotations

import pytest

from radt.model import MarkerKind
from tests.run.conftest import Joined

WHOLE = """\
import pathlib, radt
with radt.Run(params={"lr": 0.1}) as run:
    assert run.id == "0123456789abcdef"
    for epoch in run.epochs(3):
        run.log_metric("loss", 1 / epoch, epoch)
        with run.span("validate"):
            run.log_metrics({"accuracy": epoch / 4, "top5": 1}, epoch)
        if epoch == 2:
            break
    run.epoch(7)
    run.epoch(8)
    run.log_param("layers", [1, 2])
    run.log_params({"seed": 3})
    run.set_tag("team", "x")
    run.set_tags({"a": None})
    run.log_text("ünï\\n", "notes/one.txt")
    pathlib.Path("model.bin").write_bytes(b"1")
    run.log_artifact("model.bin", "models")
    pathlib.Path("model.bin").write_bytes(b"2")
    pathlib.Path("plots/deep").mkdir(parents=True)
    pathlib.Path("plots/deep/a.svg").write_text("a")
    run.log_artifact("plots")
    run.log_artifact("plots")
"""


def test_everything_a_script_can_say(joined: Joined) -> None:
    assert joined.run(WHOLE) == ("", "")
    found = joined.found()
    assert found.values("loss") == [1.0, 0.5]
    assert found.values("accuracy") == [0.25, 0.5]
    assert found.steps("top5") == [1, 2]
    (batch,) = found.batches
    assert batch.params == {"lr": "0.1", "layers": "[1, 2]", "seed": "3"}
    assert batch.tags == {"team": "x", "a": "None"}
    assert batch.epochs_total == 3
    assert found.reader.finish() is None  # the exit code says it, and other blocks may follow
    assert [(e.kind, e.name, e.step, e.begin) for e in batch.spans] == [
        (MarkerKind.EPOCH, "epoch", 1, True),
        (MarkerKind.SPAN, "validate", None, True),
        (MarkerKind.SPAN, "validate", None, False),
        (MarkerKind.EPOCH, "epoch", 1, False),
        (MarkerKind.EPOCH, "epoch", 2, True),
        (MarkerKind.SPAN, "validate", None, True),
        (MarkerKind.SPAN, "validate", None, False),
        (MarkerKind.EPOCH, "epoch", 2, False),  # the loop was left by break
        (MarkerKind.EPOCH, "epoch", 7, True),
        (MarkerKind.EPOCH, "epoch", 7, False),
        (MarkerKind.EPOCH, "epoch", 8, True),
        (MarkerKind.EPOCH, "epoch", 8, False),  # with the block
    ]
    artifacts = {
        str(path.relative_to(joined.run_dir.artifacts)): path.read_text(encoding="utf-8")
        for path in joined.run_dir.artifacts.rglob("*")
        if path.is_file()
    }
    assert artifacts == {"notes/one.txt": "ünï\n", "models/model.bin": "1", "plots/deep/a.svg": "a"}
    assert {path.name for path in joined.run_dir.path.iterdir()} == {"journal", "artifacts"}


def test_blocks_within_and_after_each_other_are_one_run(joined: Joined) -> None:
    joined.run(
        "import radt\n"
        "with radt.Run() as outer:\n"
        "    outer.log_metric('loss', 1)\n"
        "    with radt.Run() as inner:\n"
        "        inner.log_metric('loss', 2)\n"
        "        with outer:\n"
        "            outer.log_metric('loss', 3)\n"
        "    outer.log_metric('loss', 4)\n"
        "    assert radt.active_run() is outer\n"
        "    radt.log_metric('loss', 5)\n"
        "    log = outer.log_metric\n"
        "with radt.Run() as run:\n"
        "    assert run.id == '0123456789abcdef'\n"
        "    run.log_metric('loss', 6)\n"
        "log('loss', 7)\n"
    )
    found = joined.found()
    assert found.values("loss") == [1, 2, 3, 4, 5, 6, 7]
    assert found.processes == {""}


def test_logging_outside_of_the_block_warns_once(joined: Joined) -> None:
    _, err = joined.run(
        "import radt\n"
        "run = radt.Run()\n"
        "run.log_metric('loss', 1)\n"
        "with run: run.log_metric('loss', 2)\n"
        "run.log_metric('loss', 3)\n"
        "run.log_param('a', 1)\n"
        "run.log_text('a', 'b')\n"
    )
    assert err.count("\n") == 1
    assert err.startswith("radt: values logged outside")
    assert joined.found().values("loss") == [2]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("run.log_metric('loss', 'x')", "TypeError"),
        ("run.log_metrics({'a': 1, 'b': None})", "TypeError"),
        ("run.log_param('', 1)", "UsageError"),
        ("run.set_tag(1, 1)", "TypeError"),
        ("run.log_text('x', '../x')", "UsageError"),
        ("run.log_text('x', '/tmp/x')", "UsageError"),
        ("run.log_artifact('not there')", "FileNotFoundError"),
        ("run.log_artifact(__file__, '../..')", "UsageError"),
        ("run.span('')", "UsageError"),
        ("run.epoch(1.5)", "TypeError"),
    ],
)
def test_mistakes_are_raised(joined: Joined, call: str, error: str) -> None:
    _, err = joined.run(f"import radt\nwith radt.Run() as run: {call}\n", code=1)
    assert err.splitlines()[-1].partition(":")[0].rpartition(".")[2] == error
    assert joined.found().batches[0].scalars == []


def test_spans_as_decorators_and_across_threads(joined: Joined) -> None:
    joined.run(
        "import radt, threading\n"
        "with radt.Run() as run:\n"
        "    gate = threading.Barrier(2)\n"
        "    @run.span('work')\n"
        "    def work(): gate.wait()\n"
        "    threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "    [t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    spans = joined.found().batches[0].spans
    assert [span.begin for span in spans] == [True, True, False, False]
    assert {span.token for span in spans[:2]} == {span.token for span in spans[2:]}
    assert len({span.token for span in spans}) == 2


def test_artifact_that_does_not_fit_stops_nobody(joined: Joined) -> None:
    _, err = joined.run(
        "import radt, resource\n"
        "with radt.Run() as run:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "    run.log_text('x', 'small.txt')\n"
        "    run.log_text('x' * (2 << 20), 'big.txt')\n"
    )
    assert "'big.txt' was not recorded: [Errno 27] File too large" in err
    assert [path.name for path in joined.run_dir.artifacts.iterdir()] == ["small.txt"]
    assert {path.name for path in joined.run_dir.path.iterdir()} == {"journal", "artifacts"}


def test_what_cannot_be_copied_of_a_folder_costs_nothing_else(joined: Joined) -> None:
    _, err = joined.run(
        "import os, pathlib, radt\n"
        "plots = pathlib.Path('plots'); deep = plots / 'deep'; deep.mkdir(parents=True)\n"
        "(plots / 'a.svg').write_text('a'); (deep / 'b.svg').write_text('b')\n"
        "(plots / 'good').symlink_to(deep.resolve()); (plots / 'b.svg').symlink_to('deep/b.svg')\n"
        "(plots / 'gone').symlink_to('nowhere'); (deep / 'up').symlink_to('..')\n"
        "(plots / 'loop').symlink_to('loop'); os.mkfifo(deep / 'pipe')\n"
        "(deep / 'spool').symlink_to(os.environ['RADT_RUN_DIR'])\n"
        "with radt.Run() as run: run.log_artifact('plots'); run.log_artifact('plots')\n"
        "with radt.Run() as run: run.log_artifact('plots/deep/pipe')\n"
    )
    first, second = err.splitlines()
    assert first.startswith(
        "radt: the artifact 'plots' was recorded without 'gone' (No such file or directory), "
        "'loop' (Too many levels of symbolic links), "
    )
    assert first.endswith(" and 3 more")
    assert second == "radt: the artifact 'pipe' was not recorded: it is not a file"
    artifacts = {
        str(path.relative_to(joined.run_dir.artifacts)): path.read_text(encoding="utf-8")
        for path in joined.run_dir.artifacts.rglob("*")
        if path.is_file()
    }
    assert artifacts == {
        "plots/a.svg": "a", "plots/b.svg": "b", "plots/deep/b.svg": "b", "plots/good/b.svg": "b"
    }  # fmt: skip
    assert {path.name for path in joined.run_dir.path.iterdir()} == {"journal", "artifacts"}


@pytest.mark.parametrize("mode", ["off", "OFF"])
def test_switched_off_it_does_nothing(joined: Joined, mode: str) -> None:
    source = WHOLE.replace('assert run.id == "0123456789abcdef"', 'assert run.id == ""') + (
        "    @run.span('work')\n"
        "    def work(): return 5\n"
        "    assert work() == 5\n"
        "    run.log_figure(1, 'a.png')\n"
        "    run.sklearn.log_model(1, name='x')\n"
        "    with run.start_run(): pass\n"
        "radt.log_metric('a', 1)\n"
        "with radt.RADTBenchmark() as run: run.log_metric('a', 1, 2)\n"
        "import sys; assert 'mlflow' not in sys.modules\n"
    )
    assert joined.run(source, RADT_MODE=mode) == ("", "")
    assert list(joined.run_dir.journal.iterdir()) == []
    assert list(joined.run_dir.artifacts.iterdir()) == []
    assert not (joined.folder / "radt-data").exists()


def test_broken_standard_error_stops_nobody(joined: Joined) -> None:
    joined.run(
        "import os, radt, sys\n"
        "os.close(2)\n"
        "radt.Run().log_metric('a', 1)\n"
        "sys.stderr = None\n"
        "radt.Run().log_param('a', 1)\n"
        "with radt.Run() as run: run.log_metric('a', 2)\n"
    )
    assert joined.found().values("a") == [2]
