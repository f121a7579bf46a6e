"""``radt advise`` on the terminal, and the experiments that it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from radt.cli.advise import command
from radt.cli.validate import command as validate
from radt.devices.machine import Machine
from radt.errors import UsageError
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import ExperimentFile
from radt.listeners import registry
from radt.model import RunStatus
from radt.render.advice import advice_document
from radt.render.terminal import document_lines
from tests.advice.planting import GB, Lab, Run


def call(lab: Lab, *options: str, experiment: str = "") -> Result:
    arguments = [experiment or lab.experiment, "--home", str(lab.home), *options]
    return CliRunner().invoke(command, arguments, env={"COLUMNS": "80"})


def plan(path: Path) -> ExperimentPlan:
    """What radt itself makes of a file; it raises where `radt validate` complains."""
    return ExperimentFile.read(path).plan(Machine.detect(), registry.load())


def on_cpu(name: str, folder: Path, **values: object) -> Run:
    """A run whose script is there."""
    script = folder / "train.py"
    script.write_text("print()\n")
    given = {"cores": 4.0, "memory": 1 * GB, "listeners": "top@2s+iostat", **values}
    return Run(name, devices="cpu", script=str(script), **given)  # type: ignore[arg-type]


def test_the_table_fits_into_80_columns(lab: Lab) -> None:
    for name, active in (("resnet26", 0.3), ("efficientnet-v2-s-imagenet64", 0.6)):
        lab.alone(Run(name, sm=active))
    lab.copies(2, Run("resnet26", collocation="MPS", epoch_s=4.4))
    done = call(lab, "--all")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    text = " ".join(done.output.split())
    for words in (
        "GPU 0 of gpu-01: 4 × resnet26 at once under MPS",
        *("below half of the SMs' time", "§4.4.2", "error 9.1 % (n = 1)", "vs measured"),
    ):
        assert words in text
    lines = document_lines(advice_document(lab.advice(), all_of_them=True), 80, wrap=True)
    assert max(len(line.plain) for line in lines) <= 80


def test_json_has_everything(lab: Lab) -> None:
    lab.alone(Run("small", sm=0.6, kernel=0.9))
    lab.copies(2, Run("small", collocation="MPS", epoch_s=6.0))
    found = json.loads(call(lab, "--format", "json").output)
    assert (found["format"], found["version"]) == ("radt-advice", 1)
    assert found["alone"][0]["shares"]["SM activity"] == pytest.approx(0.6)
    (two,) = (one for one in found["predictions"] if one["method"] == "MPS" and one["degree"] == 2)
    assert two["rows"][0]["expected"] == pytest.approx(1.5)  # as it was measured
    assert two["measured_slowdowns"] == pytest.approx([1.5, 1.5])
    assert found["accuracy"]["median_error"] == pytest.approx(0.2)


def test_markdown_keeps_names_as_they_are(lab: Lab) -> None:
    lab.alone(Run("a|b*c_d", devices="cpu"))
    page = call(lab, "--format", "markdown").output
    assert r"a\|b\*c\_d" in page
    assert "| --- | ---: |" in page


def test_an_unknown_experiment_is_said_to_be_unknown(lab: Lab) -> None:
    said = call(lab, experiment="nothing")
    assert isinstance(said.exception, UsageError)
    assert "nothing" in said.exception.message


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (Run("net", sm=None, kernel=None), "SM activity not measured"),
        (Run("net", devices="cpu", cores=None), "CPU not measured"),
    ],
)
def test_without_a_measurement_that_it_needs_it_refuses(lab: Lab, run: Run, word: str) -> None:
    lab.alone(run)
    said = call(lab)
    assert isinstance(said.exception, UsageError)
    assert word in said.exception.message
    assert "--write" in (said.exception.remedy or "")


def test_how_many_cpus_another_machine_has_can_be_said(lab: Lab) -> None:
    lab.cores = None
    lab.alone(Run("net", devices="cpu", cores=4.0))
    said = call(lab)
    assert isinstance(said.exception, UsageError)
    assert "--cores" in said.exception.message
    assert "4 × net at once" in call(lab, "--cores", "16").output


def test_models_that_never_ran_alone_are_written_to_be_run(lab: Lab, tmp_path: Path) -> None:
    small = on_cpu("small", tmp_path)
    large = on_cpu("large", tmp_path, params={"batch-size": "128", "note": "a, b"})
    large = replace(large, logged={"found-by-the-script": "7"})
    lab.together("mix", [small, large])
    said = call(lab)
    assert isinstance(said.exception, UsageError)
    assert "small: never ran alone" in said.exception.message
    path = tmp_path / "solo.csv"
    said = call(lab, "--write", str(path))
    assert said.exit_code == 0, said.output
    assert "2 workloads, 2 runs" in " ".join(said.output.split())
    found = plan(path)
    assert found.name == lab.experiment
    assert [workload.label for workload in found.workloads] == ["small alone", "large alone"]
    first, second = found.runs
    assert first.program.path == tmp_path / "train.py"
    assert second.arguments == "--model large --batch-size 128 --note a, b"
    assert {"top", "iostat"} <= {choice.name for choice in first.listeners}
    assert not second.columns
    assert CliRunner().invoke(validate, [str(path)]).exit_code == 0


def test_what_is_recommended_is_written_to_be_verified(lab: Lab, tmp_path: Path) -> None:
    lab.alone(on_cpu("small", tmp_path))
    lab.together("4 × small together", [on_cpu("small", tmp_path, status=RunStatus.KILLED)] * 4)
    path = tmp_path / "verify.csv"
    assert call(lab, "--write", str(path)).exit_code == 0
    (workload,) = plan(path).workloads
    # A workload of that name is there: a new start would take its place.
    assert workload.label == "4 × small together 2"
    assert len(workload.runs) == 4
    assert {str(run.listeners[0]) for run in workload.runs} == {"top@2s"}


def test_gpus_and_ways_to_share_are_written(lab: Lab, tmp_path: Path) -> None:
    lab.alone(Run("small", sm=0.3, kernel=0.6))
    path = tmp_path / "verify.csv"
    said = call(lab, "--write", str(path), "--format", "json")
    json.loads(said.stdout)
    rows = [line.split(",") for line in path.read_text().splitlines()[2:]]
    assert len(rows) == 4
    assert {row[5].strip() for row in rows} == {"0"}
    assert {row[6].strip() for row in rows} == {"MPS"}
    assert {row[8].strip() for row in rows} == {"/lab/train.py"}


def test_what_does_not_fit_is_not_written_to_be_verified(lab: Lab, tmp_path: Path) -> None:
    lab.alone(Run("huge", memory=30 * GB))
    path = tmp_path / "verify.csv"
    said = call(lab, "--write", str(path))
    assert isinstance(said.exception, UsageError)
    assert "no candidate can be verified" in said.exception.message
    assert not path.exists()


def test_nothing_is_written_over(lab: Lab, tmp_path: Path) -> None:
    lab.alone(on_cpu("small", tmp_path))
    path = tmp_path / "there.csv"
    path.write_text("mine")
    said = call(lab, "--write", str(path))
    assert isinstance(said.exception, UsageError)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ['say "hi", {Model} #1', "- ½ ∞", "line\nbreak", " padded "])
def test_odd_names_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    lab = Lab(tmp_path / "home", experiment=f"#{name}")
    run = on_cpu(name, tmp_path)
    lab.alone(replace(run, params={"model": "{Name}"}))
    path = tmp_path / "odd.csv"
    said = call(lab, "--write", str(path), experiment=lab.experiment)
    assert said.exit_code == 0, (said.output, said.exception)
    first = next(plan(path).runs)
    assert first.experiment.strip() == lab.experiment.strip()
    assert first.name == name.strip()
    assert first.params == ("--model", "{Name}")


def test_a_file_stands_for_its_experiment(lab: Lab, tmp_path: Path) -> None:
    lab.alone(on_cpu("small", tmp_path))
    file = tmp_path / "study.csv"
    file.write_text("Experiment, File\nstudy, train.py\n")
    assert "4 × small at once" in call(lab, experiment=str(file)).output


def test_the_expected_error_is_that_of_workloads_of_other_models(lab: Lab) -> None:
    lab.alone(Run("small", sm=0.3))
    assert "expected error unknown" in call(lab).output
    lab.alone(Run("large", sm=0.9, epoch_s=10.0))
    lab.copies(2, Run("large", sm=0.9, epoch_s=18.3, collocation="MPS"))
    assert "expected error 1.6 % (n = 1)" in " ".join(call(lab).output.split())


def test_cpu_numbers_of_a_pinned_run_are_not_its_number_of_cpus(lab: Lab) -> None:
    lab.tags["radt.cpus"] = "3"
    lab.alone(Run("net", devices="cpu", cores=4.0))
    (place,) = lab.advice().measurements.places
    assert place.cores == lab.cores


def test_the_memory_that_control_groups_grant_is_the_machines(lab: Lab) -> None:
    lab.tags["radt.memory_limit_bytes"] = "8000000000"
    lab.alone(Run("net", devices="cpu", cores=4.0))
    (place,) = lab.advice().measurements.places
    assert place.host_bytes == 8e9
