"""`radt validate FILE --on` and `radt FILE --on … --dry-run`, beside a Slurm that only says no."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.command import printed

#: Notes its arguments, takes nodes of up to two GPUs, and never submits.
SBATCH = """\
#!/bin/bash
echo "$@" >>"$NOTES/sbatch"
cat >>"$NOTES/script"
case "$*" in
    *--test-only*--gres=gpu:4*)
        echo "sbatch: error: Batch job submission failed: Requested node configuration is not \
available" >&2
        exit 1 ;;
    *--test-only*)
        echo "sbatch: Job 7 to start at 2026-11-25T20:31:00 using 8 processors on nodes gpu-07 in \
partition gpu" >&2 ;;
    *)
        touch "$NOTES/submitted"
        echo 7 ;;
esac
"""
SCONTROL = "#!/bin/sh\necho 'MaxArraySize            = 3'\n"
ROWS = """\
Workload, Devices, Gpus, Cpus, Timeout, File    , Params
solo    , 0      , a100, 8   , 2h     , train.py, --batch 128
pair    , 0      ,     , 4   , 2h     , train.py, --batch 128
pair    , 1      , a100, 4   , 2h     , train.py, --batch 256
cpu     , cpu    ,     , 16  , 30min  , train.py, --batch 32
more    , cpu    ,     , 16  , 30min  , train.py, --batch 64
"""
SITE = """\
[cluster]
partition = "gpu"
account = "thesis"
folder = "scratch"
max-jobs = 20
setup = ["module load cuda/12.4"]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with an experiment and, in ``bin``, what stands in for Slurm."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "notes").mkdir()
    for name, text in {"sbatch": SBATCH, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "e.csv").write_text(ROWS)
    (folder / "radt.toml").write_text(SITE)
    return folder


def radt(folder: Path, *arguments: str, code: int = 0, slurm: bool = True) -> str:
    here = os.environ["PATH"] if slurm else str(Path(sys.executable).parent)
    programs = f"{folder.parent / 'bin'}:{here}" if slurm else here
    env = {"COLUMNS": "80", "PATH": programs, "NOTES": str(folder.parent / "notes")}
    shown = printed(folder, *arguments, code=code, env=env)
    assert not (folder.parent / "notes" / "submitted").exists()
    return shown


@pytest.mark.parametrize(
    "arguments", [("validate", "e.csv", "--on", "slurm"), ("e.csv", "--on", "slurm", "--dry-run")]
)
def test_everything_that_would_be_submitted(study: Path, arguments: tuple[str, ...]) -> None:
    shown = radt(study, *arguments)

    flat = " ".join(shown.split())
    assert "e · 4 workloads, 5 runs" in flat
    assert "on slurm · 3 arrays, 4 jobs, at most 20 at a time" in flat
    assert "array 0 1 job with 1× a100, 8 CPUs, 2 h 10 min, partition gpu" in flat
    assert "array 1 1 job with 2× a100, 8 CPUs, 2 h 10 min, partition gpu" in flat
    assert "array 2 2 jobs with no GPU, 16 CPUs, 40 min, partition gpu" in flat
    assert "partition gpu cpu · more slurm: to start" in flat
    assert "to start at 2026-11-25T20:31:00 using 8 processors on nodes gpu-07" in flat
    assert "#!/bin/bash" in shown and "    module load cuda/12.4\n" in shown
    assert f"    python={sys.executable}\n" in shown
    assert "\x1b" not in shown  # no colour in a pipe
    before_script = shown.partition("script of array 0")[0]
    assert max(map(len, before_script.splitlines())) <= 80
    asked = (study.parent / "notes" / "sbatch").read_text().splitlines()
    assert len(asked) == 3 and all("--account=thesis" in line for line in asked)
    assert sorted(path.name for path in study.iterdir()) == ["e.csv", "radt.toml", "train.py"]
    assert (study / "e.csv").read_text() == ROWS


def test_a_shape_that_fits_nowhere(study: Path) -> None:
    (study / "e.csv").write_text(ROWS + "huge, 3, , , 1h, train.py,\nhuge2, 3, , , 1h, train.py,\n")

    shown = radt(study, "validate", "e.csv", "--on", "slurm", code=2)

    assert shown.startswith("e.csv: 1 problem, nothing was started\n\n  line 7")
    flat = " ".join(shown.split())
    assert "workload huge and 1 more, 4 GPUs, 1 h 10 min, partition gpu: Slurm refuses:" in flat
    assert "Requested node configuration is not available" in flat
    assert "sinfo -o '%P %N %c %m %G'" in flat


def test_rows_that_no_job_can_have(study: Path) -> None:
    (study / "e.csv").write_text("File,Workload,Nodes,Memory\ntrain.py,1,2,1GB\ntrain.py,1,,2GB\n")

    shown = radt(study, "e.csv", "--on", "slurm", "--dry-run", code=2)

    assert "line 2, Memory" in shown
    assert not (study.parent / "notes" / "sbatch").exists()


def test_only_and_rerun_and_repeat(study: Path) -> None:
    content = ROWS.replace("Workload,", "Status,Workload,").replace("\nsolo", "\nFAILED,solo")
    content = content.replace("\npair", "\n,pair").replace("\ncpu", "\nFINISHED,cpu")
    (study / "e.csv").write_text(content.replace("\nmore", "\n,more"))

    usual = radt(study, "e.csv", "--on", "slurm", "--dry-run")
    again = radt(study, "e.csv", "--on", "slurm", "--dry-run", "--rerun", "--only", "solo,cpu")
    done = radt(study, "e.csv", "--on", "slurm", "--dry-run", "--only", "cpu")

    assert "2 arrays, 2 jobs" in usual
    assert "1 array, 1 job" in again and "partition gpu solo slurm" in " ".join(again.split())
    assert "array" not in done and "none to run" in done


def test_without_slurm(study: Path) -> None:
    shown = radt(study, "validate", "e.csv", "--on", "slurm", code=1, slurm=False)

    assert "Slurm is not here" in shown and "login node" in " ".join(shown.split())


def test_on_in_the_settings_and_local_on_the_command_line(study: Path) -> None:
    (study / "radt.toml").write_text(f'on = "debug"\n{SITE}[cluster.debug]\npartition = "short"\n')
    (study / "e.csv").write_text("File,Devices,Gpus,Memory\ntrain.py,cpu,a100,64GB\n")

    there = radt(study, "validate", "e.csv")
    here = radt(study, "validate", "e.csv", "--on", "local", slurm=False)

    assert "on debug · 1 array, 1 job" in there and "partition short" in there
    assert "array" not in here and "on cpu" in here


def test_a_cluster_that_is_not_there(study: Path) -> None:
    shown = radt(study, "e.csv", "--on", "slrum", "--dry-run", code=2)

    assert "expected slurm or local, got 'slrum'" in shown and "Did you mean 'slurm'?" in shown


def test_programs_run_here(study: Path) -> None:
    shown = radt(study, "--on", "slurm", "train.py", code=2)

    assert "--on is for experiment files" in shown


def test_config_checks_the_tables(study: Path) -> None:
    (study / "radt.toml").write_text('[cluster]\npartitoin = "gpu"\n')

    shown = " ".join(radt(study, "config", code=2).split())

    assert "unknown setting 'partitoin'" in shown and "Did you mean 'partition'?" in shown
