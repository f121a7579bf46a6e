"""Experiment files of the collocation study: what the thesis has, and what cards can hold."""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from radt.collocation.planner import DeviceRequest, plan_devices
from radt.collocation.spec import Collocation
from radt.collocation.topology import profile_name
from radt.devices.machine import Machine
from radt.experiment.source import ExperimentFile
from radt.listeners.api import Registry
from tests.support.cards import divided, machine

FOLDER = Path(__file__).parents[2] / "experiments" / "collocation"
sys.path.insert(0, str(FOLDER))  # as for `python plan.py`

import plan  # noqa: E402
from study.options import parse  # noqa: E402

FILES = plan.files()


def rows_of(name: str) -> list[dict[str, str]]:
    lines = [line for line in FILES[name].splitlines() if not line.startswith("#")]
    reader = csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True)
    return [{key.strip(): value.strip() for key, value in row.items()} for row in reader]


def workloads(rows: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(f"{row['Experiment']}/{row['Workload']}", []).append(row)
    return found


@pytest.mark.parametrize("name", FILES)
def test_files_are_what_plan_py_writes(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == FILES[name], "python plan.py"
    assert {path.name for path in FOLDER.glob("*.csv")} - {"demo.csv"} == set(FILES)


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("name", FILES)
def test_radt_and_train_py_understand_every_row(name: str, tmp_path: Path) -> None:
    # Whether a card has the devices is another question (below): here they are all CPUs.
    rows = [
        plan.Row(*(row[key] for key in ("Experiment", "Workload")), "-", *rest, device="cpu")
        for row in rows_of(name)
        for rest in [(row["Model"], row["Data"], row["Params"].partition("{Data} ")[2])]
    ]
    (tmp_path / "train.py").touch()
    (tmp_path / name).write_text(plan.table([], rows), encoding="utf-8")
    planned = ExperimentFile.read(tmp_path / name).plan(
        Machine(cpu_cores=2, no_gpu_reason="none"), Registry({}, {}, {})
    )
    runs = list(planned.runs)
    assert len(runs) == len(rows)
    for params in {run.params for run in runs}:
        options = parse(params)
        assert options.epochs > 1, "the first one is warm-up"
        assert (options.samples or options.sizes.train) >= options.batch_size


def test_uniform_has_copies_of_one_model_in_every_degree() -> None:
    found = workloads(rows_of("uniform.csv"))
    degrees = Counter(len(rows) for rows in found.values())
    assert degrees == {1: 20, 2: 20, 3: 20, 7: 20}, "ten cases, naive and under MPS"
    for rows in found.values():
        assert len({tuple(row.items()) for row in rows}) == 1
    assert {row["Collocation"] for rows in found.values() for row in rows} == {"-", "MPS"}
    cases = {(row["Model"], row["Data"]) for rows in found.values() for row in rows}
    assert cases == {  # table 4.1
        *(("resnet26", "cifar10"), ("resnet50", "imagenet64"), ("resnet152", "imagenet")),
        *(("efficientnet_v2_s", data) for data in ("cifar10", "imagenet64", "imagenet")),
        ("cait_xxs24", "imagenet"),
    }


def test_mixes_are_those_of_table_4_3() -> None:
    found = workloads(rows_of("mixed.csv"))
    size = {"resnet26": "S", "resnet50": "M", "resnet152": "L"}
    for way in ("naive", "mps"):
        mixes = {
            "".join(size[row["Model"]] for row in rows)
            for label, rows in found.items()
            if label.endswith(way)
        }
        assert mixes == {"SM", "SSM", "SSMM", "SSSM", "SMMM", "SL", "ML"}
    alone = [row["Params"] for rows in found.values() if len(rows) == 1 for row in rows]
    together = {row["Params"] for rows in found.values() if len(rows) > 1 for row in rows}
    assert len(alone) == 3
    for params in together:
        assert params in alone, "what ran alone is what is compared with"


@pytest.mark.parametrize(
    ("name", "gpu_gb"), [("mig.csv", 40), ("mig-80gb.csv", 80), ("mig-141gb.csv", 141)]
)
def test_mig_profiles_are_the_cards(name: str, gpu_gb: int) -> None:
    gpu_bytes = gpu_gb * 2**30
    eighths = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
    offered = {
        profile_name(0, slices, part * (gpu_bytes // 2**20) // 8, gpu_bytes)
        for slices, part in eighths.items()
    }
    used = {row["Collocation"] for row in rows_of(name)}
    whole = next(profile for profile in offered if profile.startswith("7g."))
    assert used == offered | {f"3c.{whole}", f"4c.{whole}"}


@pytest.mark.parametrize(("name", "card"), [("mig.csv", "A100-40"), ("mig-141gb.csv", "H200")])
def test_every_mig_workload_has_room_on_its_card(name: str, card: str) -> None:
    for label, rows in workloads(rows_of(name)).items():
        requests = [
            DeviceRequest(str(place), (0,), Collocation.parse(row["Collocation"]))
            for place, row in enumerate(rows)
        ]
        made = plan_devices(requests, machine(divided(card=card)))
        assert len({share.compute for share in made.shares.values()}) == len(rows), label


def test_the_small_study_fits_two_cores() -> None:
    rows = rows_of("cpu.csv")
    assert {row["Devices"] for row in rows} == {"cpu"}
    for row in rows:
        words = shlex.split(row["Params"])
        assert words[words.index("--threads") + 1] == "1"
        assert words[words.index("--workers") + 1] == "0"
