"""Blocks that end because their epochs or their time are used up."""

from __future__ import annotations

import pytest

from radt.run.limits import Limits
from tests.run.conftest import TIME_BEGINS, Alone, Joined

#: Long after any time limit of these tests, and never slept to its end unless the limit fails.
FOREVER_S = 300
#: The block is not left in mid-call: what is tested must end it.
PATIENT = "import radt, radt.run.limits, time\nradt.run.limits.GRACE_S = 60\n"


def test_loop_ends_after_its_epochs_and_what_follows_it_runs(joined: Joined) -> None:
    out, err = joined.run(
        "import radt\n"
        "with radt.Run() as run:\n"
        "    for epoch in run.epochs(90):\n"
        "        run.log_metric('loss', 1, epoch)\n"
        "    with run.span('evaluate'): run.log_metric('accuracy', 1)\n"
        "    print('saved')\n"
        "print('behind')\n",
        RADT_MAX_EPOCH="3",
    )
    assert out == "saved\nbehind\n"
    assert err == "radt: the run ends here: its limit of 3 epochs is reached\n"
    found = joined.found()
    assert found.steps("loss") == [1, 2, 3]
    assert found.values("accuracy") == [1]
    assert found.batches[0].tags == {"radt.limit": "3 epochs"}
    assert found.batches[0].epochs_total == 3
    assert sum(span.begin for span in found.batches[0].spans) == 4


def test_limit_that_cuts_nothing_off_says_nothing(joined: Joined) -> None:
    assert joined.run(
        "import radt\n"
        "with radt.Run(max_epoch=3, max_time_s=1e300) as run:\n"
        "    assert 'JournalWriter' in run.log_metric.__qualname__  # as quick\n"
        "    for epoch in run.epochs(3): run.log_metric('loss', 1, epoch)\n",
    ) == ("", "")
    found = joined.found()
    assert found.steps("loss") == [1, 2, 3]
    assert found.batches[0].tags == {}


def test_every_loop_of_a_block_has_the_same_epochs(joined: Joined) -> None:
    joined.run(
        "import radt\n"
        "with radt.Run() as run:\n"
        "    for epoch in run.epochs(5): run.log_metric('pretrain', 1, epoch)\n"
        "    for epoch in run.epochs(5): run.log_metric('train', 1, epoch)\n"
        "with radt.Run() as run:\n"
        "    for epoch in run.epochs(5, start=10): run.log_metric('again', 1, epoch)\n",
        RADT_MAX_EPOCH="2",
    )
    found = joined.found()
    steps = [found.steps(name) for name in ("pretrain", "train", "again")]
    assert steps == [[1, 2], [1, 2], [10, 11]]


@pytest.mark.parametrize("start", [0, 1, 51])
def test_epoch_beyond_the_limit_leaves_all_blocks(joined: Joined, start: int) -> None:
    out, _ = joined.run(
        "import radt, sys\n"
        "with radt.Run() as outer:\n"
        "    with radt.Run() as inner:\n"
        f"        for number in range({start}, 99):\n"
        "            try: inner.epoch(number)\n"
        "            except Exception: sys.exit('swallowed')\n"
        "            inner.epoch(number)\n"
        "            inner.log_metric('loss', 1, number)\n"
        "    sys.exit('the outer block went on')\n"
        "print('behind', radt.active_run() is not None)\n",
        RADT_MAX_EPOCH="2",
    )
    assert out == "behind True\n"
    found = joined.found()
    assert found.steps("loss") == [start, start + 1]
    assert found.batches[0].tags == {"radt.limit": "2 epochs"}
    begun = [span for span in found.batches[0].spans if span.begin]
    assert len(begun) == len(found.batches[0].spans) / 2


def test_lower_limit_of_script_and_runner_counts(joined: Joined) -> None:
    source = (
        "import radt\n"
        "with radt.Run(max_epoch=2) as run:\n"
        "    print(*run.epochs(9))\n"
    )  # fmt: skip
    assert joined.run(source, RADT_MAX_EPOCH="3")[0] == "1 2\n"
    assert joined.run(source, RADT_MAX_EPOCH="1")[0] == "1\n"


@pytest.mark.parametrize(
    "call", ["run.log_metric('late', 1)", "run.epoch(7)", "run.span('x').__enter__()", "work()"]
)
def test_whatever_is_called_after_the_time_leaves_the_block(joined: Joined, call: str) -> None:
    out, err = joined.run(
        TIME_BEGINS + PATIENT + "with radt.Run() as run:\n"
        "    run.log_metric('early', 1)\n"
        "    begins.set()\n"
        "    @run.span('work')\n"
        "    def work(): pass\n"
        f"    for _ in range({FOREVER_S * 50}):\n"
        f"        {call}\n"
        "        time.sleep(0.02)\n"
        "print('behind')\n",
        RADT_MAX_TIME_S="0.3",
    )
    assert out == "behind\n"
    assert err == "radt: the run ends here: its limit of 0.3 s is reached\n"
    found = joined.found()
    assert found.values("early") == [1]
    assert found.batches[0].tags == {"radt.limit": "0.3 s"}


