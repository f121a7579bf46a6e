"""The range that profilers record, as NVIDIA's tools and the run see it."""

from __future__ import annotations

import pytest

from tests.run.conftest import Joined
from tests.run.torch_support import asked, give_fake_torch

RANGES = """\
import radt
{imports}
with radt.Run() as run:
    with run.profile() as entered:
        print("inside")
    @run.profile()
    def work():
        return 5
    assert work() == 5
    for epoch in run.epochs(3, profile=2): pass
    for epoch in run.epochs(4, profile=range(2, 4)): pass
    try:
        with run.profile():
            raise KeyError
    except KeyError: pass
"""

#: The package nvtx, as far as it is used.
NVTX = """\
from pathlib import Path
def _note(text):
    with Path("asked.txt").open("a") as file: file.write(text + " 0\\n")
def push_range(message): _note("package push " + message)
def pop_range(): _note("package pop")
"""


def ranges(joined: Joined) -> list[tuple[str, int | None, bool]]:
    """Begins and ends of epochs and of spans called profile."""
    return [
        (event.name, event.step, event.begin)
        for batch in joined.found().batches
        for event in batch.spans
    ]


def test_range_of_cuda_and_of_the_run(joined: Joined) -> None:
    give_fake_torch(joined)
    assert joined.run(RANGES.format(imports="import torch")) == ("inside\n", "")
    assert asked(joined) == ["push profile", "pop profile"] * 6
    spans = ranges(joined)
    assert spans.count(("profile", None, True)) == spans.count(("profile", None, False)) == 6
    first_epochs = spans[4:12]  # behind the block and the call
    assert first_epochs == [
        ("epoch", 1, True),
        ("epoch", 1, False),
        ("epoch", 2, True),
        ("profile", None, True),
        ("profile", None, False),
        ("epoch", 2, False),
        ("epoch", 3, True),
        ("epoch", 3, False),
    ]


@pytest.mark.parametrize("words", ["", "cpu"])
def test_without_cuda_the_package_serves(joined: Joined, words: str) -> None:
    give_fake_torch(joined)
    (joined.folder / "nvtx.py").write_text(NVTX)
    imports = "import torch" if words else ""
    assert joined.run(RANGES.format(imports=imports), FAKE_TORCH=words) == ("inside\n", "")
    assert asked(joined) == ["package push profile", "package pop"] * 6


def test_without_either_it_is_a_span(joined: Joined) -> None:
    assert joined.run(RANGES.format(imports="")) == ("inside\n", "")
    assert ranges(joined).count(("profile", None, True)) == 6


@pytest.mark.parametrize("broken", ["torch", "package"])
def test_what_is_broken_ends_no_training(joined: Joined, broken: str) -> None:
    give_fake_torch(joined)
    if broken == "package":
        (joined.folder / "nvtx.py").write_text("raise OSError('no library')")
    imports = "import torch" if broken == "torch" else ""
    out, err = joined.run(RANGES.format(imports=imports), FAKE_TORCH="broken")
    assert out == "inside\n"
    assert err.startswith("radt: ")
    assert err.count("\n") == 1
    assert ranges(joined).count(("profile", None, False)) == 6


def test_range_that_another_thread_leaves_stays_in_its_stack(joined: Joined) -> None:
    give_fake_torch(joined)
    _, err = joined.run(
        "import radt, threading, torch\n"
        "with radt.Run() as run:\n"
        "    range_ = run.profile().__enter__()\n"
        "    thread = threading.Thread(target=range_.__exit__)\n"
        "    thread.start(); thread.join()\n"
    )
    assert (asked(joined), err) == (["push profile"], "")
    assert ranges(joined) == [("profile", None, True), ("profile", None, False)]


def test_span_is_used_again_and_ends_once_in_its_own_process(joined: Joined) -> None:
    joined.run(
        "import os, radt\n"
        "with radt.Run() as run:\n"
        "    work = run.span('work')\n"
        "    for _ in range(2):\n"
        "        with work:\n"
        "            if os.fork() == 0:\n"
        "                work.end()\n"
        "                os._exit(0)\n"
        "            os.wait()\n"
        "        work.end()\n"
    )
    assert ranges(joined) == [("work", None, True), ("work", None, False)] * 2
