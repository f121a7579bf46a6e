"""Studies of the folder ``experiments``, run small in a folder as a user has it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, bench_in

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path, columns=80, with_mlflow=False) as made:
        yield made


@pytest.fixture
def finish(bench: Bench) -> Callable[..., None]:
    """Run some workloads of a study on two cores, with ``new`` for ``old`` in their rows."""

    def finish(study: str, workloads: str, rows: int, old: str = "", new: str = "") -> None:
        for script in (FOLDER / study).glob("*.py"):
            shutil.copy(script, bench.folder)
        lines = (FOLDER / study / "cpu.csv").read_text(encoding="utf-8").splitlines()
        wanted = re.compile(rf"Experiment |[^,]*, ({workloads}) *,")
        text = "\n".join(line for line in lines if wanted.match(line)) + "\n"
        assert text.count("\n") == rows + 1
        file = bench.experiment(text.replace(old, new) if old else text)
        bench.radt("experiment.csv", "--quiet")
        assert [row["Status"] for row in bench.rows(file)] == ["FINISHED"] * rows

    return finish
