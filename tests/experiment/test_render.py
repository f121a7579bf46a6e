"""Plans and problems on a terminal of 80 columns, with and without colour."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from radt.cli.render import render_plan, render_problems
from radt.errors import ExperimentError, Problem
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import ExperimentFile

Plan = Callable[..., ExperimentPlan]


def console(width: int = 80, colour: bool = False) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )


def shown(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def lines(target: Console) -> list[str]:
    return [line.rstrip() for line in shown(target).splitlines()]


def test_problems_have_their_remedies_below() -> None:
    error = ExperimentError(
        "e.csv",
        [
            Problem("something long is wrong here " * 3, "a remedy that is long " * 4, 4, "File"),
            Problem("unknown collocation 'x'", "Write - or nothing", 12, "Collocation"),
            Problem("short", line=5),
        ],
    )
    target = console()

    render_problems(error, target)

    assert lines(target) == [
        "e.csv: 3 problems, nothing was started",
        "",
        "  line 4, File          something long is wrong here something long is wrong",
        "                        here something long is wrong here",
        "                        a remedy that is long a remedy that is long a remedy",
        "                        that is long a remedy that is long",
        "  line 12, Collocation  unknown collocation 'x'",
        "                        Write - or nothing",
        "  line 5                short",
        "",
    ]


def test_problems_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    render_problems(ExperimentError("e.csv", [Problem("it is empty", "Fill it")]))

    out, err = capsys.readouterr()
    assert out == ""
    assert "e.csv: 1 problem, nothing was started" in err and "  it is empty\n  Fill it\n" in err
    assert "\x1b" not in err


def test_only_failure_is_red_and_only_the_remedy_dim() -> None:
    target = console(colour=True)

    render_problems(ExperimentError("e.csv", [Problem("wrong", "mend it", 1, "File")]), target)

    assert shown(target).splitlines() == [
        "\x1b[1;31me.csv: 1 problem, nothing was started\x1b[0m",
        "",
        "  line 1, File  wrong",
        "                \x1b[2mmend it\x1b[0m",
        "",
    ]


def test_a_plan(plan: Plan) -> None:
    planned = plan(
        "Workload,Name,Status,Listeners,File,Params\n"
        "solo,small,FINISHED,,train.py,--epochs 3\n"
        "three,small,RUNNING,,train.py,--epochs 3\n"
        "three,,,,train.py,--epochs 3 --data /a/long/path/to/a/data/set --name 'x y'\n"
        "four,big,FAILED: exit code 3,,train.py,\n"
    )
    target = console()

    render_plan(planned, console=target)

    assert lines(target) == [
        "experiment · 3 workloads, 4 runs · 2 to run · on cpu · listeners top",
        "",
        "  workload     run    command                                    next start",
        "  solo      a  small  train.py --epochs 3                        skip, FINISHED",
        "  three     a  small  train.py --epochs 3                        resume, RUNNING",
        "            b  train  train.py --epochs 3 --data                 run",
        "                      /a/long/path/to/a/data/set --name 'x y'",
        "  four      a  big    train.py                                   skip, FAILED",
        "",
        "  --rerun runs FAILED rows again",
        "",
    ]


def test_a_plan_with_rerun(plan: Plan) -> None:
    target = console()

    render_plan(plan("File,Status\ntrain.py,FAILED\n"), rerun=True, console=target)

    assert lines(target)[0] == "experiment · 1 workload, 1 run · on cpu · listeners top"
    assert "--rerun" not in shown(target)


def test_what_differs_has_a_column(plan: Plan) -> None:
    target = console()

    render_plan(
        plan(
            "Experiment,Workload,File,Listeners\n"
            "one,1,train.py,top@500ms\none,2,train.py,none\ntwo,1,train.py,\n"
        ),
        console=target,
    )

    text = shown(target)
    assert "listeners" in text and "top@0.5s" in text and "none" in text
    assert "devices" not in text and "next start" not in text
    assert [line for line in lines(target) if line in ("  one", "  two")] == ["  one", "  two"]


def test_listeners_are_broken_between_names(plan: Plan) -> None:
    target = console()
    render_plan(
        plan("File,Listeners\ntrain.py,top\ntrain.py,ps@500ms+top@250ms+smi@100ms\n"),
        console=target,
    )
    assert [line.split()[-1] for line in lines(target) if "@" in line] == [
        "ps@0.5s+",
        "top@0.25s+",
        "smi@0.1s",
    ]


def test_what_else_differs_stands_below_the_command(plan: Plan, folder: Path) -> None:
    (folder / "requirements.txt").touch()
    target = console()

    render_plan(
        plan(
            "Name,Environment,Cpus,Timeout,Model,File,Params\n"
            "x,uv,1,10min,vit,train.py,--model {Model}\n"
            "x,,0-1,90,resnet,train.py,\n"
            ",,,,vit,train.py,--x\n"
            ",,,,,train.py,--x\n"
        ),
        console=target,
    )

    assert lines(target)[2:] == [
        "  workload     run    command",
        "  1         a  x      train.py --model vit",
        "                      in uv:requirements.txt · 1 CPU · at most 10 min",
        "  2         a  x      train.py",
        "                      model resnet · CPUs 0-1 · at most 1 min 30 s",
        "  3         a  vit    train.py --x",
        "  4         a  train  train.py --x",
        "",
    ]


def test_what_all_runs_share_stands_above(plan: Plan) -> None:
    target = console(120)

    render_plan(
        plan(
            "Name,Environment,Cpus,Timeout,Model,File\n"
            "x,docker:a:1,1,2h,vit,train.py\nx,docker:a:1,1,2h,vit,train.py\n"
        ),
        console=target,
    )

    assert lines(target)[0] == (
        "experiment · 2 workloads, 2 runs · on cpu · listeners top · in docker:a:1 · model vit"
        " · 1 CPU · at most 2 h"
    )


def test_warnings_and_hints_stand_below(plan: Plan) -> None:
    target = console(colour=True)

    render_plan(
        plan(
            "File,Listeners,Status\ntrain.py,smi+ps,TIMEOUT\ntrain.py,ps+top,OOM\n"
            "train.py,dcgm,FAILED: exit code 3\ntrain.py,top,FINISHED 2/3\n"
        ),
        repeat=3,
        console=target,
    )

    below = shown(target).replace("\x1b[0m", "").replace("\x1b[2m", "").splitlines()[-6:-1]
    assert all(line.startswith("  ") for line in below)
    assert " ".join(map(str.strip, below)) == (
        "listener dcgm does not work here: no hostengine answers; 1 run without it. "
        "Start nv-hostengine "
        "listener ps does not work here: its probe raised RuntimeError: no /proc; 2 runs without "
        "it --rerun runs TIMEOUT and OOM and FAILED rows again"
    )
    assert "repeat, FINISHED" in shown(target)


def test_a_workload_is_a_unit(plan: Plan) -> None:
    target = console()

    render_plan(
        plan("Workload,File,Status\n1,train.py,FINISHED\n1,train.py,KILLED\n2,train.py,FINISHED\n"),
        console=target,
    )

    assert [line.split("train.py")[-1].strip() for line in lines(target)[3:-1]] == [
        "again, FINISHED",
        "resume, KILLED",
        "skip, FINISHED",
    ]


@pytest.mark.parametrize("colour", [True, False])
def test_hostile_names_cannot_reach_the_terminal(plan: Plan, folder: Path, colour: bool) -> None:
    evil = "\x1b[2J\x07[red]x[/]\u202e\n"
    planned = plan(
        f'Experiment,Workload,Name,File,Params\n"{evil}","{evil}","{evil}",train.py,"{evil}"\n'
    )
    target = console(width=400, colour=colour)

    render_plan(planned, console=target)
    render_problems(ExperimentError(f"{evil}.csv", [Problem(evil, evil, 1, evil)]), target)

    text = shown(target)
    assert "\x1b[2J" not in text and "\x07" not in text and "\u202e" not in text
    assert text.count(r"\x1b[2J\x07[red]x[/]\u202e") == 5  # the others are folded
    assert r"train.py $'\x1b[2J\x07[red]x[/]\U0000202e'" in text  # as a shell takes it


@pytest.mark.parametrize("width", [67, 80, 200])
def test_nothing_is_wider_than_the_terminal(plan: Plan, folder: Path, width: int) -> None:
    (folder / "a_rather_long_name_of_a_script.py").touch()
    planned = plan(
        "Workload,Name,Status,Listeners,File,Params\n"
        + "a long workload label,a long name of a run,KILLED,top@2s+smi,"
        + f"a_rather_long_name_of_a_script.py,{'--x ' * 30}\n"
        + f"b,,,,train.py,{'y' * 150}\n"
    )
    target = console(width)

    render_plan(planned, console=target)

    table = [line for line in lines(target) if not line.startswith("experiment ·")]
    assert max(map(len, table)) <= width
    letters = "".join(table).replace(" ", "")
    assert letters.count("y") >= 150  # folded, not cut


def test_problems_of_a_real_file_fit(folder: Path, cpu_only: object, registry: object) -> None:
    path = folder / "experiment.csv"
    path.write_text(
        "File,Params,Devices,Listeners,Collocation,Status,Model1\n"
        "none.py,it's,3,topp+smii,9g.80,DONE,x\n"
    )
    target = console()
    with pytest.raises(ExperimentError) as caught:
        ExperimentFile.read(path).plan(cpu_only, registry)  # type: ignore[arg-type]

    render_problems(caught.value, target)

    assert len(caught.value.problems) == 8
    assert max(map(len, lines(target)[1:])) <= 80
