"""What A and B may name: experiments, workloads, machines, runs, commits, in one store or two."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.analysis.operands import (
    Operand,
    OperandFinder,
    OperandKind,
    ParsedOperand,
    experiments_in,
    parsed_operands,
    resolve_commit,
)
from radt.analysis.quantities import Quantity
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.errors import RunNotFoundError, UsageError
from radt.model import RunStatus
from radt.store.locate import Places
from radt.tags import PROFILED
from tests.comparison.planted import COMMIT_A, COMMIT_B, rounds, store_of
from tests.frontend.report_support import Planted, Study
from tests.support.git import git


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return store_of(tmp_path)


@pytest.fixture
def study(store: Path) -> Study:
    return Study(store)


def find(store: Path, given: str, folder: Path | None = None) -> Operand:
    with OperandFinder(Places.of(store.parent), DEFAULT_WINDOW, folder or store.parent) as finder:
        return finder.find(given)


def times(side: Operand) -> dict[str, float]:
    """Time per epoch by workload and machine."""
    return {
        f"{one.label}@{one.host}": found
        for one in side.workloads
        if (found := one.groups[0].mean(Quantity.TIME_PER_EPOCH)) is not None
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("study", [ParsedOperand("study")]),
        ("study@gpu-01", [ParsedOperand("study", None, ("gpu-01",))]),
        ("study@HEAD@{1}", [ParsedOperand("study", None, ("HEAD@{1}",))]),
        ("study/three", [ParsedOperand("study", "three")]),
        ("study/three@gpu-01@HEAD~1", [ParsedOperand("study", "three", ("gpu-01", "HEAD~1"))]),
        ("study/a/b", [ParsedOperand("study", "a/b")]),
        ("study/a@b", [ParsedOperand("study", "a@b"), ParsedOperand("study", "a", ("b",))]),
        ("study/none", []),
    ],
)
def test_ways_to_read_a_name(given: str, expected: list[ParsedOperand]) -> None:
    assert list(parsed_operands(given, "study", ["three", "a", "a/b", "a@b"])) == expected


def test_experiments_with_odd_names() -> None:
    names = ["study", "study/2", "study@home", "stud", "", "other"]
    assert experiments_in("study/2/three", names) == ["study/2", "study"]
    assert experiments_in("study@home", names) == ["study@home", "study"]
    assert experiments_in("studying", names) == []


def test_an_experiment_a_workload_and_a_machine(store: Path, study: Study) -> None:
    for host, epoch_s in (("gpu-01", 2.0), ("gpu-02", 3.0)):
        rounds(study, {"one": [epoch_s], "a/b @x": [epoch_s + 2]}, host=host)
    whole = find(store, "study")
    assert (whole.kind, whole.text, len(whole.workloads)) == (OperandKind.EXPERIMENT, "study", 4)
    assert times(find(store, "study@gpu-02")) == {"one@gpu-02": 3.0, "a/b @x@gpu-02": 5.0}
    one = find(store, "study/a/b @x@gpu-01")
    assert (one.kind, one.text) == (OperandKind.WORKLOAD, "study/a/b @x on gpu-01")
    assert times(one) == {"a/b @x@gpu-01": 4.0}
    with pytest.raises(UsageError) as caught:
        find(store, "study/one")
    assert caught.value.message == "study/one ran on several machines: gpu-01, gpu-02"
    assert caught.value.remedy == "Name one: 'study/one@gpu-02'"


def test_names_within_names(store: Path) -> None:
    """The experiment a/b is nearer than the workload b of a, which is found all the same."""
    rounds(Study(store, "a"), {"b": [2.0], "c": [3.0]})
    rounds(Study(store, "a/b"), {"x": [5.0]})
    assert times(find(store, "a/b")) == {"x@gpu-01": 5.0}
    assert times(find(store, "a/c")) == {"c@gpu-01": 3.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("stuby", "'stuby' is neither an experiment nor a run in .*Did you mean 'study'"),
        ("else", "Experiments: study"),
        ("study/tree", "'study' has no workload 'tree'. Did you mean 'study/three'"),
        ("study/nothing", "'study' has no workload 'nothing'. Its workloads: three"),
        ("study@HEAD", "at 'HEAD' \\(no known machine or commit\\)"),
        ("study@abcdef", "Recorded commits: a1b2c3d; machines: gpu-01"),
        ("study@--all", "no run of 'study' was recorded at '--all'"),
    ],
)
def test_what_is_not_there(store: Path, study: Study, given: str, said: str) -> None:
    rounds(study, {"three": [2.0]}, tags={"radt.git.commit": COMMIT_A})
    with pytest.raises(UsageError, match=said):
        find(store, given)


def test_a_run(store: Path, study: Study) -> None:
    """Also of a workload of several, of which it is compared alone, and of one with a profiler."""
    workload = study.workload("pair", [Planted("a", 2.0), Planted("b", 4.0)])
    side = find(store, study.run_id(workload, "b"))
    assert (side.kind, times(side)) == (OperandKind.RUN, {"pair@gpu-01": 4.0})
    assert side.text == f"run {study.run_id(workload, 'b')[:8]} (resnet26)"
    with pytest.raises(RunNotFoundError, match="several runs match"):
        find(store, workload[:6])
    slow = study.workload("slow", [Planted("a", 9.0)], tags={PROFILED: "nsys"})
    assert times(find(store, study.run_id(slow, "a"))) == {"slow@gpu-01": 9.0}
    with pytest.raises(UsageError, match=r"has no run that ended .1 run, none counts: 1 profiled"):
        find(store, "study/slow")


def test_runs_that_have_not_ended(store: Path, study: Study) -> None:
    workload = study.workload("one", [Planted("a", 2.0, status=RunStatus.RUNNING)])
    with pytest.raises(UsageError, match="is RUNNING and cannot be compared yet"):
        find(store, study.run_id(workload, "a"))
    with pytest.raises(UsageError, match=r"has no run that ended .1 run, none counts: 1 running"):
        find(store, "study/one")


def test_runs_of_a_commit(store: Path, study: Study) -> None:
    """Each commit has its own runs, repeats and baselines, whichever is newer."""
    for commit, factor in ((COMMIT_A, 1.0), (COMMIT_B, 2.0)):
        rounds(
            study,
            {"solo": [factor * 2, factor * 2.02], "pair": [factor * 3, factor * 3.03]},
            rows={"pair": 2},
            tags={"radt.git.commit": commit},
        )
    before, after = find(store, "study@a1b2"), find(store, f"study@{COMMIT_B}")
    assert (before.text, before.commit) == ("study at a1b2c3d", COMMIT_A)
    assert times(before) == pytest.approx({"solo@gpu-01": 2.01, "pair@gpu-01": 3.015})
    assert times(after) == pytest.approx({"solo@gpu-01": 4.02, "pair@gpu-01": 6.03})
    for side in (before, after):
        assert side.workloads[1].groups[0].mean(Quantity.SLOWDOWN) == pytest.approx(1.5)
    one = find(store, "study/pair@a1b2")
    assert times(one) == pytest.approx({"pair@gpu-01": 3.015})


def test_a_commit_that_is_not_told_apart(store: Path, study: Study) -> None:
    for commit in ("abcd1" + "0" * 35, "abcd2" + "0" * 35):
        rounds(study, {"one": [2.0]}, tags={"radt.git.commit": commit})
    with pytest.raises(UsageError, match="several commits of 'study' begin with 'abcd'"):
        find(store, "study@abcd")
    assert find(store, "study@abcd2").text == "study at abcd200"


def commit(folder: Path, message: str) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for message in ("one", "two"):
        commit(folder, message)
    return folder


def test_what_git_calls_a_commit(store: Path, study: Study, repository: Path) -> None:
    head, before = resolve_commit("HEAD", repository), resolve_commit("HEAD~1", repository)
    assert head is not None
    assert before is not None
    assert resolve_commit("nothing", repository) is None
    assert resolve_commit("--all", repository) is None
    assert resolve_commit("HEAD", store.parent) is None, "no repository"
    for one, epoch_s in ((before, 2.0), (head, 3.0)):
        rounds(study, {"one": [epoch_s]}, tags={"radt.git.commit": one})
    side = find(store, "study@HEAD~1", repository)
    assert side.text == f"study at {before[:7]} (HEAD~1)"
    assert times(side) == {"one@gpu-01": 2.0}
    assert times(find(store, "study/one@gpu-01@main", repository)) == {"one@gpu-01": 3.0}
    commit(repository, "three")
    with pytest.raises(UsageError, match="recorded at 'HEAD' \\(commit"):
        find(store, "study@HEAD", repository)


def test_sides_in_two_stores(store: Path, study: Study, database: str) -> None:
    """What the file does not have is looked for in Postgres, by name, by commit and by id."""
    rounds(study, {"one": [2.0]}, tags={"radt.git.commit": COMMIT_A})
    team = Study(database)
    team.now_ns += 10**15
    rounds(team, {"one": [3.0], "two": [4.0]}, tags={"radt.git.commit": COMMIT_B})
    other = Study(database, "other")
    run = other.run_id(other.workload("x", [Planted("a", 5.0)]), "a")
    with OperandFinder(Places.of(store.parent, database), DEFAULT_WINDOW, store.parent) as finder:
        assert times(finder.find("study")) == {"one@gpu-01": 2.0}
        found = finder.find(f"study@{COMMIT_B[:8]}")
        assert times(found) == {"one@gpu-01": 3.0, "two@gpu-01": 4.0}
        assert found.store.startswith("postgresql")
        assert times(finder.find("study/two")) == {"two@gpu-01": 4.0}
        assert times(finder.find("other")) == {"x@gpu-01": 5.0}
        assert times(finder.find(run[:12])) == {"x@gpu-01": 5.0}