def test_run_of_an_inner_block_ends_with_the_time_too(joined: Joined) -> None:
    out, _ = joined.run(
        PATIENT + "with radt.Run() as outer:\n"
        "    with radt.Run() as inner:\n"
        f"        for _ in range({FOREVER_S * 50}):\n"
        "            inner.log_metric('loss', 1)\n"
        "            time.sleep(0.02)\n"
        "    print('not here')\n"
        "print('behind')\n",
        RADT_MAX_TIME_S="0.3",
    )
    assert out == "behind\n"


def test_span_behind_the_block_is_not_refused(joined: Joined) -> None:
    out, _ = joined.run(
        PATIENT + "with radt.Run(max_time_s=0.1) as run:\n"
        "    @run.span('work')\n"
        "    def work(): return 'worked'\n"
        f"    for _ in range({FOREVER_S * 50}):\n"
        "        run.log_metric('loss', 1)\n"
        "        time.sleep(0.02)\n"
        "print(work())\n"
    )
    assert out == "worked\n"


def test_inner_block_after_the_time_ends_with_its_first_value(joined: Joined) -> None:
    out, _ = joined.run(
        PATIENT + "with radt.Run(max_time_s=0.1) as outer:\n"
        f"    for _ in range({FOREVER_S * 50}):\n"
        "        time.sleep(0.02)\n"
        "        with radt.Run() as inner: inner.log_metric('loss', 1)\n"
        "    print('not here')\n"
        "print('behind')\n"
    )
    assert out == "behind\n"


def test_loop_that_the_time_ended_lets_what_follows_it_log(joined: Joined) -> None:
    out, _ = joined.run(
        TIME_BEGINS + PATIENT + "with radt.Run(max_time_s=0.3) as run:\n"
        "    quick = run.log_metric\n"
        "    begins.set()\n"
        f"    for epoch in run.epochs({FOREVER_S * 50}): time.sleep(0.02)\n"
        "    run.log_metric('accuracy', 1)\n"
        "    assert run.log_metric is quick\n"
        "    with run.span('save'): pass\n"
        "    print(*run.epochs(5), 'saved')\n"
    )
    assert out == "saved\n"
    assert joined.found().values("accuracy") == [1]
    assert joined.found().batches[0].tags == {"radt.limit": "0.3 s"}


INTERRUPTED = (
    TIME_BEGINS
    + """\
import radt, radt.run.limits, sys, threading, time
radt.run.limits.GRACE_S = 0.2
with radt.Run(max_time_s=0.2) as run:
    try:
        begins.set()
        {work}
    except Exception:
        sys.exit("swallowed")
    finally:
        print("finally")
    sys.exit("not here")
print("behind")
"""
)


def test_block_that_calls_nothing_of_ours_is_left_in_mid_call(joined: Joined) -> None:
    out, _ = joined.run(
        INTERRUPTED.format(work=f"[time.sleep(0.02) for _ in range({FOREVER_S * 50})]")
    )
    assert out == "finally\nbehind\n"
    assert joined.found().batches[0].tags == {"radt.limit": "0.2 s"}


def test_block_of_another_thread_is_not_interrupted(joined: Joined) -> None:
    out, _ = joined.run(
        TIME_BEGINS + "import radt, radt.run.limits, threading\n"
        "radt.run.limits.GRACE_S = 0.0\n"
        "refused = threading.Event()\n"
        "def train():\n"
        "    with radt.Run(max_time_s=0.1) as run:\n"
        "        limit = next(t for t in threading.enumerate() if t.name == 'radt limit')\n"
        "        begins.set()\n"
        "        limit.join()\n"
        "        print('went on')\n"
        "thread = threading.Thread(target=train)\n"
        "thread.start(); thread.join()\n"
    )
    assert out == "went on\n"


def test_nothing_is_thrown_behind_a_block_that_ended_in_time(joined: Joined) -> None:
    out, _ = joined.run(
        "import radt, radt.run.limits, threading\n"
        "radt.run.limits.GRACE_S = 0.0\n"
        # It has ended in time also where the script was held up in it.
        "with radt.Run(max_time_s=60) as run:\n"
        "    limit = next(t for t in threading.enumerate() if t.name == 'radt limit')\n"
        "limit.join()\n"
        "print('behind', sum(range(1000)))\n"
    )
    assert out == "behind 499500\n"
    assert joined.found().batches == [] or joined.found().batches[0].tags == {}


