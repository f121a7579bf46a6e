"""Children and ranks: each writes a journal of its own into the one run."""

from __future__ import annotations

import pytest

from tests.run.conftest import Joined

WORKERS = """\
import multiprocessing, os, radt, sys

def work(run, number):
    for step in range(100):
        run.log_metric("child", number, step)
    radt.log_metric("module", number)

if __name__ == "__main__":
    with radt.Run() as run:
        run.log_metric("parent", 0)
        context = multiprocessing.get_context(sys.argv[1])
        workers = [context.Process(target=work, args=(run, n)) for n in range(3)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        run.log_metric("parent", 1)
"""


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(joined: Joined, method: str) -> None:
    assert joined.run(WORKERS, method) == ("", "")
    found = joined.found()
    assert found.values("parent") == [0, 1]
    assert found.processes == {"", "child 1", "child 2", "child 3"}
    logged = sorted(found.values("child", f"child {n}")[0] for n in (1, 2, 3))
    assert logged == [0, 1, 2]
    for child in ("child 1", "child 2", "child 3"):
        assert found.steps("child", child) == list(range(100))
        assert found.values("module", child) == found.values("child", child)[:1]


def test_data_loader_workers(joined: Joined) -> None:
    joined.run(
        "import radt, torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Squares(Dataset):\n"
        "    def __init__(self, run): self.run = run\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, i):\n"
        "        self.run.log_metric('loaded', i, i)\n"
        "        return torch.tensor(i * i)\n"
        "with radt.Run() as run:\n"
        "    for _ in run.epochs(2):\n"
        "        for batch in DataLoader(Squares(run), batch_size=5, num_workers=2):\n"
        "            run.log_metric('batch', batch.float().mean())\n"
    )
    found = joined.found()
    assert len(found.values("batch")) == 16
    children = found.processes - {""}
    assert children == {f"child {n}" for n in (1, 2, 3, 4)}
    loaded = sorted(step for child in children for step in found.steps("loaded", child))
    assert loaded == sorted([*range(40)] * 2)


def test_child_that_leaves_the_block_does_not_end_the_parents(joined: Joined) -> None:
    joined.run(
        "import os, radt\n"
        "with radt.Run() as run:\n"
        "    for epoch in run.epochs(1):\n"
        "        child = os.fork()\n"
        "        if not child: break\n"
        "        os.waitpid(child, 0)\n"
        "        run.log_metric('loss', 1)\n"
        "    if not child: run.log_metric('loss', 2)\n"
    )
    found = joined.found()
    assert found.values("loss") == [1]
    assert found.values("loss", "child 1") == [2]
    # The child came out of the loop too, and the epoch is its parent's.
    assert [(span.process, span.begin) for span in found.batches[0].spans] == [
        ("", True),
        ("", False),
    ]


def test_ranks_of_torchrun(joined: Joined) -> None:
    (joined.folder / "rank.py").write_text(
        "import os, radt\n"
        "with radt.Run() as run:\n"
        "    run.log_metric('loss', int(os.environ['RANK']))\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        run.log_metric('child', int(os.environ['RANK']))\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n",
        encoding="utf-8",
    )
    joined.run(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone',"
        " '--nproc-per-node=3', 'rank.py'], check=True)\n"
    )
    found = joined.found()
    for rank, (process, child) in enumerate(
        [("", "child 1"), ("rank 1", "rank 1 child 1"), ("rank 2", "rank 2 child 1")]
    ):
        assert found.values("loss", process) == [rank]
        assert found.values("child", child) == [rank]


def test_other_scripts_started_by_a_script_join_it(joined: Joined) -> None:
    (joined.folder / "other.py").write_text(
        "import radt\nwith radt.Run() as run: run.log_metric('other', 1)\n", encoding="utf-8"
    )
    joined.run(
        "import radt, subprocess, sys\n"
        "with radt.Run() as run:\n"
        "    run.log_metric('loss', 1)\n"
        "    subprocess.run([sys.executable, 'other.py'], check=True)\n"
    )
    found = joined.found()
    assert found.values("loss") == [1]
    assert found.values("other", "child 1") == [1]


def test_script_that_replaces_itself_stays_the_same(joined: Joined) -> None:
    joined.run(
        "import os, radt, sys\n"
        "with radt.Run() as run:\n"
        "    run.log_metric('loss', len(sys.argv))\n"
        "    if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
    )
    # Two journals, read in no order; the store sorts by time.
    assert sorted(joined.found().values("loss")) == [1, 2]
