"""PyTorch's memory, as a fake torch with two GPUs has it."""

from __future__ import annotations

import pytest

import radt
from radt.journal.values import JournalSeries
from radt.model import Scope, SeriesKind
from tests.run.conftest import Alone, Joined
from tests.run.torch_support import asked, give_fake_torch

MIB = 1 << 20
TAG = "radt.torch"

#: Reads often, and goes on when the thread has read.
OFTEN = """\
import os, radt, radt.run.torch_metrics, sys, time, torch
radt.run.torch_metrics.INTERVAL_S = 0.01
def read_by_thread():
    count = len(torch.asked())
    deadline = time.monotonic() + 180
    while len(torch.asked()) < count + 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


def series_of(joined: Joined) -> dict[tuple[str, str, str], JournalSeries]:
    """Series by process, metric and entity."""
    return {
        (column.process, column.series.metric, column.series.entity): column.series
        for batch in joined.found().batches
        for column in batch.scalars
        if column.series is not None
    }


def tags_of(joined: Joined) -> dict[str, str]:
    return {name: text for batch in joined.found().batches for name, text in batch.tags.items()}


def test_memory_is_read_while_the_script_works(joined: Joined) -> None:
    give_fake_torch(joined)
    _, err = joined.run(
        OFTEN + "with radt.Run(torch=True) as run:\n"
        "    read_by_thread()\n"
        "    torch.use(1, 100)\n"
        "    read_by_thread()\n"
        "    torch.use(1, 40, retries=3)\n"
        "count = len(torch.asked())\n"
        "time.sleep(0.1)\n"
        "assert len(torch.asked()) == count, 'it reads on'\n"
    )
    assert err == ""
    found = joined.found()
    allocated = found.values("torch.memory.allocated")
    assert (allocated[0], allocated[-1]) == (100 * MIB, 40 * MIB)
    assert set(found.values("torch.memory.reserved")) == {200 * MIB, 80 * MIB}
    assert set(found.values("torch.memory.allocated.peak")) == {100 * MIB}
    retries = found.values("torch.memory.retries")
    assert (retries[0], retries[-1]) == (0, 3)
    assert set(found.values("torch.memory.ooms")) == {0}
    series = series_of(joined)
    # The other GPU it sees and does not use.
    assert {entity for _, _, entity in series} == {"cuda:1"}
    reserved = series["", "torch.memory.reserved", "cuda:1"]
    assert (reserved.listener, reserved.unit, reserved.scope) == ("torch", "By", Scope.PROCESS)
    assert series["", "torch.memory.retries", "cuda:1"].kind is SeriesKind.COUNTER
    assert "maximum" in series["", "torch.memory.allocated.peak", "cuda:1"].method
    assert TAG not in tags_of(joined)


def test_of_forked_workers_only_the_process_of_the_block_reads(joined: Joined) -> None:
    give_fake_torch(joined)
    joined.run(
        OFTEN + "torch.use(0, 1)\n"
        "with radt.Run(torch=True) as run:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        time.sleep(0.1)\n"
        "        run.log_metric('loss', 1)\n"
        "        raise SystemExit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    read_by_thread()\n"
        "assert {asker for _, asker in torch.asked()} == {os.getpid()}\n"
    )
    assert {process for process, *_ in series_of(joined)} == {""}


def test_each_rank_has_its_own_memory(joined: Joined) -> None:
    give_fake_torch(joined)
    source = (
        "import os, radt, torch\ntorch.use(int(os.environ['RANK']), 1)\n"
        "with radt.Run(torch=True) as run: pass\n"
    )
    for rank in ("0", "1"):
        joined.run(source, RANK=rank, WORLD_SIZE="2")
    assert {(process, entity) for process, _, entity in series_of(joined)} == {
        ("", "cuda:0"),
        ("rank 1", "cuda:1"),
    }


def test_mps(joined: Joined) -> None:
    give_fake_torch(joined)
    joined.run("import radt, torch\nwith radt.Run(torch=True): pass", FAKE_TORCH="cpu mps")
    found = joined.found()
    assert found.values("torch.memory.allocated") == [3 * MIB]
    assert found.values("torch.memory.reserved") == [5 * MIB]
    assert {entity for _, _, entity in series_of(joined)} == {"mps"}


@pytest.mark.parametrize(
    ("lines", "words", "reason"),
    [
        ("pass", "", "the script has not imported torch"),
        ("import torch", "cpu", "torch 9.9.9 is built without CUDA"),
        ("import torch", "", "the script has not used CUDA"),
        ("import torch; torch.use(0, 0)", "", "the script has put nothing on a GPU"),
    ],
)
def test_why_there_is_nothing(joined: Joined, lines: str, words: str, reason: str) -> None:
    give_fake_torch(joined)
    _, err = joined.run(
        f"import radt, sys\nwith radt.Run() as run:\n    {lines}\n"
        "    loaded = 'torch' in sys.modules\n"
        "assert ('torch' in sys.modules) == loaded\n",
        RADT_TORCH="1",
        FAKE_TORCH=words,
    )
    assert err == ""
    assert tags_of(joined)[TAG].startswith(f"no memory series: {reason}")
    assert series_of(joined) == {}


def test_torch_that_fails_is_left_alone(joined: Joined) -> None:
    give_fake_torch(joined)
    _, err = joined.run(
        "import radt, radt.run.torch_metrics, time, torch\n"
        "radt.run.torch_metrics.INTERVAL_S = 0.01\ntorch.use(0, 1)\n"
        "with radt.Run(torch=True) as run:\n"
        "    deadline = time.monotonic() + 180\n"
        "    while not torch.asked() and time.monotonic() < deadline: time.sleep(0.01)\n"
        "    time.sleep(0.1)\n"
        "    run.log_metric('loss', 1)\n",
        FAKE_TORCH="broken",
    )
    assert err.count("\n") == 1
    assert "on strike. Training goes on" in err
    assert asked(joined).count("stats 0") == 1
    assert "RuntimeError: the allocator is on strike" in tags_of(joined)[TAG]
    assert joined.found().values("loss") == [1]


@pytest.mark.parametrize(
    ("argument", "variable", "recorded"),
    [("", "", False), ("", "0", False), ("", "1", True), ("torch=False", "1", False)],
)
def test_it_is_the_users_choice(
    joined: Joined, argument: str, variable: str, recorded: bool
) -> None:
    give_fake_torch(joined)
    joined.run(
        f"import radt, torch\ntorch.use(0, 1)\nwith radt.Run({argument}): pass\n",
        RADT_TORCH=variable,
    )
    assert bool(series_of(joined)) == recorded


def test_series_of_a_script_alone(alone: Alone) -> None:
    """They reach the store with what they say of themselves."""
    give_fake_torch(alone)
    _, err = alone.run(
        "import radt, torch\ntorch.use(1, 7)\n"
        "with radt.Run(listeners='torch') as run:\n"
        "    for _ in run.epochs(1):\n"
        "        for batch in run.batches([[1, 2]] * 3): run.log_metric('loss', 1)\n"
    )
    assert err == ""
    (run,) = alone.reader.runs()
    series = {(s.listener, s.metric, s.entity): s for s in alone.reader.series([run.run_id])}
    allocated = series["torch", "torch.memory.allocated", "cuda:1"]
    assert (allocated.unit, allocated.scope) == ("By", Scope.PROCESS)
    assert series["torch", "torch.memory.retries", "cuda:1"].kind is SeriesKind.COUNTER
    assert series["torch", "torch.memory.allocated.peak", "cuda:1"].method
    step_time = series["steps", "step.time", ""]
    assert (step_time.unit, step_time.scope) == ("s", Scope.RUN)
    assert series["run", "samples_per_s", ""].unit == "1/s"
    assert series["run", "data_wait", ""].unit == "1"
    assert series["run", "loss", ""].unit == ""
    frame = radt.load(run.run_id, home=alone.home)
    assert list(frame[frame.metric == "step.time"].step) == [1, 2, 3]
    assert list(frame[frame.metric == "torch.memory.allocated"].value) == [7 * MIB]
