"""Traces of PyTorch's profiler: which there are, that they are whole, and their clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radt.errors import UsageError
from radt.run.torch_options import TraceOptions
from tests.run.conftest import Alone, Joined
from tests.run.torch_support import asked, give_fake_torch, names, reports, traces

PROBLEM = "radt.profiler_problem"
STEPS = "for batch in run.batches([[1]] * 3): pass"
NOTHING_SAID = "the script has not said when its epochs begin"


def trace(joined: Joined, body: str, options: str = "", **env: str) -> tuple[str, str]:
    """Run the body of a block under torchprof with the fake torch; standard output and error."""
    give_fake_torch(joined)
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return joined.run(
        f"import os, radt, threading, torch\nwith radt.Run() as run:\n{lines}"
        "    run.log_metric('loss', 1)\nprint('behind')\n",
        RADT_TORCHPROF=str(reports(joined)),
        RADT_TORCHPROF_OPTIONS=options,
        **env,
    )


def problem(joined: Joined) -> str:
    (batch,) = joined.found().batches
    return batch.tags.get(PROBLEM, "")


#: What a script does, with which options, and what is traced of it.
CASES = [
    ("for epoch in run.epochs(3): pass", "", ["epoch-2"]),
    ("for epoch in run.epochs(1): pass", "", ["epoch-1"]),
    ("for epoch in run.epochs(3, start=0): pass", "", ["epoch-1"]),
    ("for number in (5, 6, 7): run.epoch(number)", "", ["epoch-6"]),
    ("for epoch in run.epochs(4): pass", "epochs=1,3-4", ["epoch-1", "epoch-3", "epoch-4"]),
    ("for epoch in run.epochs(4): pass", "epochs=0-1:stack", ["epoch-1"]),
    ("for epoch in run.epochs(4):\n    if epoch == 2: break", "", ["epoch-2"]),
    ("with run.profile(): pass\nwith run.profile(): pass", "", ["profile"]),
    ("with run.profile():\n    for epoch in run.epochs(3): pass", "", ["profile"]),
    ("for epoch in run.epochs(4, profile=1): pass", "", ["profile"]),
    ("for epoch in run.epochs(4, profile=4): pass", "", ["epoch-2"]),
    ("for epoch in run.epochs(4, profile=4): pass", "epochs=3", ["epoch-3"]),
    ("for _ in range(5): run.step(1)", "", ["steps"]),
    ("for _ in range(5): run.step(1)\nfor epoch in run.epochs(3): pass", "", ["steps"]),
    (STEPS, "", ["steps"]),
    ("for _ in 'ab':\n    for epoch in run.epochs(2): pass", "epochs=1", ["epoch-1", "epoch-1-2"]),
]


def test_what_is_traced(joined: Joined) -> None:
    give_fake_torch(joined)
    (joined.folder / "cases.json").write_text(json.dumps(CASES))
    _, err = joined.run(
        "import json, os, radt, torch\n"
        "for number, (body, options, _) in enumerate(json.load(open('cases.json'))):\n"
        "    os.environ['RADT_TORCHPROF'] = f\"{os.environ['REPORTS']}/{number}\"\n"
        "    os.environ['RADT_TORCHPROF_OPTIONS'] = options\n"
        "    with radt.Run() as run: exec(body, {'run': run})\n",
        REPORTS=str(reports(joined)),
    )
    assert err == ""
    for number, (body, options, expected) in enumerate(CASES):
        found = traces(reports(joined) / str(number))
        assert set(found) == {f"torch-{name}.json.gz" for name in expected}, (body, options)
        for one in found.values():
            assert names(one)[0] == names(one)[-1] == "radt.clock"
            assert names(one).count("radt.clock") == len(one["radt_clock"]["monotonic_ns"]) == 2
            assert one["radt_clock"]["run_id"] == "0123456789abcdef"
    assert problem(joined) == ""
    # Nothing is left of what was on its way.
    assert {path.name for path in joined.run_dir.path.iterdir()} == {"journal", "artifacts"}


def test_options_reach_the_profiler(joined: Joined) -> None:
    trace(joined, "for epoch in run.epochs(2): pass", "epochs=1-2:shapes:stack", FAKE_TORCH="cpu")
    assert asked(joined) == ["profile cpu shapes stack", "stop"] * 2
    (joined.folder / "asked.txt").unlink()
    trace(joined, "for epoch in run.epochs(2): pass", "memory")
    assert asked(joined) == ["profile cpu+cuda memory", "stop"]


@pytest.mark.parametrize("loop", [STEPS, "for _ in range(3): run.step(1)"])
def test_steps_are_told_apart(joined: Joined, loop: str) -> None:
    trace(joined, f"for epoch in run.epochs(2):\n    {loop}")
    (one,) = traces(reports(joined)).values()
    steps = [name for name in names(one) if name.startswith("ProfilerStep")]
    first = 4 if "batches" in loop else 5  # without a loop nobody knows when the first one begins
    assert steps == [f"ProfilerStep#{number}" for number in range(first, 8)]


def test_trace_of_a_long_epoch_ends_early(joined: Joined) -> None:
    body = f"for epoch in run.epochs(2):\n    {STEPS}\n    print(len(torch.asked()))"
    out, _ = trace(joined, body, "epochs=2:steps=2")
    assert out == "0\n2\nbehind\n"  # it has stopped before the epoch ends
    (one,) = traces(reports(joined)).values()
    assert "ProfilerStep#5" in names(one)
    assert "ProfilerStep#6" not in names(one)


def test_ranks_have_files_of_their_own(joined: Joined) -> None:
    for rank in ("0", "1"):
        trace(joined, "for epoch in run.epochs(2): pass", RANK=rank, WORLD_SIZE="2")
    found = traces(reports(joined))
    assert [*found] == ["torch-epoch-2-rank-1.json.gz", "torch-epoch-2.json.gz"]
    assert [one["radt_clock"]["process"] for one in found.values()] == ["rank 1", ""]


@pytest.mark.parametrize(
    ("words", "body", "reason"),
    [
        ("nostart", "for epoch in run.epochs(3): pass", "CUPTI is on strike"),
        ("noexport", "for epoch in run.epochs(3): pass", "the disk is on strike"),
        ("nosteps", f"for epoch in run.epochs(3):\n    {STEPS}", "no such thing"),
    ],
)
def test_profiler_that_fails_ends_no_training(
    joined: Joined, words: str, body: str, reason: str
) -> None:
    out, err = trace(joined, body, "epochs=1-3", FAKE_TORCH=words)
    assert out == "behind\n"
    assert err.count("\n") == 1
    assert reason in err
    assert reason in problem(joined)
    assert traces(reports(joined)) == {}
    assert {path.name for path in joined.run_dir.path.iterdir()} == {"journal", "artifacts"}
    assert joined.found().values("loss") == [1]
    # What was started is stopped, and not tried again.
    calls = [call.split()[0] for call in asked(joined)]
    assert calls in (["profile"], ["profile", "stop"])
    assert calls[1:] == ([] if words == "nostart" else ["stop"])


def test_folder_that_cannot_be_made_ends_no_training(joined: Joined) -> None:
    reports(joined).write_text("in the way")
    out, err = trace(joined, "for epoch in run.epochs(2): pass")
    assert out == "behind\n"
    assert "torchprof does not work" in err
    assert {path.name for path in joined.run_dir.path.iterdir()} == {"journal", "artifacts"}


def test_nothing_is_half_written(joined: Joined) -> None:
    give_fake_torch(joined)
    reports(joined).mkdir()
    joined.run(
        "import radt, torch\nwith radt.Run() as run:\n    for epoch in run.epochs(3): pass\n",
        code=-9,
        RADT_TORCHPROF=str(reports(joined)),
        FAKE_TORCH="killed",
    )
    assert [*reports(joined).iterdir()] == []


@pytest.mark.parametrize(
    ("body", "options", "reason"),
    [
        ("pass", "", NOTHING_SAID),
        ("for epoch in run.epochs(3): pass", "epochs=7", "has had 3 epochs, and none of those"),
    ],
)
def test_no_trace_is_said(joined: Joined, body: str, options: str, reason: str) -> None:
    out, err = trace(joined, body, options)
    assert out == "behind\n"
    assert err.startswith("radt: torchprof wrote no trace: ")
    assert reason in err
    assert reason in problem(joined)


def test_script_without_torch_is_said(joined: Joined) -> None:
    _, err = joined.run(
        "import radt, sys\nwith radt.Run() as run:\n    for epoch in run.epochs(3): pass\n"
        "assert 'torch' not in sys.modules\n",
        RADT_TORCHPROF=str(reports(joined)),
    )
    assert "torchprof wrote no trace: the script has not imported torch" in err


def test_trace_ends_with_its_block(joined: Joined) -> None:
    """Also if an exception keeps the loop open, and in a thread of its own there is none."""
    body = (
        "def other():\n    run.step(1); run.step(1)\n"
        "thread = threading.Thread(target=other)\nthread.start(); thread.join()\n"
        "for epoch in run.epochs(3):\n    if epoch == 2: raise SystemExit(0)"
    )
    assert trace(joined, body) == ("", "")
    assert [*traces(reports(joined))] == ["torch-epoch-2.json.gz"]


@pytest.mark.parametrize(
    "word",
    ["epochs=", "epochs=a", "epochs=3-2", "epochs=1,", "steps=0", "steps=x", "stack=1", "flops"],
)
def test_options_that_make_no_sense(word: str) -> None:
    with pytest.raises(UsageError):
        TraceOptions.parse(Path(), [word])


def test_options_of_a_runner_that_make_no_sense_are_left_out(joined: Joined) -> None:
    _, err = trace(joined, "for epoch in run.epochs(2): pass", "epochs=0-0:flops")
    assert err.startswith("radt: torchprof uses its defaults: ")
    assert [*traces(reports(joined))] == ["torch-epoch-2.json.gz"]


def test_options_of_a_script_that_make_no_sense_are_its_mistake(alone: Alone) -> None:
    _, err = alone.run("import radt\nwith radt.Run(listeners='torchprof:flops'): pass", code=1)
    assert "'flops' is not an option of torchprof" in err
    assert not alone.home.exists()


REAL = """\
import radt, time, torch
model = torch.nn.Linear(4, 2)
with radt.Run({arguments}) as run:
    for epoch in run.epochs(2):
        for batch in run.batches([torch.randn(8, 4) for _ in range(3)]):
            model(batch).sum().backward()
        before_ns = time.monotonic_ns()
        with torch.profiler.record_function("in between"):
            after_ns = time.monotonic_ns()
    print(before_ns, after_ns)
