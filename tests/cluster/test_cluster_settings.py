"""[cluster] and [cluster.NAME] of a settings file, and what --on makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.cluster.settings import ClusterSettings, RecordMode, cluster_problems
from radt.errors import UsageError
from radt.setting_values import SettingsFile, find_settings
from radt.settings import ON, Settings

WHOLE = """\
on = "lab:debug"

[cluster]
partition = "gpu"
account = "thesis"
time = "4h"
memory = "64GB"
bundle = "1h"
max-jobs = 200
same-node = true
setup = ["module load cuda/12.4", "export OMP_NUM_THREADS=4"]
sbatch = ["--reservation=thesis"]
folder = "scratch"

[cluster.gpus]
"3g.20gb" = "gpu:a100_3g.20gb"

[cluster.lab]
time = 7200
exclusive = true
qos = "long"
constraint = "a100&ib"
bundle = "0s"
record = "direct"
sbatch = []

[cluster.lab.gpus]
"1g.10gb" = "h100_1g.10gb"
"""


def settings_file(folder: Path, text: str, name: str = "radt.toml") -> SettingsFile:
    (folder / name).write_text(text, encoding="utf-8")
    file = find_settings(folder)
    assert file is not None
    return file


def test_a_table_for_all_clusters(tmp_path: Path) -> None:
    settings = ClusterSettings.named("slurm", settings_file(tmp_path, WHOLE))

    assert settings is not None
    assert (settings.name, settings.partition) == ("slurm", "gpu")
    assert settings.folder == tmp_path / "scratch"  # beside the file
    assert (settings.time_s, settings.memory_bytes) == (14400.0, 64 * 1024**3)
    assert (settings.bundle_s, settings.max_jobs) == (3600.0, 200)
    assert settings.same_node
    assert settings.setup == ("module load cuda/12.4", "export OMP_NUM_THREADS=4")
    assert settings.options == ("--account=thesis", "--reservation=thesis")
    assert settings.gpus == {"3g.20gb": "a100_3g.20gb"}
    assert (settings.record, settings.exclusive) == (RecordMode.FOLDER, False)


def test_a_cluster_says_what_differs(tmp_path: Path) -> None:
    file = settings_file(tmp_path, WHOLE)

    settings = ClusterSettings.chosen(Settings(file, environ={}))

    assert settings is not None
    assert (settings.name, settings.partition) == ("lab", "debug")
    assert (settings.time_s, settings.bundle_s, settings.exclusive) == (7200.0, 0.0, True)
    assert settings.options == ("--account=thesis", "--qos=long", "--constraint=a100&ib")
    assert settings.gpus == {"3g.20gb": "a100_3g.20gb", "1g.10gb": "h100_1g.10gb"}
    assert settings.record is RecordMode.DIRECT
    assert settings.source == f"[cluster.lab] of {tmp_path}/radt.toml"
    assert settings.gpus_source == f"[cluster.lab.gpus] of {tmp_path}/radt.toml"


def test_without_a_file_everything_is_the_clusters_own(tmp_path: Path) -> None:
    settings = ClusterSettings.named("slurm:gpu", None)

    assert settings == ClusterSettings(partition="gpu")
    assert settings.submissions(tmp_path) == tmp_path / "submissions"
    assert settings.options == ()


@pytest.mark.parametrize("on", ["", "local"])
def test_this_machine(tmp_path: Path, on: str) -> None:
    values = Settings(settings_file(tmp_path, WHOLE), {ON: on}, environ={})

    assert ClusterSettings.chosen(values) is None


def test_in_a_pyproject(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "[tool.radt.cluster]\npartitoin = 'x'\n", "pyproject.toml")

    with pytest.raises(UsageError) as caught:
        ClusterSettings.named("slurm", file)

    assert caught.value.message == (
        f"[tool.radt.cluster] of {tmp_path}/pyproject.toml: unknown setting 'partitoin'"
    )
    assert caught.value.remedy == "Did you mean 'partition'?"


@pytest.mark.parametrize(
    ("on", "cause", "remedy"),
    [
        ("slrum", "--on slrum: expected slurm, lab or local, got 'slrum'", "mean 'slurm'?"),
        ("lba", "expected slurm, lab or local", "Did you mean 'lab'?"),
        ("k8s", "got 'k8s'", "Add [cluster.k8s] to {folder}/radt.toml"),
        ("gpus", "got 'gpus'", "Add [cluster.gpus]"),
        ("slurm:", "'' is not a partition", "Write slurm:gpu"),
        ("slurm:-p x", "'-p x' is not a partition", "Write slurm:gpu"),
        ("local:gpu", "got 'local'", ""),
    ],
)
def test_clusters_that_are_not_there(tmp_path: Path, on: str, cause: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        ClusterSettings.named(on, settings_file(tmp_path, WHOLE))

    assert cause in caught.value.message
    assert remedy.format(folder=tmp_path) in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("[cluster]\nmax_jobs = 3", "unknown setting 'max_jobs'", "Did you mean 'max-jobs'?"),
        ("[cluster]\nfoo = 3", "unknown setting 'foo'", "Choose from folder, partition"),
        ("[cluster]\nmax-jobs = 0", "max-jobs: expected a whole number of at least 1", "Write"),
        ("[cluster]\nmax-jobs = true", "max-jobs: True is not a valid value", "in the queue"),
        ("[cluster]\npartition = 3", "partition: 3 is not a valid value", "Partition of rows"),
        ('[cluster]\npartition = ""', "partition is empty", "remove the line"),
        ("[cluster]\ntime = 0", "time: expected a timeout above 0", "2h"),
        ('[cluster]\nmemory = "64"', "memory: '64' is not an amount of memory", "64GB"),
        ('[cluster]\nexclusive = "perhaps"', "exclusive: 'perhaps' is neither on nor off", "on"),
        ('[cluster]\nrecord = "s3"', "record: 's3' is not one of folder, direct", "Write"),
        ('[cluster]\nsetup = "module load x"', "setup: expected a list", 'setup = ["…"]'),
        ("[cluster]\nsetup = [3]", "setup: 3 is not a valid value", "Lines for bash"),
        ('[cluster]\nsbatch = ["x"]', "'x' is not an option of sbatch", "--reservation"),
        ('[cluster]\nsbatch = ["-p gpu"]', "sbatch: -p is radt's to give", "Use partition"),
        ('[cluster]\nsbatch = ["--array=1-9"]', "--array is radt's to give", "Remove it"),
        ('[cluster]\nsbatch = ["--gres=gpu:1"]', "--gres is radt's to give", "the column Gpus"),
        ("cluster = 3", "[cluster] of {folder}/radt.toml is not a table", "Write [cluster]"),
        ("[cluster]\ngpus = 3", "[cluster.gpus] of {folder}/radt.toml is not a table", "Write"),
        ('[cluster.gpus]\n"3g.20gb" = "mps:50"', "'mps:50' is not a type of GPU", "sinfo"),
        ("[cluster.gpus]\n3g.20gb = 'x'", "is not a type of GPU", "gpu:TYPE"),  # without quotes
        ("[cluster.a]\npartition = 'x'\n[cluster.a.b]\n", "unknown setting 'b'", "gpus"),
        ("[cluster.'my lab']\n", "'my lab' is not a name for a cluster", "letters"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, text: str, cause: str, remedy: str) -> None:
    (problem,) = cluster_problems(settings_file(tmp_path, text))

    assert cause.format(folder=tmp_path) in problem.message
    assert f"{tmp_path}/radt.toml" in problem.message
    assert remedy in (problem.remedy or "")


def test_a_wrong_cluster_is_no_matter_of_another(tmp_path: Path) -> None:
    text = "[cluster.a]\npartition = 'x'\n[cluster.b]\npartition = 3\n"
    file = settings_file(tmp_path, text)

    assert ClusterSettings.named("a", file) is not None
    assert [str(problem) for problem in cluster_problems(file)] == [
        f"[cluster.b] of {tmp_path}/radt.toml: partition: 3 is not a valid value. "
        "Partition of rows without one."
    ]
    assert not list(cluster_problems(None))
