"""Scripts without a runner: they begin a run, the collector records it, they end it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import radt
from radt.model import RunStatus
from radt.store.records import RunRecord
from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.bench import wait_until

LOG = "import os, radt, sys, time\nwith radt.Run() as run:\n    run.log_metric('loss', 0.5, 1)\n"


def only_run(alone: Alone) -> RunRecord:
    (run,) = alone.reader.runs()
    return run


def metrics(alone: Alone, run_id: str) -> set[str]:
    if not any(run.run_id == run_id for run in alone.reader.runs()):
        return set()  # its collector is starting
    return set(radt.load(run_id, home=alone.home).metric)


@pytest.mark.shared_collector
def test_script_records_itself(alone: Alone) -> None:
    os.mkfifo(alone.folder / "end.pipe")
    training = alone.start(
        "import radt\n"
        "with radt.Run('first', experiment='digits', workload='w1', listeners='top@50ms',"
        " params={'lr': 0.1}) as run:\n"
        "    for epoch in run.epochs(2):\n"
        "        for step in range(10_000): run.log_metric('loss', step / 2, step)\n"
        "    run.log_param('seed', 3)\n"
        "    run.log_text('a', 'a.txt')\n"
        "    print(run.id, flush=True)\n"
        "    open('end.pipe').read()\n",
        "--size",
        "two words",
    )
    assert training.stdout is not None
    run_id = training.stdout.readline().strip()
    # It is followed from its own process on, however short its training.
    wait_until(lambda: "process.memory.rss" in metrics(alone, run_id), "a sample of its memory")
    (alone.folder / "end.pipe").write_text("")
    _, err = training.communicate(timeout=TIMEOUT_S)
    assert (training.returncode, err) == (0, "")
    run = only_run(alone)
    assert run.run_id == run_id
    assert (run.status, run.name, run.experiment) == (RunStatus.FINISHED, "first", "digits")
    assert (run.workload, run.listeners) == ("w1", "top@0.05s")
    assert run.pid == alone.started[0].pid
    assert "script0.py" in run.command
    params = alone.reader.params(run.run_id)
    assert params["lr"] == "0.1"
    assert params["seed"] == "3"
    assert params["File"] == "script0.py"
    assert params["Params"] == "--size 'two words'"
    assert params["size"] == "two words"
    assert alone.reader.tags(run.run_id)["radt.listeners"] == "top@0.05s"
    frame = radt.load(run.run_id, home=alone.home)
    assert list(frame[frame.metric == "loss"].step) == [*range(10_000)] * 2
    # What is delivered leaves the spool; in this order no file is missed on its way.
    places = (Path(run.spool) / "artifacts", alone.home / "artifacts")
    artifacts = {path.name for place in places for path in place.rglob("*")}
    assert {"a.txt", "packages.txt", "hardware.json"} <= artifacts


def test_a_bad_setting_of_the_collector_is_reported_and_the_run_recorded(alone: Alone) -> None:
    alone.env["RADT_FLUSH_S"] = "fast"
    _, err = alone.start(LOG).communicate(timeout=TIMEOUT_S)
    assert err == (
        "radt: RADT_FLUSH_S: expected a number of at least 0, got 'fast'. Write such as 10 or 0.5. "
        "The default is used\n"
    )
    assert only_run(alone).status is RunStatus.FINISHED


@pytest.mark.shared_collector
@pytest.mark.quick_variants(3)
@pytest.mark.parametrize(
    ("line", "code", "status", "reason"),
    [
        ("    raise ValueError('boom')", 1, RunStatus.FAILED, "ValueError: boom"),
        ("    sys.exit(0)", 0, RunStatus.FINISHED, ""),
        ("    sys.exit(3)", 3, RunStatus.FAILED, "exit code 3"),
        ("    sys.exit('no data')", 1, RunStatus.FAILED, "exit code no data"),
        ("    os.kill(os.getpid(), 2); time.sleep(60)", -2, RunStatus.KILLED, "interrupted"),
        ("    os.kill(os.getpid(), 9)", -9, RunStatus.KILLED, "kill|without"),
        ("    os.kill(os.getpid(), 15)", -15, RunStatus.KILLED, "kill|without"),
        ("    radt.shutdown(); radt.shutdown(); os._exit(5)", 5, RunStatus.FINISHED, ""),
    ],
)
def test_how_it_ended(alone: Alone, line: str, code: int, status: RunStatus, reason: str) -> None:
    _, err = alone.run(LOG + line, code=code)
    wait_until(
        lambda: [run.status.ended for run in alone.reader.runs()] == [True], "the run has ended"
    )
    run = only_run(alone)
    assert run.status is status
    assert re.search(reason, run.end_reason)
    assert bool(reason) == bool(run.end_reason)
    assert list(radt.load(run.run_id, home=alone.home, metrics="loss").value) == [0.5]
    assert "radt:" not in err


@pytest.mark.shared_collector
@pytest.mark.quick_variants(1)
@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15),
    reason="the kernel does not say how other processes' children end",
)
@pytest.mark.parametrize(
    ("line", "code", "status", "reason"),
    [
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 0'])", 0, RunStatus.FINISHED, ""),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 3'])", 3, RunStatus.FAILED, "exit code 3"),
        (
            "os.execv('/bin/sh', ['sh', '-c', 'kill -KILL $$'])",
            *(-9, RunStatus.KILLED, "killed by SIGKILL"),
        ),
        (
            "len(sys.argv) > 1 or os.execv(sys.executable, [sys.executable, __file__, 'again'])",
            *(0, RunStatus.FINISHED, ""),
        ),
        ("os._exit(5)", 5, RunStatus.FAILED, "exit code 5"),
    ],
)
def test_a_process_that_leaves_no_word_ends_its_run_by_its_exit_code(
    alone: Alone, line: str, code: int, status: RunStatus, reason: str
) -> None:
    alone.run(f"{LOG}    run.name  # known once it is recorded\n    {line}\n", code=code)
    wait_until(
        lambda: [run.status.ended for run in alone.reader.runs()] == [True], "the run has ended"
    )
    run = only_run(alone)
    assert (run.status, run.end_reason or "", run.exit_code) == (status, reason, code)
    assert set(radt.load(run.run_id, home=alone.home, metrics="loss").value) == {0.5}


@pytest.mark.shared_collector
@pytest.mark.quick_variants(1)
@pytest.mark.parametrize(
    ("text", "raised", "reason"),
    [
        ("1 / 0", "Odd()", "Odd"),
        ("None", "Odd()", "Odd"),
        ("sys.exit(0)", "Odd()", "Odd"),
        ("str(self)", "Odd()", "Odd"),
        ("1 / 0", "SystemExit(Odd())", "exit code Odd"),
        ("'é' * 2**20", "Odd()", f"Odd: {'é' * 994}…"),
        ("'half \\ud800'", "Odd()", "Odd: half \\ud800"),
    ],
)
def test_exceptions_whose_text_is_none(alone: Alone, text: str, raised: str, reason: str) -> None:
    script = alone.start(
        "import radt, sys\n"
        "class Odd(Exception):\n"
        f"    def __str__(self): return {text}\n"
        f"with radt.Run(listeners='none'): raise {raised}\n"
    )
    script.communicate(timeout=TIMEOUT_S)
    run = only_run(alone)
    assert (run.status, run.end_reason) == (RunStatus.FAILED, reason)


@pytest.mark.shared_collector
def test_exceptions_leave_the_block_as_they_were(alone: Alone) -> None:
    _, err = alone.run(LOG + "    raise KeyError('missing')", code=1)
    assert err.rstrip().endswith("KeyError: 'missing'")
    assert "During handling" not in err


@pytest.mark.shared_collector
def test_run_that_is_never_left_ends_with_the_process(alone: Alone) -> None:
    alone.run(
        "import radt, sys\nrun = radt.Run().__enter__()\nrun.log_metric('loss', 1)\n"
        "if len(sys.argv) > 1: raise ValueError('boom')\n"
    )
    assert only_run(alone).status is RunStatus.FINISHED
    alone.run(alone.folder.joinpath("script0.py").read_text(encoding="utf-8"), "x", code=1)
    (failed,) = [run for run in alone.reader.runs() if run.status is RunStatus.FAILED]
    assert failed.end_reason == "ValueError: boom"


@pytest.mark.shared_collector
def test_one_run_after_another_in_one_process(alone: Alone) -> None:
    alone.run(
        "import os, radt\n"
        "before = dict(os.environ)\n"
        "for lr in (0.1, 0.2):\n"
        "    with radt.Run(f'lr {lr}', params={'lr': lr}, listeners='none') as run:\n"
        "        run.log_metric('loss', lr)\n"
        "        assert os.environ['RADT_RUN_ID'] == run.id\n"
        "assert dict(os.environ) == before\n"
        "assert radt.active_run() is None\n"
        "radt.log_metric('loss', 5)\n"
    )
    runs = alone.reader.runs()
    assert {run.name for run in runs} == {"lr 0.1", "lr 0.2"}
    for run in runs:
        (value,) = radt.load(run.run_id, home=alone.home, metrics="loss").value
        assert run.name == f"lr {value}"


@pytest.mark.shared_collector
@pytest.mark.long
def test_ranks_of_torchrun_are_one_run(alone: Alone) -> None:
    for number in range(2):
        os.mkfifo(alone.folder / f"{number}.pipe")
    (alone.folder / "rank.py").write_text(
        "import os, radt\n"
        "rank = int(os.environ['RANK'])\n"
        "for number in range(2):\n"
        "    with radt.Run(f'ranks {number}', listeners='none') as run:\n"
        "        for step in range(1000): run.log_metric('loss', rank, step)\n"
        "        if rank: open(f'{number}.pipe').close()\n"  # rank 0 is first, and waits for all
        "        run.log_metric('last', rank)\n"
        "        if not rank: open(f'{number}.pipe', 'w').close()\n",
        encoding="utf-8",
    )
    alone.run(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone',"
        " '--nproc-per-node=2', 'rank.py'], check=True)\n"
    )
    runs = alone.reader.runs()
    assert sorted(run.name for run in runs) == ["ranks 0", "ranks 1"]
    for run in runs:
        assert run.status is RunStatus.FINISHED
        frame = radt.load(run.run_id, home=alone.home)
        assert dict(frame[frame.metric == "loss"].entity.value_counts()) == {
            "": 1000,
            "rank 1": 1000,
        }
        assert sorted(frame[frame.metric == "last"].value) == [0, 1]


@pytest.mark.shared_collector
def test_children_of_a_script_join_its_run(alone: Alone) -> None:
    (alone.folder / "other.py").write_text(
        "import radt\nwith radt.Run() as run: run.log_metric('other', 1)\n", encoding="utf-8"
    )
    alone.run(
        LOG
        + "    import subprocess\n    subprocess.run([sys.executable, 'other.py'], check=True)\n"
    )
    run = only_run(alone)
    assert len(radt.load(run.run_id, home=alone.home, metrics="other")) == 1


def test_without_a_collector_training_goes_on_and_all_is_kept(alone: Alone) -> None:
    public = alone.folder / "public"
    public.mkdir(mode=0o777)
    public.chmod(0o777)
    _, err = alone.run(LOG + "print('trained')", RADT_RUNTIME_DIR=str(public))
    assert err.count("\n") == 1
    assert "is not private to you" in err
    assert "set RADT_RUNTIME_DIR" in err
    (journal,) = alone.home.glob("runs/*/journal/*-*")
    assert (journal / "closed").exists()


def test_home_that_cannot_be_written_stops_nobody(alone: Alone) -> None:
    (alone.folder / "file").write_text("in the way", encoding="utf-8")
    out, err = alone.run(LOG + "print('trained')\n", RADT_HOME=str(alone.folder / "file" / "home"))
    assert out == "trained\n"
    assert "cannot be used" in err
    assert all(line.startswith("radt: ") for line in err.splitlines())


@pytest.mark.parametrize(
    ("listeners", "said"),
    [
        ("top@0s", "an interval of 0s is out of range"),
        ("top@fast", "'fast' is not an interval"),
        ("top@-1s", "'-1s' is not an interval"),
    ],
)
def test_options_that_cannot_be_understood_are_raised(
    alone: Alone, listeners: str, said: str
) -> None:
    _, err = alone.run(f"import radt\nwith radt.Run(listeners={listeners!r}): pass", code=1)
    assert said in err
    assert not alone.home.exists()


@pytest.mark.shared_collector
def test_unknown_listener_is_a_warning(alone: Alone) -> None:
    _, err = alone.run("import radt\nwith radt.Run(listeners='nope+top'): pass")
    assert "nope" in err
    assert only_run(alone).status is RunStatus.FINISHED