"""


def marks(one: dict[str, Any], name: str) -> list[float]:
    return sorted(
        event["ts"]
        for event in one["traceEvents"]
        if event.get("ph") == "X"
        and event.get("name") == name
        and event.get("cat") == "user_annotation"
    )


def test_real_torch_and_its_clock(alone: Alone) -> None:
    """A time in the trace, brought to the monotonic clock, is what the script saw there."""
    pytest.importorskip("torch")
    out, err = alone.run(REAL.format(arguments="listeners='torchprof:shapes'"))
    assert "radt:" not in err
    before_ns, after_ns = map(int, out.splitlines()[-1].split())
    (run,) = alone.reader.runs()
    assert alone.reader.tags(run.run_id)["radt.profiled"] == "torchprof"
    found = traces(Path(run.spool) / "artifacts" / "profiles")
    assert [*found] == ["torch-epoch-2.json.gz"]
    (one,) = found.values()
    clock = one["radt_clock"]
    assert clock["marker"] == "radt.clock"
    first_us, last_us = marks(one, "radt.clock")
    (seen_us,) = marks(one, "in between")
    first_ns, last_ns = clock["monotonic_ns"]
    slack_ns = max(clock["uncertainty_ns"]) + 1_000_000  # PyTorch calibrates its clock once
    mapped_ns = first_ns + (seen_us - first_us) * 1000
    assert before_ns - slack_ns <= mapped_ns <= after_ns + slack_ns
    assert abs((last_us - first_us) * 1000 - (last_ns - first_ns)) < slack_ns
    assert {"ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"} <= set(names(one))
    assert any(name.startswith("aten::") for name in names(one))
    assert "Input Dims" in json.dumps(one["traceEvents"])


@pytest.mark.long
def test_real_torch_whose_profiler_is_taken(joined: Joined) -> None:
    """A script that profiles itself goes on doing so."""
    pytest.importorskip("torch")
    _, err = joined.run(
        "import radt, torch\n"
        "with torch.profiler.profile() as own, radt.Run() as run:\n"
        "    for epoch in run.epochs(2): torch.ones(2) + 1\n"
        "assert 'aten::add' in {event.key for event in own.key_averages()}\n",
        RADT_TORCHPROF=str(reports(joined)),
    )
    assert "the script has a profiler of its own on" in err
    assert traces(reports(joined)) == {}
    assert "profiler of its own" in problem(joined)