def test_other_threads_and_forked_workers_log_on_after_the_time(joined: Joined) -> None:
    out, _ = joined.run(
        "import os, radt, radt.run.limits, threading\n"
        "radt.run.limits.GRACE_S = 180\n"
        "with radt.Run(max_time_s=0.05) as run:\n"
        "    limit = next(t for t in threading.enumerate() if t.name == 'radt limit')\n"
        "    while not run._instruments.watch._time_over: limit.join(0.01)\n"
        "    thread = threading.Thread(target=lambda: run.log_metric('thread', 1))\n"
        "    thread.start(); thread.join()\n"
        "    if os.fork() == 0:\n"
        "        run.log_metric('fork', 1)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "print('behind')\n"
    )
    assert out == "behind\n"
    found = joined.found()
    logged = [column.name for batch in found.batches for column in batch.scalars]
    assert sorted(logged) == ["fork", "thread"]
    assert found.batches[0].tags == {}  # the block was left before anything was refused


def test_failure_after_the_limit_is_a_failure(joined: Joined) -> None:
    _, err = joined.run(
        "import radt\n"
        "with radt.Run(max_epoch=1) as run:\n"
        "    for epoch in run.epochs(2): pass\n"
        "    raise RuntimeError('no space')\n",
        code=1,
    )
    assert err.endswith("RuntimeError: no space\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [("RADT_MAX_EPOCH", "0"), ("RADT_MAX_EPOCH", "x"), ("RADT_MAX_TIME_S", "-1"),
     ("RADT_MAX_TIME_S", "nan")],
)  # fmt: skip
def test_limit_that_is_none_is_said_and_ignored(joined: Joined, name: str, value: str) -> None:
    out, err = joined.run(
        "import radt\nwith radt.Run() as run: print(*run.epochs(2))\n", **{name: value}
    )
    assert out == "1 2\n"
    assert err == f"radt: {name}={value} is not a valid limit and is ignored\n"


@pytest.mark.parametrize("limit", ["max_epoch=0", "max_time_s=0", "max_time_s=float('inf')"])
def test_limit_of_the_script_that_is_none_is_an_error(joined: Joined, limit: str) -> None:
    _, err = joined.run(f"import radt\nradt.Run({limit})\n", code=1)
    assert "radt.errors.UsageError" in err


def test_switched_off_there_are_no_limits(joined: Joined) -> None:
    out, err = joined.run(
        "import radt\nwith radt.Run() as run: print(*run.epochs(3))\n",
        RADT_MODE="off",
        RADT_MAX_EPOCH="1",
    )
    assert (out, err) == ("1 2 3\n", "")


@pytest.mark.parametrize("first", [0, 1])
def test_original_benchmark_ends_with_the_epoch_it_logs(joined: Joined, first: int) -> None:
    out, _ = joined.run(
        "from radt import RADTBenchmark\n"
        "with RADTBenchmark() as run:\n"
        "    run.log_metric('no epoch', 1)\n"
        f"    for epoch in range({first}, 99):\n"
        "        run.log_metrics({'loss': 1}, epoch)\n"
        "        run.log_metric('accuracy', 1, epoch=epoch)\n"
        "    print('not here')\n"
        "print('behind')\n",
        RADT_MAX_EPOCH="2",
    )
    assert out == "behind\n"
    found = joined.found()
    assert found.steps("loss") == found.steps("accuracy") == [first, first + 1]
    assert found.steps("no epoch") == [0]


def test_functions_without_a_block_have_no_limits(joined: Joined) -> None:
    joined.run(
        "import radt\n"
        "for epoch in range(4): radt.log_metric('loss', 1, epoch=epoch)\n"
        "for epoch in radt.active_run().epochs(3): radt.log_metric('more', 1, epoch)\n",
        RADT_MAX_EPOCH="1",
        RADT_MAX_TIME_S="0.001",
    )
    assert joined.found().steps("loss") == [0, 1, 2, 3]
    assert joined.found().steps("more") == [1, 2, 3]


def test_run_alone_that_ends_at_its_limit_is_finished(alone: Alone) -> None:
    out, _ = alone.run(
        "import radt\n"
        "with radt.Run(listeners='none', max_epoch=1) as run:\n"
        "    run.epoch(1)\n"
        "    run.epoch(2)\n"
        "print('behind')\n"
    )
    assert out == "behind\n"
    (run,) = alone.reader.runs()
    assert run.status == "FINISHED"
    assert alone.reader.tags_of([run.run_id])[run.run_id]["radt.limit"] == "1 epoch"


def test_which_limit_is_reached_is_told_where_nothing_is_raised() -> None:
    limits = Limits(max_epoch=2, max_time_s=60)
    assert limits.reached(epochs=1, time_s=59.0) == ""
    assert limits.reached(epochs=2, time_s=0.0) == "2 epochs"
    assert limits.reached(epochs=1, time_s=60.0) == "1 min"
    assert Limits().reached(epochs=99, time_s=1e9) == ""
