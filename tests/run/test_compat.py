"""Scripts written for the original radT."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import radt
from tests.run.conftest import Joined

ORIGINAL = """\
import radt, radt.run
from radt.run import RADTBenchmark

def train(benchmark):
    with benchmark() as run:
        run.log_param("lr", 0.1)
        for epoch in range(3):
            run.log_metric("loss", 1 / (epoch + 1), epoch)
            run.log_metrics({"accuracy": epoch / 3}, epoch=epoch)
        run.log_metric("no epoch", 5)

train(RADTBenchmark)
train(radt.RADTBenchmark)
train(radt.run.RADTBenchmark)
radt.log_metric("manual", 1, epoch=4)
radt.log_metrics({"manual": 2}, 5)
radt.shutdown()
"""


def test_inside_a_run(joined: Joined) -> None:
    assert joined.run(ORIGINAL) == ("", "")
    found = joined.found()
    assert found.steps("loss") == [0, 1, 2] * 3
    assert found.steps("accuracy") == [0, 1, 2] * 3
    assert found.steps("no epoch") == [0] * 3
    assert found.values("manual") == [1, 2]
    assert found.steps("manual") == [4, 5]
    assert found.batches[0].params == {"lr": "0.1"}


@pytest.mark.parametrize("mode", ["", "off"])
def test_outside_of_one_nothing_happens(joined: Joined, mode: str) -> None:
    for name in ("RADT_RUN_ID", "RADT_RUN_DIR"):
        joined.env.pop(name)
    source = ORIGINAL.replace(
        '        run.log_param("lr", 0.1)\n',
        '        run.log_param("lr", 0.1)\n'
        "        run.log_figure(1, 2)\n"
        "        run.autolog()\n"
        "        assert run.run_id is None\n",
    )
    source += "import sys; assert 'mlflow' not in sys.modules\n"
    assert joined.run(source, RADT_MODE=mode) == ("", "")
    assert [path.name for path in joined.folder.iterdir()] == ["script0.py"]


def test_inside_a_run_of_the_scripts_own(joined: Joined) -> None:
    joined.run(
        "import radt\n"
        "with radt.Run() as run, radt.RADTBenchmark() as old:\n"
        "    old.log_metric('loss', 1, 2)\n"
        "    run.log_metric('loss', 2, 3)\n"
    )
    assert joined.found().values("loss") == [1, 2]


def test_public_names_are_complete_sorted_and_there() -> None:
    names = [name for name in radt.__all__ if not name.startswith("_")]
    assert names == sorted(names)
    assert set(radt.__all__) <= set(dir(radt))
    for name in radt.__all__:
        assert getattr(radt, name) is not None
    assert callable(radt.load)
    with pytest.raises(AttributeError, match="nonsense"):
        radt.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_load_is_the_function_whoever_imports_its_module() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import radt.load, radt; import radt.load as m; from radt.load import load; "
            "assert radt.load is load",
        ],
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.long
def test_type_checkers_see_the_public_names(tmp_path: Path) -> None:
    script = tmp_path / "typed.py"
    script.write_text(
        "import radt\n"
        "with radt.Run('a', listeners=['top']) as run:\n"
        "    reveal_type(run)\n"
        "    run.log_metric('a', 1, 2)\n"
        "    run.log_metric('a', 'b')\n"
        "    run.log_figure(1)\n"
        "reveal_type(radt.active_run())\n"
        "radt.nonsense\n"
        "with radt.run.RADTBenchmark() as old: old.log_metric('a', 1.0, 3)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        # In the project's folder, where `make check` has left a cache: 2 s rather than 25.
        [sys.executable, "-m", "mypy", script],
        cwd=Path(radt.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line.split(": ", 1)[0].rpartition(":")[2] + " " + line.split(": ", 1)[1]
             for line in done.stdout.splitlines() if "typed.py:" in line]  # fmt: skip
    assert [line.split(" ")[:2] for line in found] == [
        ["3", "note:"],
        ["5", "error:"],
        ["7", "note:"],
        ["8", "error:"],
    ], done.stdout + done.stderr
    assert "radt.run.run.Run" in found[0]
    assert "radt.run.run.Run | None" in found[2]
