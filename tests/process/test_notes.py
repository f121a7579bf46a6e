"""What people say of a run is found by searches and, after the next delivery, is in MLflow."""

from __future__ import annotations

import pytest

from tests.support.bench import Bench
from tests.support.waiting import wait_until


@pytest.mark.mlflow
def test_notes_follow_a_run_that_was_delivered_into_mlflow(bench: Bench) -> None:
    bench.script("train.py", "import radt\nwith radt.Run() as run:\n    run.set_tag('team', 'a')\n")
    bench.radt("train.py")
    bench.wait_delivered()
    (run,) = bench.reader.runs()

    said = (
        "--name",
        "baseline",
        "--text",
        "*good*",
        "--tag",
        "seen=yes",
        "--tag",
        "team=",
        "--star",
    )
    shown = bench.shown("note", run.run_id[:8], *said)
    assert shown.splitlines() == [f"{run.run_id[:8]}  baseline  ★", "  *good*", "  seen=yes"]
    bench.radt("sync")

    assert run.mlflow_run_id is not None

    def delivered() -> bool:
        there = bench.mlflow.get_run(str(run.mlflow_run_id))
        told = {key: there.data.tags.get(key) for key in ("mlflow.note.content", "seen", "team")}
        return there.info.run_name == "baseline" and told == {
            "mlflow.note.content": "*good*",
            "seen": "yes",
            "team": "",
        }

    wait_until(delivered, "MLflow has the notes")
    assert bench.shown("ls", "starred=yes", "-archived=yes", "name=baseline").count("baseline")
    assert "baseline" not in bench.shown("ls", "-starred=yes")

    bench.shown("note", run.run_id, "--archive")
    assert "baseline" not in bench.shown("ls")
    assert "baseline" in bench.shown("ls", "archived=yes")
