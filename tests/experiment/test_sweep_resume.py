"""The next start of a sweep finds its runs by their parameters, and their workloads whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.errors import StatusError
from radt.experiment.devices import Machine
from radt.experiment.status import RowStatus
from radt.listeners.api import Registry
from radt.model import RunStatus
from tests.experiment.sweep_kit import SMALL, SweepBench

A, B, C, D = (f"--lr {lr} --bs {bs}" for lr in ("0.1", "0.01") for bs in (32, 64))


@pytest.fixture
def sweep(folder: Path, cpu_only: Machine, registry: Registry) -> SweepBench:
    return SweepBench(folder / "sweep.yaml", cpu_only, registry).write(SMALL)


def states(sweep: SweepBench) -> dict[str, str]:
    return {params: str(run.status or "") for params, run in sweep.runs().items()}


def test_reordering_changes_nothing(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED", D: "FAILED: exit code 1"})

    sweep.write(
        sweep.text.replace("[0.1, 0.01]", "[0.01, 0.10]").replace(
            "- 32\n      - 64", "- 64\n      - 32"
        )
    )
    assert states(sweep) == {D: "FAILED", C: "", B: "", A: "FINISHED"}

    swapped = sweep.text.replace("  lr:", "  x:").replace("  bs:", "  lr:").replace("  x:", "  bs:")
    swapped = swapped.replace("[0.01, 0.10]", "[64, 32]").replace(
        "- 64\n      - 32", "- 0.01\n      - 0.1"
    )
    sweep.write(swapped)
    assert states(sweep) == {
        "--bs 64 --lr 0.01": "FAILED",
        "--bs 64 --lr 0.1": "",
        "--bs 32 --lr 0.01": "",
        "--bs 32 --lr 0.1": "FINISHED",
    }


def test_values_that_are_added_are_all_that_is_left_to_run(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED", B: "FINISHED", C: "FINISHED", D: "FINISHED"})
    numbers = {params: run.workload for params, run in sweep.runs().items()}

    sweep.write(sweep.text.replace("[0.1, 0.01]", "[0.5, 0.1, 0.01]"))

    assert states(sweep) == {
        "--lr 0.5 --bs 32": "",
        "--lr 0.5 --bs 64": "",
        **dict.fromkeys((A, B, C, D), "FINISHED"),
    }
    runs = sweep.runs()
    assert {params: runs[params].workload for params in numbers} == numbers
    assert [runs[f"--lr 0.5 --bs {bs}"].workload for bs in (32, 64)] == ["004", "005"]


def test_values_that_come_back_were_not_forgotten(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED", C: "FINISHED"})
    before = sweep.text

    sweep.write(before.replace("[0.1, 0.01]", "[0.01]"))
    assert states(sweep) == {C: "FINISHED", D: ""}
    sweep.record({D: "FINISHED"})
    sweep.write(sweep.text.replace("[0.01]", "[0.1, 0.01]"))

    assert states(sweep) == {A: "FINISHED", B: "", C: "FINISHED", D: "FINISHED"}


def test_other_fixed_arguments_make_other_runs(sweep: SweepBench) -> None:
    sweep.write(SMALL + "params: --epochs 5\n")
    first = f"--epochs 5 {A}"
    sweep.record({first: "FINISHED"})
    assert states(sweep)[first] == "FINISHED"

    sweep.write(sweep.text.replace("epochs 5\n", "epochs 9\n"))
    assert set(states(sweep).values()) == {""}
    sweep.record({f"--epochs 9 {A}": "FINISHED"})

    sweep.write(sweep.text.replace("epochs 9\n", "epochs 5\n"))
    assert states(sweep)[first] == "FINISHED"
    assert len(sweep.statuses) == 2


def test_a_workload_keeps_its_number_while_others_are_run(sweep: SweepBench) -> None:
    sweep.record({C: "FINISHED"})

    assert sweep.workloads() == {"000": [A], "001": [B], "002": [C], "003": [D]}


def test_counts_of_repeats_come_back(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED 2/3", B: "KILLED 2/3: stopped by the user", C: "RUNNING 1/3"})

    runs = sweep.runs()

    assert [(runs[one].status, runs[one].repeats_done) for one in (A, B, C)] == [
        (RunStatus.FINISHED, 2),
        (RunStatus.KILLED, 1),
        (RunStatus.RUNNING, 0),
    ]
    assert sweep.statuses[1] == f"KILLED 2/3 abc ({B}): stopped by the user"


def test_an_entry_that_is_removed_or_emptied_runs_again(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED", B: "FINISHED"})
    lines = sweep.text.splitlines()

    sweep.write("\n".join([*lines[:-2], "  0:", lines[-1]]) + "\n")

    assert states(sweep)[A] == "" and states(sweep)[B] == "FINISHED"
    sweep.record({A: "KILLED"})
    assert sweep.statuses == {0: f"KILLED abc ({A})", 1: f"FINISHED abc ({B})"}


def test_a_run_that_was_never_started_has_no_id(sweep: SweepBench) -> None:
    sweep.file().writer().set_many({1: RowStatus("SKIPPED: fail fast")})

    assert sweep.statuses == {0: f"SKIPPED - ({A}): fail fast"}
    run = sweep.runs()[A]
    assert (run.status, run.run_id) == (RunStatus.SKIPPED, "")


class TestSharedWorkloads:
    """Runs that were measured together stay together."""

    @pytest.fixture(autouse=True)
    def pairs(self, sweep: SweepBench) -> None:
        sweep.write(SMALL + "at_once: 2\n")

    def test_mates_are_recorded_with_the_first_status(self, sweep: SweepBench) -> None:
        """Else a runner that is killed now would leave a workload that cannot be told."""
        sweep.record({C: "RUNNING"})

        assert sweep.statuses == {
            "1a": f"RUNNING abc ({C})",
            "1b": f"SCHEDULED - ({D})",
        }
        assert sweep.workloads() == {"000": [A, B], "001": [C, D]}

    def test_new_values_do_not_move_what_has_a_result(self, sweep: SweepBench) -> None:
        sweep.record({A: "FINISHED", B: "KILLED"})

        sweep.write(sweep.text.replace("[0.1, 0.01]", "[0.5, 0.1, 0.01]"))

        new = [f"--lr 0.5 --bs {bs}" for bs in (32, 64)]
        assert sweep.workloads() == {"001": new, "000": [A, B], "002": [C, D]}

    def test_what_has_no_result_is_put_together_anew(self, sweep: SweepBench) -> None:
        sweep.record({A: "KILLED", B: "KILLED"})

        sweep.write(
            sweep.text.replace("[0.1, 0.01]", "[0.1, 0.5, 0.01]").replace("      - 64\n", "")
        )

        a, new, c = A, "--lr 0.5 --bs 32", C
        assert sweep.workloads() == {"001": [a, new], "002": [c]}
        sweep.record({a: "FINISHED", new: "FINISHED"})
        assert [run.status for run in sweep.runs().values()] == ["FINISHED", "FINISHED", None]
        assert [len(runs) for runs in sweep.workloads().values()] == [2, 1]

    def test_fewer_at_once_part_what_did_not_fit(self, sweep: SweepBench) -> None:
        sweep.write(SMALL + "at_once: all\n")
        sweep.record({A: "FINISHED", B: "OOM", C: "OOM", D: "OOM"})
        assert sweep.workloads() == {"000": [A, B, C, D]}

        sweep.write(sweep.text.replace("at_once: all", "at_once: 2"))

        assert sweep.workloads() == {"000": [A], "001": [B, C], "002": [D]}
        assert states(sweep) == {A: "FINISHED", B: "OOM", C: "OOM", D: "OOM"}
        sweep.record({B: "FINISHED"}, run_id="new")
        assert sweep.workloads() == {"000": [A], "001": [B, C], "002": [D]}
        assert list(sweep.statuses) == ["0a", "1a", "1b", 2]

    def test_letters_move_on_where_a_run_comes_first(self, sweep: SweepBench) -> None:
        sweep.write(SMALL + "at_once: all\n")
        sweep.record({A: "KILLED"})

        sweep.write(sweep.text.replace("- 32\n", "- 16\n      - 32\n"))
        first, fourth = "--lr 0.1 --bs 16", "--lr 0.01 --bs 16"
        sweep.record({first: "RUNNING"}, run_id="new")

        assert sweep.statuses == {
            "0a": f"RUNNING new ({first})",
            "0b": f"KILLED abc ({A})",
            "0c": f"SCHEDULED - ({B})",
            "0d": f"SCHEDULED - ({fourth})",
            "0e": f"SCHEDULED - ({C})",
            "0f": f"SCHEDULED - ({D})",
        }
        assert sweep.workloads() == {"000": [first, A, B, fourth, C, D]}

    def test_letters_come_back_in_their_order(self, sweep: SweepBench) -> None:
        sweep.record({A: "FINISHED", B: "FINISHED"})

        sweep.write(sweep.text.replace("- 32\n      - 64", "- 64\n      - 32"))

        assert sweep.workloads() == {"000": [A, B], "001": [D, C]}


class TestSeeds:
    """A random sweep draws the same runs with every start."""

    RANDOM = (
        "file: train.py\nmethod: random # a comment\ntrials: 3\n"
        "parameters: {lr: {min: 0.0, max: 1.0}}\n"
    )

    def test_a_seed_is_drawn_once_and_written_at_the_first_start(self, sweep: SweepBench) -> None:
        sweep.write(self.RANDOM)
        file = sweep.file()
        planned = [run.params for run in file.plan(sweep.machine, sweep.registry).runs]
        assert sweep.text == self.RANDOM, "a look at the plan changes nothing"

        file.writer()

        before, _, after = self.RANDOM.partition("trials")
        assert sweep.text == f"{before}seed: {file.drawn_seed}\ntrials{after}"
        assert [run.params for run in sweep.plan().runs] == planned
        text = sweep.text
        sweep.file().writer()
        assert sweep.text == text

    def test_each_file_without_a_seed_draws_its_own(self, sweep: SweepBench) -> None:
        sweep.write(self.RANDOM)

        assert list(sweep.runs()) != list(sweep.runs())

    @pytest.mark.parametrize("empty", ["seed:", "seed: null", "Seed: ~"])
    def test_an_empty_seed_is_filled(self, sweep: SweepBench, empty: str) -> None:
        sweep.write(f"{self.RANDOM}{empty} # drawn\n")
        file = sweep.file()

        file.writer()

        key = empty.partition(":")[0]
        assert sweep.text == f"{self.RANDOM}{key}: {file.drawn_seed} # drawn\n"

    def test_a_grid_needs_none(self, sweep: SweepBench) -> None:
        sweep.file().writer()

        assert sweep.text == SMALL

    def test_more_trials_are_all_that_is_left_to_run(self, sweep: SweepBench) -> None:
        sweep.write(self.RANDOM)
        file = sweep.file()
        lines = [run.line for run in file.plan(sweep.machine, sweep.registry).runs]
        file.writer().set_many({line: RowStatus("FINISHED", "abc") for line in lines})

        sweep.write(sweep.text.replace("trials: 3", "trials: 5"))

        assert sorted(states(sweep).values()) == ["", "", "FINISHED", "FINISHED", "FINISHED"]

    def test_a_seed_that_cannot_be_written_is_an_error(self, sweep: SweepBench) -> None:
        sweep.write(self.RANDOM)
        file = sweep.file()
        sweep.path.unlink()

        with pytest.raises(StatusError, match="cannot be read"):
            file.writer()
